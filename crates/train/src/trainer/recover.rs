//! What a run does when its numbers stop being numbers.

use super::Trainer;
use crate::config::OnFailure;
use crate::error::TrainError;
use crate::failure;
use crate::folder::RunFolderError;
use crate::observer::Observer;
use crate::state;
use crate::team;

impl Trainer {
    /// Writes the evidence of a failed step and does what the settings say.
    pub(super) fn recover(
        &mut self,
        problem: &str,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        // Whoever writes evidence or goes back needs all of it.
        team::remembered(&mut self.team, &self.division, &mut self.optimizer)?;
        let before = self.state.step;
        if self.team.leads() {
            self.recover_here(problem, observer)?;
        }
        if self.team.is_alone() {
            return Ok(());
        }
        self.follow_state()?;
        if self.state.step == before {
            team::keep(&self.team, &self.division, &mut self.optimizer);
            return Ok(());
        }
        team::state(&mut self.team, &self.division, &mut self.decoder, &mut self.optimizer)
    }

    /// What rank 0 does.
    fn recover_here(
        &mut self,
        problem: &str,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let step = self.state.step;
        let failures = self.state.failures + 1;
        let window = (self.config.train.batch * self.config.train.accumulate) as u64;
        let on_failure = self.config.failure.on_failure;
        let then = match on_failure {
            _ if failures > self.config.failure.limit => OnFailure::Stop,
            OnFailure::Rollback if self.anchors()?.is_empty() => OnFailure::Stop,
            what => what,
        };
        self.bring_to_host()?;
        let dump = self.dump(problem, then, observer);
        // Both ways continue with the data after the step that failed.
        let behind = self.state.skipped_sequences + (step + 1) * window;
        if then == OnFailure::Stop || then == OnFailure::Rollback && !self.roll_back(observer)? {
            return Err(TrainError::NotFinite { step, problem: problem.into(), dump, on_failure });
        }
        self.state.skipped_sequences = behind - self.state.step * window;
        self.state.failures = failures;
        observer.recovered(&format!(
            "step {step}: the {problem}; going on from step {} behind that data ({failures} of at most {})",
            self.state.step, self.config.failure.limit
        ));
        Ok(())
    }

    /// Without evidence, on a full disk for example, the run does what it would do with it.
    fn dump(
        &self,
        problem: &str,
        then: OnFailure,
        observer: &mut dyn Observer,
    ) -> Option<std::path::PathBuf> {
        let then = match then {
            OnFailure::Stop => "stop",
            OnFailure::Skip => "skip",
            OnFailure::Rollback => "rollback",
        };
        let (path, state) = (self.folder.path(), &self.state);
        let (decoder, optimizer) = (&self.decoder, &self.optimizer);
        // The same as other ranks have seen: data is a function of the counters.
        let parts = 0..self.config.train.accumulate;
        let dumped = parts.map(|part| self.batch(state.step, part)).collect::<Result<Vec<_>, _>>();
        let dumped = dumped.and_then(|batches| {
            Ok(failure::dump(path, state, decoder, optimizer, &batches, problem, then)?)
        });
        dumped
            .inspect_err(|error| {
                observer.recovered(&format!("the failed step is not kept: {error}"));
            })
            .ok()
    }

    /// Goes back to the last anchor that is whole, with logs that end there. Returns whether there is one.
    fn roll_back(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        for anchor in self.anchors()? {
            let path = self.folder.checkpoint(anchor);
            let read = state::read(&path).and_then(|state| {
                state::restore(&path, &mut self.decoder, &mut self.optimizer)?;
                Ok(state)
            });
            let state = match read {
                Ok(state) => state,
                Err(error) if error.is_damage() => {
                    let aside = self.folder.set_aside(anchor).map_err(RunFolderError::from)?;
                    let aside = aside.display();
                    observer.recovered(&format!("step {anchor}: {error}. It is {aside} now"));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // First: a kill between the two must not find a checkpoint without its logs.
            for (step, error) in self.folder.remove_after(anchor)? {
                observer.recovered(&format!("step {step} was given up, but stays: {error}"));
            }
            if let Some(logs) = &mut self.logs {
                for warning in logs.cut(&state).map_err(TrainError::Logs)? {
                    observer.recovered(&warning);
                }
            }
            self.bring_to_device();
            self.state = state;
            // With fewer failures, but it leads to the same state.
            self.known = Some(anchor);
            return Ok(true);
        }
        Ok(false)
    }

    /// The checkpoints that a rollback goes to, the newest first. Those saved because of the clock or a signal do not
    /// count as long as there are others: the course of a run must not depend on them.
    pub(super) fn anchors(&self) -> Result<Vec<u64>, TrainError> {
        let every = self.config.checkpoint.every_steps;
        let steps = self.folder.checkpoints()?;
        Ok(steps
            .into_iter()
            .rev()
            .filter(|step| every == 0 || step.is_multiple_of(every))
            .collect())
    }
}
