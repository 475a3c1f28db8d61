//! Going on with a run from its checkpoints.

use super::{Trainer, first_state, model_config, optimizer};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::fingerprint::is_of;
use crate::folder::RunFolder;
use crate::optim::{Optimizer, project};
use crate::provenance;
use crate::start;
use crate::state::{self, State};
use hadal_data::Feed;
use hadal_model::Decoder;
use std::path::Path;

impl Trainer {
    /// Goes on with a run from its last checkpoint, or from the start if it has none yet. Checkpoints that are damaged
    /// are set aside, and [`warnings`](Self::warnings) says so: the one before leads to the same bits.
    pub fn resume(out: &Path) -> Result<Self, TrainError> {
        Self::go_on(out, false, None)
    }

    /// The same, but a newest checkpoint that is damaged is an error.
    pub fn resume_strictly(out: &Path) -> Result<Self, TrainError> {
        Self::go_on(out, true, None)
    }

    pub(super) fn go_on(
        out: &Path,
        strictly: bool,
        device: Option<&str>,
    ) -> Result<Self, TrainError> {
        let (folder, recorded) = RunFolder::open(out)?;
        let mut config = recorded.clone();
        if let Some(device) = device {
            config.train.device = device.into();
            config.check()?;
        }
        start::device(&config)?;
        let named = |reason| {
            let (config, reason) = (folder.config_file(), Box::new(reason));
            TrainError::FeedOf { config, reason }
        };
        let feed = config.open_feed().map_err(named)?;
        feed.verify()?;
        let model = model_config(&config, &feed)?;
        let unfinished = folder.clear_unfinished();
        let steps = folder.checkpoints()?;
        let mut decoder = match steps.is_empty() {
            false => start::blank(&config, &model)?,
            true => start::start(&config, &model, &feed)?,
        };
        project(&mut decoder);
        let mut optimizer = optimizer(&config, &decoder);
        let mut found = None;
        let mut damaged = Vec::new();
        for &step in steps.iter().rev() {
            match restored(&folder, step, &recorded, &feed, (&mut decoder, &mut optimizer)) {
                Ok(state) => {
                    found = Some(state);
                    break;
                }
                Err(TrainError::State(error)) if error.is_damage() && !strictly => {
                    damaged.push((step, error));
                }
                Err(error) => return Err(error),
            }
        }
        let known = found.as_ref().map(|state| state.step);
        let state = match found {
            Some(state) => state,
            None if damaged.is_empty() => first_state(&folder, &feed)?,
            None => {
                let problems = damaged.iter().map(|(_, error)| error.to_string()).collect();
                return Err(TrainError::NoState { path: out.into(), problems });
            }
        };
        let mut warnings: Vec<String> = unfinished.iter().map(ToString::to_string).collect();
        for (step, error) in damaged {
            // One that kept its name would count among the newest, and better ones would be removed for it.
            let aside = folder.set_aside(step).map_err(crate::RunFolderError::from)?;
            warnings.push(format!(
                "the checkpoint of step {step} cannot be used: {error}. It is {} now; going on from step {}",
                aside.display(),
                state.step
            ));
        }
        match provenance::resumed(out, &config) {
            Ok(differ) if differ.is_empty() => {}
            Ok(differ) => warnings.push(format!(
                "bits are the same only with the same program, device, SIMD form and threads: {}",
                differ.join("; ")
            )),
            Err(error) => warnings.push(error.to_string()),
        }
        let mut trainer = Self::assemble(config, feed, decoder, optimizer, state, folder)?;
        warnings.append(&mut trainer.warnings);
        Ok(Self { warnings, known, ..trainer })
    }
}

/// Reads the state of a step into a model and its optimiser. They stay as they are if it cannot be used.
fn restored(
    folder: &RunFolder,
    step: u64,
    config: &RunConfig,
    feed: &Feed,
    (decoder, optimizer): (&mut Decoder, &mut Optimizer),
) -> Result<State, TrainError> {
    let path = folder.checkpoint(step);
    let state = state::read(&path)?;
    let changed = |what| {
        let remedy = "restore it, or start a new run";
        TrainError::Changed { path: folder.path().into(), what, remedy }
    };
    if !is_of(&state.config, config, folder.settings())? {
        return Err(changed("config.toml"));
    }
    if state.data != feed.fingerprint()? {
        return Err(changed("data or tokenizer"));
    }
    // Only now: the tensors of another config or vocabulary would look damaged.
    state::restore(&path, decoder, optimizer)?;
    Ok(state)
}
