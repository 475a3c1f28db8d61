//! Seeds until all is decided: which looks there are, when a suite ends, and how often it is wrong.

use super::findings::made;
use super::*;
use hadal_report::statistics::{Rule, Spending, Verdict};

const UNTIL: &str = "seeds = \"until decided\"";

#[test]
fn looks_are_planned_with_the_most_seeds_as_the_last() {
    let rule = |looks: &str| suite(&format!("{UNTIL}\n{looks}"), TWO).rule.unwrap();
    let default =
        Rule { first: 0, looks: vec![4, 6, 8, 10, 12], alpha: 0.05, spending: Spending::Pocock };
    assert_eq!(rule(""), default);
    let said = rule(
        "[looks]\nseed = 100\nfirst = 3\nevery = 4\nmost = 9\nalpha = 0.1\nspending = \"obrien-fleming\"",
    );
    let expected =
        Rule { first: 100, looks: vec![3, 7, 9], alpha: 0.1, spending: Spending::ObrienFleming };
    assert_eq!(said, expected);
    assert_eq!(rule("[looks]\nfirst = 5\nmost = 5").looks, [5]);
    let suite = suite(&format!("{UNTIL}\n[looks]\nseed = 7\nmost = 5"), TWO);
    assert_eq!(suite.seeds, [7, 8, 9, 10, 11]);
    assert_eq!(suite.plan(&Pace::new()).unwrap().len(), 10);
    assert!(super::suite("seeds = [1]", TWO).rule.is_none());
}

