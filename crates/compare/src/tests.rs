//! Suites for all of these tests, and those that are refused.

mod findings;
mod looks;
mod plan;
mod shape;
mod start;

use super::*;

const BODY: &str = "
[train]
steps = 40
batch = 2
[model]
d_model = 16
n_layers = 4
n_heads = 2
[data.generated]
task = \"khop\"
length = 24
";

pub(super) const TWO: &str = "
[[variant]]
residual = \"prenorm\"
[[variant]]
name = \"wide\"
residual = { kind = \"mgr\", streams = 4 }
";

/// Four variants whose verdicts differ.
const FOUR: &str = "[[variant]]\nname = \"same\"\nresidual = \"prenorm\"\n\
    [[variant]]\nresidual = \"prenorm\"\n[[variant]]\nname = \"low\"\nresidual = \"nag\"\n\
    [[variant]]\nname = \"high\"\nresidual = \"lns\"\n";

pub(super) fn suite(head: &str, variants: &str) -> Suite {
    Suite::parse(&format!("{head}\n{BODY}\n{variants}"), "test.toml").unwrap()
}

fn complaint(text: &str) -> String {
    let planned = Suite::parse(text, "test.toml").and_then(|suite| suite.plan(&Pace::new()));
    planned.unwrap_err().to_string()
}

#[test]
fn whatever_is_not_of_the_residual_stream_is_refused_by_name() {
    let with = |line: &str| complaint(&format!("{BODY}\n{TWO}\n{line}"));
    for (line, name) in [
        ("steps = 7", "steps"),
        ("optimizer.muon.lr = 0.1", "optimizer"),
        ("[variant.model]\nn_layers = 3", "model"),
        ("seed = 3", "seed"),
        ("data.train = \"elsewhere\"", "data"),
    ] {
        let said = with(line);
        let start = format!("test.toml: {name} of variant `wide` is refused");
        assert!(said.starts_with(&start), "{said}");
    }
    let said = with("nag_alpha_warmup = 5");
    assert!(said.contains("nag_alpha_warmup is of the recipe of nag, but `wide` is mgr"), "{said}");
}

#[test]
fn suites_that_compare_nothing_or_unfairly_are_refused_with_the_remedy() {
    for (text, words) in [
        (format!("seed = 3\n{BODY}{TWO}"), "seed belongs to one run; write seeds"),
        (format!("{BODY}[residual]\nkind = \"nag\"\n{TWO}"), "residual belongs to one run"),
        (BODY.into(), "variant is missing; write a [[variant]]"),
        (format!("{BODY}{TWO}{TWO}"), "`prenorm` is there twice"),
        (format!("baseline = \"x\"\n{BODY}{TWO}"), "`x` is no variant; there are prenorm, wide"),
        (format!("seeds = []\n{BODY}{TWO}"), "seeds is empty"),
        (format!("seeds = [1, 2, 1]\n{BODY}{TWO}"), "seeds holds 1 twice"),
        (format!("seeds = [-1]\n{BODY}{TWO}"), "seeds holds -1"),
        (format!("threads = 0\n{BODY}{TWO}"), "threads is 0; write 1 to"),
        (format!("depths = [4, 4]\n{BODY}{TWO}"), "depths holds 4 twice"),
        (format!("depths = [0]\n{BODY}{TWO}"), "the run prenorm-d0-s0 cannot be planned"),
        (format!("budget = {{ hours = 3 }}\n{BODY}{TWO}"), "unknown field `hours`"),
        (format!("budget.flops = 1e9\n{BODY}{TWO}"), "train.steps contradicts budget.flops"),
        (format!("{BODY}{TWO}\n[[variant]]\nresidual = \"mrg\""), "unknown residual policy `mrg`"),
        (format!("{BODY}{TWO}\n[[variant]]\nname = \"x\""), "variant.residual is missing"),
        (
            format!("{BODY}{TWO}\n[[variant]]\nname = \"../x\"\nresidual = \"nag\""),
            "variant.name is `../x`; it names folders",
        ),
        (format!("{BODY}{TWO}\n[[variant]]\nresidual = \"mgr:streams=0\""), "at least one stream"),
        (format!("stpes = 3\n{BODY}{TWO}"), "unknown field `stpes`"),
        (format!("seds = [1]\n{BODY}{TWO}"), "seds is unknown; did you mean seeds?"),
        (format!("seeds = [\"x\"]\n{BODY}{TWO}"), "\"x\" does not fit; write a whole number"),
        (format!("{BODY}[[variants]]\nresidual = \"nag\""), "did you mean variant?"),
        (format!("{BODY}{TWO}\n[[variant]]\nresidul = \"nag\""), "did you mean residual?"),
        (
            format!("{BODY}{TWO}\n[[variant]]\nresidual = \"nag\"\nskip_rat = 0.5"),
            "skip_rat of variant `nag` is unknown; did you mean skip_rate?",
        ),
        ("seeds = [".into(), "test.toml: TOML parse error"),
    ] {
        let said = complaint(&text);
        assert!(said.starts_with("test.toml: ") && said.contains(words), "{words}: {said}");
    }
}
