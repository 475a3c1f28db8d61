//! Training on several ranks as its users meet it: every test starts mpirun with the real binary, stops, kills or misleads
//! some of its processes, and compares bytes with a run of one.

#[expect(dead_code, reason = "the other tests of training use all of it")]
#[path = "../training/support.rs"]
mod support;

mod ends;
mod job;
mod lost;
mod refusals;

use job::*;
use support::*;

/// Four passes in a step: shared as 2 and 2, and as 2, 1 and 1.
pub(crate) const SETTINGS: [&str; 5] = [
    "train.steps=6",
    "train.accumulate=4",
    "eval.every_steps=3",
    "eval.batches=3",
    "checkpoint.every_steps=2",
];

/// Model, curve and samples do not know how many ranks there were.
#[test]
fn any_number_of_ranks_ends_with_the_same_bits() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    for (policy, rule, skip) in [
        ("mgr", "muon", None),
        ("hc", "adamw", None),
        ("attnres", "muon", None),
        ("nag", "adamw", Some("skip.rate=0.25")),
    ] {
        let whole = directory.path().join(format!("{policy}-1"));
        let rule = format!("optimizer.hidden={rule}");
        let mut settings = [&SETTINGS[..], &[&rule]].concat();
        settings.extend(skip);
        finish(on_task(&whole, &settings).args(["--residual", policy])).succeeded();
        for ranks in [2, 3, 4] {
            let run = directory.path().join(format!("{policy}-{ranks}"));
            let ended =
                finish(&mut mpirun(ranks, on_task(&run, &settings).args(["--residual", policy])));
            let ended = ended.succeeded();
            assert!(model(&run) == model(&whole), "{policy} on {ranks} ranks: other weights");
            assert_eq!(losses(&run), losses(&whole), "{policy} on {ranks} ranks");
            // Rank 0 alone speaks.
            for words in ["all settings: ", "the model is in ", "held-out loss", "step 3: "] {
                let said = format!("{}{}", ended.stdout, ended.stderr);
                let count = said.lines().filter(|line| line.starts_with(words)).count();
                assert_eq!(count, 1, "{words} in {said}");
            }
        }
    }
}