#[test]
fn looks_that_make_no_sense_are_refused() {
    for (head, words) in [
        (
            "seeds = \"until\"".to_owned(),
            "seeds is \"until\"; write a list such as [0, 1, 2], or \"until decided\"",
        ),
        ("seeds = [0, 1]\n[looks]\nmost = 3".into(), "looks needs seeds = \"until decided\""),
        ("[looks]\nmost = 3".into(), "looks needs seeds = \"until decided\""),
        (format!("{UNTIL}\n[looks]\nfirst = 1"), "looks.first is 1; a test needs two seeds"),
        (format!("{UNTIL}\n[looks]\nfirst = 0"), "looks.first is 0; a test needs two seeds"),
        (format!("{UNTIL}\n[looks]\nmost = 3"), "looks.most is 3, but the first look is after 4"),
        (format!("{UNTIL}\n[looks]\nmost = 101"), "looks.most is 101; write 100 or less"),
        (
            format!("{UNTIL}\n[looks]\nmost = 9000000000000000000"),
            "looks.most is 9000000000000000000",
        ),
        (format!("{UNTIL}\n[looks]\nevery = 0"), "looks.every is 0"),
        (format!("{UNTIL}\n[looks]\nseed = -1"), "looks.seed is -1"),
        (format!("{UNTIL}\n[looks]\nalpha = 0"), "looks.alpha is 0; write 0.05"),
        (format!("{UNTIL}\n[looks]\nalpha = nan"), "looks.alpha is NaN"),
        (format!("{UNTIL}\n[looks]\nalpha = 5"), "looks.alpha is 5; write 0.05"),
        (format!("{UNTIL}\n[looks]\nspending = \"all\""), "unknown value `all`"),
        (format!("{UNTIL}\n[looks]\nmots = 3"), "did you mean most?"),
        (format!("{UNTIL}\nlook = 3"), "look is unknown; did you mean looks?"),
    ] {
        let said = complaint(&format!("{head}\n{BODY}{TWO}"));
        assert!(said.starts_with("test.toml: ") && said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_was_done_before_is_held_to_the_next_look() {
    let until = suite(&format!("{UNTIL}\n[looks]\nfirst = 2\nmost = 6"), TWO);
    let plan = until.plan(&Pace::new()).unwrap();
    let needed = |done| crate::looks::needed(&until, &plan, done);
    assert_eq!([0, 3, 4, 5, 8, 9, 12, 99].map(needed), [4, 4, 4, 8, 8, 12, 12, 12]);
    let fixed = suite("seeds = [0, 1, 2]", TWO);
    assert_eq!(crate::looks::needed(&fixed, &fixed.plan(&Pace::new()).unwrap(), 1), 6);
}

/// Results of as many seeds as a look has.
fn at_look(suite: &Suite, look: usize, loss: impl Fn(&PlannedRun) -> f64) -> Results {
    let plan = suite.plan(&Pace::new()).unwrap();
    let seeds = suite.rule.as_ref().unwrap().looks[look - 1];
    let plan = &plan[..plan.len() / suite.seeds.len() * seeds];
    let runs = plan.iter().map(|run| made(run, loss(run))).collect();
    Results::of(suite, plan, runs, look)
}

#[test]
fn a_look_is_judged_at_its_level_and_says_so() {
    let suite = suite(&format!("baseline = \"prenorm\"\n{UNTIL}"), FOUR);
    let noise = [0.010, 0.002, 0.009, 0.0061];
    let loss = |run: &PlannedRun| {
        let seed = run.seed as usize;
        let shift = match run.variant.as_str() {
            "low" => -0.5 - 0.001 * noise[seed % 4],
            "high" => noise[seed % 4],
            "same" => [0.1, -0.1, 0.05, -0.02][seed % 4],
            _ => 0.0,
        };
        2.0 + 0.1 * seed as f64 + shift
    };
    let results = at_look(&suite, 1, loss);
    assert_eq!(results.seeds, [0, 1, 2, 3]);
    let verdict = |name: &str| {
        let cell = results.cells.iter().find(|cell| cell.variant == name).unwrap();
        cell.against.as_ref().unwrap()
    };
    assert_eq!(verdict("low").verdict, Verdict::Better);
    let high = verdict("high");
    assert!(high.paired.p_t.unwrap() < 0.05, "{high:?}");
    assert_eq!(high.verdict, Verdict::Undecided);
    assert_eq!(results.looks.as_ref().unwrap().taken, 1);
    let table = results.table(&suite);
    let said = table.verdict.join("\n");
    assert!(said.contains("One of 5 looks was taken, at a level of "), "{said}");
    assert!(said.contains("high is undecided against prenorm: "), "{said}");
    assert_eq!(table.looks, results.looks);
    let json = serde_json::to_value(&results).unwrap();
    let looks = &json["cells"][3]["against"]["sequential"]["looks"];
    assert_eq!((&looks[0]["seeds"], &looks[0]["pairs"]), (&4.into(), &4.into()));
    // Later seeds decide.
    let results = at_look(&suite, 5, loss);
    let high = results.cells[3].against.as_ref().unwrap();
    assert_eq!((high.verdict, high.sequential.as_ref().unwrap().looks.len()), (Verdict::Worse, 5));
}

#[test]
fn a_fixed_number_of_seeds_says_nothing_of_looks() {
    let suite = suite("seeds = [0, 1, 2]", TWO);
    let plan = suite.plan(&Pace::new()).unwrap();
    let loss = |run: &PlannedRun| {
        [1.0, 1.1, 1.3][run.seed as usize]
            + if run.variant == "wide" { 0.01 * run.seed as f64 } else { 0.0 }
    };
    let runs = plan.iter().map(|run| made(run, loss(run))).collect();
    let results = Results::of(&suite, &plan, runs, 0);
    let json = serde_json::to_value(&results).unwrap();
    assert!(json.get("looks").is_none() && json["cells"][1]["against"].get("sequential").is_none());
    assert_eq!(json["cells"][1]["against"]["power"]["level"], 0.05);
    let said = results.table(&suite).verdict;
    let told = |words: &str| said.iter().any(|sentence| sentence.contains(words));
    assert!(told(" nats would have been seen with a chance of 80 %") && !told("looks"), "{said:?}");
}
