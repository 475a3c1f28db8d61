//! What a run does when its numbers stop being numbers.

use super::Trainer;
use crate::config::OnFailure;
use crate::error::TrainError;
use crate::failure;
use crate::observer::Observer;
use crate::state;
use hadal_data::Batch;

impl Trainer {
    /// Writes the evidence of a failed step and does what the settings say.
    pub(super) fn recover(
        &mut self,
        problem: &str,
        batches: &[Batch],
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let (path, state) = (self.folder.path(), &self.state);
        let dump = failure::dump(path, state, &self.decoder, &self.optimizer, batches, problem)?;
        let step = self.state.step;
        let failures = self.state.failures + 1;
        let window = (self.config.train.batch * self.config.train.accumulate) as u64;
        let what = self.config.failure.on_failure;
        if what == OnFailure::Stop || failures > self.config.failure.limit {
            return Err(TrainError::NotFinite { step, problem: problem.into(), dump });
        }
        // Both ways continue with the data after the step that failed.
        let behind = self.state.skipped_sequences + (step + 1) * window;
        if what == OnFailure::Rollback {
            match self.anchor()? {
                Some(anchor) => {
                    let path = self.folder.checkpoint(anchor);
                    self.state = state::read(&path)?;
                    state::restore(&path, &mut self.decoder, &mut self.optimizer)?;
                    self.folder.remove_after(anchor)?;
                }
                None => {
                    return Err(TrainError::NotFinite { step, problem: problem.into(), dump });
                }
            }
        }
        self.state.skipped_sequences = behind - self.state.step * window;
        self.state.failures = failures;
        observer.recovered(&format!(
            "step {step}: the {problem}; going on from step {} behind that data ({failures} of at most {})",
            self.state.step, self.config.failure.limit
        ));
        Ok(())
    }

    /// The checkpoint that a rollback goes to. Those saved because of the clock or a signal do not count as long as
    /// there are others: the course of a run must not depend on them.
    pub(super) fn anchor(&self) -> Result<Option<u64>, TrainError> {
        let every = self.config.checkpoint.every_steps;
        let steps = self.folder.checkpoints()?;
        Ok(steps.into_iter().rev().find(|step| every == 0 || step.is_multiple_of(every)))
    }
}
