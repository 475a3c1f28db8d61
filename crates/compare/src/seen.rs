//! Tables that were seen before: seeds that are added or taken away after a look make p-values too small.

use super::error::CompareError;
use super::folder::{SuiteFolder, read_json, write_json};
use super::results::Results;
use super::suite::Suite;
use hadal_report::statistics::Rule;
use serde::{Deserialize, Serialize};

/// The seeds of a whole table, and the looks that were planned for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    seeds: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rule: Option<Rule>,
}

const FILE: &str = "seeds.json";

fn tables(folder: &SuiteFolder) -> Result<Vec<Seen>, CompareError> {
    Ok(read_json(&folder.path().join(FILE))?.unwrap_or_default())
}

/// What must be known of a table for which somebody looked at another one first.
pub(super) fn warning(folder: &SuiteFolder, suite: &Suite) -> Result<Option<String>, CompareError> {
    let tables = tables(folder)?;
    let other = tables.iter().find(|seen| is_unplanned(seen, suite));
    Ok(other.map(|seen| {
        let list = |seeds: &[u64]| {
            let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
            seeds.join(", ")
        };
        let now = match &suite.rule {
            Some(_) => "before these looks were planned".into(),
            None => format!("before the seeds became {}", list(&suite.seeds)),
        };
        format!(
            "A table with the seeds {} was seen {now}: p-values and intervals here do not count that look. Fresh seeds, or \
             seeds = \"until decided\" from the start, would.",
            list(&seen.seeds)
        )
    }))
}

/// One seed tells nothing, and other seeds do not matter.
fn is_unplanned(seen: &Seen, suite: &Suite) -> bool {
    let shared = seen.seeds.iter().any(|seed| suite.seeds.contains(seed));
    let same = match (&seen.rule, &suite.rule) {
        (None, None) => {
            let of_suite = |seed: &u64| suite.seeds.contains(seed);
            seen.seeds.len() == suite.seeds.len() && seen.seeds.iter().all(of_suite)
        }
        (there, here) => there == here,
    };
    seen.seeds.len() > 1 && shared && !same
}

/// Keeps that a whole table was there to be seen.
pub(super) fn remember(folder: &SuiteFolder, results: &Results) -> Result<(), CompareError> {
    let compared = results.cells.iter().any(|cell| cell.against.is_some());
    if !results.is_whole() || !compared {
        return Ok(());
    }
    let rule = results.looks.as_ref().map(|looks| looks.rule.clone());
    let seen = Seen { seeds: results.seeds.clone(), rule };
    let mut tables = tables(folder)?;
    if !tables.contains(&seen) {
        tables.push(seen);
        write_json(&folder.path().join(FILE), &tables)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{TWO, suite};

    #[test]
    fn seeds_that_change_after_a_look_are_unplanned() {
        let fixed = |seeds: &[u64]| Seen { seeds: seeds.to_vec(), rule: None };
        let four = suite("seeds = [0, 1, 2, 3]", TWO);
        for (seeds, unplanned) in [
            (&[0, 1, 2, 3][..], false),
            (&[3, 2, 1, 0], false),
            (&[0, 1], true),
            (&[0, 1, 2, 3, 4], true),
            (&[0], false),
            (&[7, 8], false),
        ] {
            assert_eq!(is_unplanned(&fixed(seeds), &four), unplanned, "{seeds:?}");
        }
        let planned = suite("seeds = \"until decided\"", TWO);
        let longer = suite("seeds = \"until decided\"\n[looks]\nmost = 20", TWO);
        let seen = Seen { seeds: vec![0, 1, 2, 3], rule: planned.rule.clone() };
        assert!(!is_unplanned(&seen, &planned));
        assert!(is_unplanned(&seen, &longer), "the plan was changed after a look");
        assert!(is_unplanned(&seen, &four));
        assert!(is_unplanned(&fixed(&[0, 1]), &planned));
    }
}
