//! Saving the state of a run, and removing older ones.

use super::Trainer;
use crate::error::TrainError;
use crate::folder::RunFolderError;
use crate::observer::Observer;
use crate::outcome::note_peak;
use crate::state;
use crate::team;
use std::time::Instant;

impl Trainer {
    /// Saves the state, unless that is done already, and removes older ones. All ranks call this; rank 0 writes.
    pub(super) fn checkpoint(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if self.known != Some(self.state.step) {
            team::remembered(&mut self.team, &self.division, &mut self.optimizer)?;
            if self.team.leads() {
                self.save(observer)?;
            }
            team::keep(&self.team, &self.division, &mut self.optimizer);
            self.known = Some(self.state.step);
        }
        // Also if it was saved before: a kill may have come between the two.
        if self.team.leads() {
            self.tidy(observer);
        }
        Ok(())
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let step = self.state.step;
        let path = self.folder.checkpoint(step);
        if path.symlink_metadata().is_ok() {
            if state::read(&path).is_ok_and(|state| state.is(&self.state)) {
                return Ok(());
            }
            // Of a path that was given up, or damaged: its name is needed.
            let aside = self.folder.set_aside(step).map_err(RunFolderError::from)?;
            let (path, aside) = (path.display(), aside.display());
            observer.recovered(&format!("{path} is not the state of this run; it is {aside} now"));
        }
        self.bring_to_host()?;
        if let Some(logs) = &mut self.logs {
            logs.note(&mut self.state).map_err(TrainError::Logs)?;
        }
        state::save(&self.state, &self.decoder, &self.optimizer, &path)?;
        self.last_saved = Instant::now();
        observer.saved(step, &path);
        Ok(())
    }

    /// What is done beside saving. The state is safe, so nothing of this ends a run.
    fn tidy(&mut self, observer: &mut dyn Observer) {
        let best = self.state.best.map(|(_, step)| step);
        let pruned = self.anchors().and_then(|anchors| {
            let kept: Vec<u64> = best.into_iter().chain(anchors.first().copied()).collect();
            Ok(self.folder.prune(self.config.checkpoint.keep, &kept)?)
        });
        match pruned {
            Ok(left) => {
                for (step, error) in left {
                    if self.stubborn.insert(step) {
                        observer.recovered(&format!("an old checkpoint stays: {error}"));
                    }
                }
            }
            Err(error) => observer.recovered(&format!("old checkpoints stay: {error}")),
        }
        if let Err(error) = note_peak(self.folder.path()) {
            observer.recovered(&format!("the memory of the run is not noted: {error}"));
        }
    }
}
