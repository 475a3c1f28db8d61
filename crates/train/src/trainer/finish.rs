//! The end of a run: its last state, measurement, outcome and model.

use super::Trainer;
use crate::error::TrainError;
use crate::folder::RunFolderError;
use crate::observer::{Finished, Observer};
use crate::outcome::write_outcome;
use burn::module::Module;
use hadal_model::save_with;

/// The tokenizer's file in a model's directory.
const TOKENIZER: &str = "tokenizer.json";

impl Trainer {
    /// Nothing that can fail comes before the last state, and only a disk that takes no model keeps the model back.
    pub(super) fn finish(&mut self, observer: &mut dyn Observer) -> Result<Finished, TrainError> {
        // Before the last evaluation, which resuming repeats: it must not be in the logs twice.
        self.checkpoint(observer)?;
        let evaluation = self.evaluate(observer);
        if self.team.leads() {
            self.leave_model(observer)?;
        }
        let model = self.folder.model();
        let ended = match evaluation {
            Ok(evaluation) => Ok(Finished::Done { evaluation, model }),
            Err(reason) => Err(TrainError::Unmeasured { model, reason: Box::new(reason) }),
        };
        // One more exchange in any case: nobody is done before the model is there.
        match &ended {
            Ok(_) => self.team.part()?,
            Err(error) => self.team.fail(error),
        }
        ended
    }

    /// Writes what a run leaves.
    fn leave_model(&self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        // Before the model, whose presence says that a run is done.
        let shapes = self.decoder.declared().iter().map(|declared| &declared.shape);
        let parameters = shapes.map(|shape| shape.iter().product::<usize>() as u64).sum();
        let (steps, tokens) = (self.state.step, self.tokens_per_step());
        for warning in write_outcome(self.folder.path(), parameters, steps, tokens) {
            observer.recovered(&warning);
        }
        // Whoever reads these files later can tell whether they are what this run left.
        if let Err(error) = self.folder.write_manifest() {
            observer.recovered(&error.to_string());
        }
        self.save_model()
    }

    /// The tokenizer and its companions are in the directory from its first moment on.
    fn save_model(&self) -> Result<(), TrainError> {
        let decoder = self.as_used(1.0)?.valid();
        let companions = self.folder.companions().map_err(RunFolderError::from)?;
        let mut more: Vec<(&str, &[u8])> =
            companions.iter().map(|(name, content)| (&**name, &**content)).collect();
        if let Some(tokenizer) = self.tokenizer.as_deref() {
            // The same, if both are there.
            more.retain(|(name, _)| *name != TOKENIZER);
            more.push((TOKENIZER, tokenizer));
        }
        save_with(&decoder, &self.folder.model(), &more)
            .map_err(Box::new)
            .map_err(|reason| TrainError::Unsaved { run: self.folder.path().into(), reason })
    }
}
