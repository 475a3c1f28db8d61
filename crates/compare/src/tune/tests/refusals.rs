//! What makes no fair tuning, in one message.

use super::*;

fn complaint(text: &str) -> String {
    let planned = Suite::parse(text, "test.toml").and_then(|suite| suite.tuning(&Pace::new()));
    planned.unwrap_err().to_string()
}

#[test]
fn what_makes_no_fair_tuning_is_refused_with_the_remedy() {
    let tune = |lines: &str| format!("{BODY}[tune]\n{lines}\n{TWO}");
    let own = |lines: &str| format!("{BODY}{TWO}[variant.tune]\n{lines}\n");
    let after = |head: &str, lines: &str| format!("{head}\n{}", tune(lines));
    for (text, words) in [
        (tune(""), "tune has no grid; write lists of values, such as lr_scale"),
        (tune("seeds = [7]"), "tune has no grid"),
        (tune("lr_scale = []"), "tune holds an empty list for lr_scale"),
        (tune("lr_scale = 2"), "tune holds lr_scale = 2; write a list of values"),
        (tune("lr_scale = [1, 1.0]"), "tune holds 1 twice in lr_scale"),
        (tune("lr_scale = [1, 0]"), "tune holds 0 in lr_scale; it is a factor"),
        (tune("lr_scale = [\"x\"]"), "tune holds x in lr_scale"),
        (tune("lr_scale = [nan]"), "tune holds NaN in lr_scale"),
        (tune("lr_scal = [1]"), "tune holds lr_scal, which is unknown; did you mean lr_scale?"),
        (tune("lr_scale = [1]\nsedes = 3"), "holds sedes, which is unknown; did you mean seeds?"),
        (tune("nothing.known = [1]"), "tune holds nothing.known, which is unknown; tune lr_scale"),
        (tune("seed = [1]"), "tune holds seed, which is the suite's"),
        (tune("residual.kind = [\"nag\"]"), "tune holds residual.kind, which is the suite's"),
        (tune("model.d_model = [8]"), "tune holds model.d_model, which is the suite's"),
        (tune("data.text = [\"yankee\"]"), "tune holds data.text, which is the suite's"),
        (tune("eval.batches = [1]"), "tune holds eval.batches, which is the suite's"),
        (tune("train.steps = [9]"), "tune holds train.steps, which is the suite's"),
        (tune("train.batch = [1, 2]"), "would give variants other amounts of data"),
        (tune("checkpoint.keep = [1]"), "which does not change what is learnt; remove it"),
        (tune("optimizer.adamw.lrr = [1]"), "test.toml, [tune]: optimizer.adamw: unknown field"),
        (tune("optimizer.adamw.lr = [-1]"), "optimizer.adamw.lr is -1: it must be zero"),
        (tune("skip.rate = [0.2]"), "skip"),
        (tune("lr_scale = [1]\nseeds = []"), "tune.seeds is empty"),
        (tune("lr_scale = [1]\nseeds = [-3]"), "tune.seeds holds -3"),
        (tune("lr_scale = [1]\nseeds = [5, 5]"), "tune.seeds holds 5 twice"),
        (tune("lr_scale = [1]\nseeds = [9, 2]"), "tune.seeds holds 2, and so does seeds"),
        (after("seeds = [1001]", "lr_scale = [1]"), "tune.seeds holds 1001 by default, and so"),
        (tune("lr_scale = [1]\nseeds = \"x\""), "test.toml: tune.seeds: \"x\" does not fit"),
        (tune("lr_scale = [1]\nshare = 0"), "tune.share is 0; write a share"),
        (tune("lr_scale = [1]\nshare = 1.5"), "tune.share is 1.5"),
        (tune("lr_scale = [1]\nshare = nan"), "tune.share is NaN"),
        (tune("lr_scale = [1]\nkeep = -1.0"), "tune.keep is -1"),
        (tune("lr_scale = [1]\nrounds = 0"), "tune.rounds is 0; write 1 to 10"),
        (tune("lr_scale = [1]\nrounds = 99"), "tune.rounds is 99"),
        (tune("lr_scale = [1]\nrounds = 2\nkeep = 1"), "tune.keep is 1, so that every round"),
        (tune("lr_scale = [1]\nper = \"depth\""), "unknown value `depth`"),
        (tune("lr_scale = [1]\ndepth = 4"), "tune.depth is 4, but the suite has no depths"),
        (after("depths = [2]", "lr_scale = [1]\ndepth = 4"), "tune.depth is 4; depths holds 2"),
        (
            after("depths = [2]", "lr_scale = [1]\ndepth = 2\nper = \"cell\""),
            "tune.depth is 2, but per = \"cell\"",
        ),
        (own(""), "variant.tune of `wide` is empty"),
        (own("seeds = [4]"), "variant.tune of `wide` holds seeds, which is the same for all"),
        (own("seed = [4]"), "variant.tune of `wide` holds seed, which is the suite's"),
        (format!("{BODY}{TWO}tune = 3"), "variant.tune of `wide` is no table"),
        (format!("tune = 3\n{BODY}{TWO}"), "tune is 3; write [tune]"),
        (
            tune(&format!(
                "lr_scale = [{}]",
                (1..1002).map(|n| format!("{n},")).collect::<String>()
            )),
            "tune of `prenorm` has 1001 points; write fewer",
        ),
    ] {
        let said = complaint(&text);
        assert!(said.starts_with("test.toml") && said.contains(words), "{words}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
    let said = suite("", TWO).with_setting("tune.seeds=[1]").unwrap_err().to_string();
    assert!(said.contains("is the suite's; change its file"), "{said}");
}

#[test]
fn a_recipes_short_name_is_its_key_in_the_grid_of_its_own_variant() {
    let nag = "[[variant]]\nresidual = \"nag\"\n[variant.tune]\nnag_alpha_warmup = [0, 9]\n";
    let suite = suite("", &format!("{TWO}{nag}"));
    assert_eq!(labels(&suite, 2), ["train.nag_alpha_warmup=0", "train.nag_alpha_warmup=9"]);
    assert!(labels(&suite, 0).is_empty());
}
