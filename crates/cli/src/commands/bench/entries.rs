//! What takes part in a benchmark: policies, and skip rates of those that can skip.

use crate::failure::Failure;
use hadal_compare::bench::SkipRate;
use hadal_residual::{InvalidPolicy, ResidualConfig, Skipping};
use std::str::FromStr;

/// A policy and how it was written.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) text: String,
    pub(super) residual: ResidualConfig,
}

impl FromStr for Asked {
    type Err = <ResidualConfig as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self { text: text.into(), residual: text.parse()? })
    }
}

impl Asked {
    /// Why tokens cannot skip, if they cannot.
    fn refusal(&self) -> Option<InvalidPolicy> {
        self.residual.clone().set_skipping(Some(Skipping::below(0.0))).err()
    }
}

/// One process.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) asked: Asked,
    pub(super) skip: SkipRate,
    /// The entry of the same policy where no token skips.
    pub(super) dense: usize,
}

impl Entry {
    /// Its name in a report.
    pub(super) fn name(&self) -> String {
        match self.skip {
            SkipRate::Rate(rate) => format!("{}+skip{rate}", self.asked.text),
            SkipRate::Unasked | SkipRate::Dense => self.asked.text.clone(),
        }
    }

    /// Every policy; those that can skip are followed by one entry for each rate.
    pub(super) fn all(asked: &[Asked], rates: &[f64]) -> Result<Vec<Self>, Failure> {
        if let Some(refusal) = asked.first().and_then(Asked::refusal)
            && !rates.is_empty()
            && asked.iter().all(|asked| asked.refusal().is_some())
        {
            return Err(Failure::usage(format!("--skip has nothing to do: {refusal}")));
        }
        let mut entries = Vec::new();
        for asked in asked {
            let dense = entries.len();
            let mut add = |skip| entries.push(Self { asked: asked.clone(), skip, dense });
            add(if rates.is_empty() { SkipRate::Unasked } else { SkipRate::Dense });
            if asked.refusal().is_none() {
                rates.iter().for_each(|&rate| add(SkipRate::Rate(rate)));
            }
        }
        Ok(entries)
    }
}

/// The part of a worker, as its parent writes it.
pub(super) fn part(text: &str) -> Result<SkipRate, String> {
    match text {
        "dense" => Ok(SkipRate::Dense),
        _ => rate(text).map(SkipRate::Rate),
    }
}

/// The text that [`part`] reads; `None` where nothing is compared.
pub(super) fn part_text(skip: SkipRate) -> Option<String> {
    match skip {
        SkipRate::Unasked => None,
        SkipRate::Dense => Some("dense".into()),
        SkipRate::Rate(rate) => Some(rate.to_string()),
    }
}

/// A share of FLOPs.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(rate) if (0.0..1.0).contains(&rate) => Ok(rate),
        _ => Err("it is the share of FLOPs that is skipped: at least 0, and less than 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(texts: &[&str]) -> Vec<Asked> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_policy_keeps_the_form_in_which_it_was_written() {
        let asked: Asked = "mgr:streams=8".parse().unwrap();
        assert_eq!(asked.text, "mgr:streams=8");
        assert_eq!(asked.residual.to_string(), "mgr:streams=8,gate=competitive");
        assert!("mrg".parse::<Asked>().is_err());
    }

    #[test]
    fn rates_stand_behind_the_policies_that_can_skip() {
        let entries = Entry::all(&asked(&["prenorm", "nag"]), &[0.0, 0.25]).unwrap();
        let names: Vec<_> = entries.iter().map(Entry::name).collect();
        assert_eq!(names, ["prenorm", "nag", "nag+skip0", "nag+skip0.25"]);
        assert_eq!(entries.iter().map(|entry| entry.dense).collect::<Vec<_>>(), [0, 1, 1, 1]);
        for entry in entries {
            assert_eq!(part(&part_text(entry.skip).unwrap()), Ok(entry.skip));
        }
    }

    #[test]
    fn nothing_is_compared_unless_rates_are_named() {
        let entries = Entry::all(&asked(&["prenorm", "nag"]), &[]).unwrap();
        assert!(entries.iter().all(|entry| part_text(entry.skip).is_none()));
        assert!(Entry::all(&asked(&["prenorm"]), &[0.5]).is_err());
    }

    #[test]
    fn a_rate_is_a_share() {
        assert_eq!(rate("0.25"), Ok(0.25));
        for text in ["1", "-0.1", "NaN", "half", ""] {
            assert!(rate(text).unwrap_err().contains("less than 1"), "{text}");
        }
    }
}
