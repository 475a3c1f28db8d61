//! What a suite will take, before it starts.

use super::error::CompareError;
use super::execute::Lanes;
use super::plan::PlannedRun;
use super::suite::Suite;
use hadal_train::estimate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The cost of a whole suite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// All runs, as many at a time as there are lanes. A rough guess from FLOPs.
    pub seconds: f64,
    /// Until the first variant can be compared with the baseline.
    pub first_pair_seconds: f64,
    /// Bytes of those that run at a time, at most.
    pub memory: f64,
}

/// Seconds in which it starts, opens its data and writes its files.
const AROUND: f64 = 0.5;

/// Time and memory of runs that have a plan.
pub fn estimate(
    suite: &Suite,
    plan: &[PlannedRun],
    lanes: Lanes,
    cores: usize,
) -> Result<Estimate, CompareError> {
    // Seeds change no cost.
    let mut known: BTreeMap<String, (Duration, f64)> = BTreeMap::new();
    for run in plan {
        if known.contains_key(&run.cell()) {
            continue;
        }
        let of = estimate::plan(&run.config).map_err(|reason| CompareError::Unplanned {
            origin: suite.origin().into(),
            run: run.name.clone(),
            reason: Box::new(reason),
        })?;
        known.insert(run.cell(), (of.time, of.memory));
    }
    let of = |run: &PlannedRun| known.get(&run.cell()).copied().unwrap_or_default();
    // The guess for a run has all cores; a run of the suite has its threads.
    let slower = (cores as f64 / lanes.threads.max(1) as f64).max(1.0);
    let mut free = vec![0.0_f64; lanes.jobs.max(1)];
    let mut ends = Vec::new();
    for run in plan {
        let lane = free.iter_mut().min_by(|a, b| a.total_cmp(b));
        let Some(lane) = lane else { break };
        *lane += of(run).0.as_secs_f64() * slower + AROUND;
        ends.push(*lane);
    }
    // More threads than cores take turns.
    let crowded = ((lanes.jobs * lanes.threads) as f64 / cores.max(1) as f64).max(1.0);
    let mut memory: Vec<f64> = plan.iter().map(|run| of(run).1).collect();
    memory.sort_by(|a, b| b.total_cmp(a));
    let longest = |ends: &[f64]| crowded * ends.iter().copied().fold(0.0, f64::max);
    Ok(Estimate {
        seconds: longest(&ends),
        first_pair_seconds: longest(&ends[..ends.len().min(2)]),
        memory: memory.iter().take(lanes.jobs.max(1)).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pace;

    const SUITE: &str = "seeds = [0, 1]\n[train]\nsteps = 40\nbatch = 2\n[model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n\
        [data.generated]\ntask = \"khop\"\nk = 1\n[[variant]]\nresidual = \"prenorm\"\n[[variant]]\nresidual = \"nag\"\n";

    fn of(text: &str, jobs: usize, threads: usize, cores: usize) -> Estimate {
        let suite = Suite::parse(text, "test.toml").unwrap();
        let plan = suite.plan(&Pace::new()).unwrap();
        estimate(&suite, &plan, Lanes { jobs, threads }, cores).unwrap()
    }

    /// The machine's speed is measured each time, so that only large ratios can be held.
    #[test]
    fn twice_the_steps_take_longer_and_more_lanes_more_memory() {
        let once = of(SUITE, 1, 1, 1);
        let millionfold = of(&SUITE.replace("steps = 40", "steps = 40000000"), 1, 1, 1);
        assert!(millionfold.seconds > 10.0 * once.seconds, "{once:?} {millionfold:?}");
        assert_eq!(millionfold.memory, once.memory);
        let two = of(SUITE, 2, 1, 2);
        assert!(two.memory > 1.5 * once.memory && two.memory <= 2.0 * once.memory, "{two:?}");
        assert!(0.0 < once.first_pair_seconds && once.first_pair_seconds < once.seconds);
        // Two lanes have a pair as soon as both are through their first run.
        assert!(two.first_pair_seconds < two.seconds);
    }
}
