//! Starting and going on with a run on several ranks.
//!
//! Rank 0 does what it would do alone, then sends what it has to the others. They write nothing, and need not see the run's
//! folder.

use super::{Trainer, model_config, optimizer};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::folder::RunFolder;
use crate::start;
use crate::state::State;
use crate::team::{self, Agreement, Division, Team};
use hadal_data::Feed;
use hadal_model::CPU;
use hadal_ranks::Ranks;
use std::path::Path;
use std::sync::Arc;

impl Trainer {
    /// Starts a run on several ranks. All of them call this with the same settings; rank 0 writes to `out`.
    pub fn create_among(
        config: RunConfig,
        out: &Path,
        ranks: Arc<dyn Ranks>,
    ) -> Result<Self, TrainError> {
        let mut team = Team::new(ranks);
        if team.is_alone() {
            return Self::create(config, out);
        }
        let joined = Self::created(config, out, &mut team);
        Self::joined(joined, team)
    }

    /// Goes on with a run on any number of ranks, as [`resume`](Self::resume) does, on a device that is
    /// named or on the run's, strictly or not. Rank 0 reads `out`.
    pub fn resume_among(
        out: &Path,
        device: Option<&str>,
        strictly: bool,
        ranks: Arc<dyn Ranks>,
    ) -> Result<Self, TrainError> {
        let mut team = Team::new(ranks);
        if team.is_alone() {
            return Self::go_on(out, strictly, device);
        }
        let joined = Self::resumed(out, device, strictly, &mut team);
        Self::joined(joined, team)
    }

    /// Tells the other ranks that this one cannot even begin, in place of [`create_among`](Self::create_among) or
    /// [`resume_among`](Self::resume_among).
    pub fn decline(ranks: Arc<dyn Ranks>, reason: &TrainError) {
        Team::new(ranks).fail(reason);
    }

    fn joined(joined: Result<Self, TrainError>, mut team: Team) -> Result<Self, TrainError> {
        match joined {
            Ok(trainer) => Ok(Self { team, ..trainer }),
            Err(error) => {
                team.fail(&error);
                Err(error)
            }
        }
    }

    fn created(config: RunConfig, out: &Path, team: &mut Team) -> Result<Self, TrainError> {
        check_ranks(&config, team)?;
        let feed = config.open_feed()?;
        Agreement::here(&config, &feed)?.reach(team)?;
        let trainer = match team.leads() {
            true => Self::create(config, out)?,
            false => Self::follower(config, feed, out)?,
        };
        trainer.shared(team)
    }

    fn resumed(
        out: &Path,
        device: Option<&str>,
        strictly: bool,
        team: &mut Team,
    ) -> Result<Self, TrainError> {
        let leader = if team.leads() { Some(Self::go_on(out, strictly, device)?) } else { None };
        let settings = team.told(leader.as_ref().map(|leader| leader.folder.settings()))?;
        let trainer = match leader {
            Some(leader) => leader,
            None => {
                let config = RunConfig::parse(&settings, "the settings of rank 0")
                    .map_err(|error| TrainError::Settings(error.to_string()))?;
                let feed = config.open_feed()?;
                Self::follower(config, feed, out)?
            }
        };
        check_ranks(&trainer.config, team)?;
        Agreement::here(&trainer.config, &trainer.feed)?.reach(team)?;
        trainer.shared(team)
    }

    /// A rank that will be told everything.
    fn follower(config: RunConfig, feed: Feed, out: &Path) -> Result<Self, TrainError> {
        feed.verify()?;
        let model = model_config(&config, &feed)?;
        let decoder = start::blank(&config, &model)?;
        let optimizer = optimizer(&config, &decoder);
        let settings = toml::to_string(&config).map_err(|e| TrainError::Settings(e.to_string()))?;
        let folder = RunFolder::of_another_rank(out, settings);
        Self::without_logs(config, feed, decoder, optimizer, State::default(), folder)
    }

    /// Rank 0 gives the others its state, and everybody keeps what belongs to it.
    fn shared(mut self, team: &mut Team) -> Result<Self, TrainError> {
        self.division = Division::new(&self.decoder, &self.config, team.size());
        self.follow(team)?;
        team::state(team, &self.division, &mut self.decoder, &mut self.optimizer)?;
        Ok(self)
    }

    /// Rank 0 tells the others its counters.
    pub(super) fn follow_state(&mut self) -> Result<(), TrainError> {
        let mut team = std::mem::replace(&mut self.team, Team::alone());
        let followed = self.follow(&mut team);
        self.team = team;
        followed
    }

    fn follow(&mut self, team: &mut Team) -> Result<(), TrainError> {
        let words = |error: serde_json::Error| TrainError::Settings(error.to_string());
        // Exactly the same best loss: all ranks decide by it.
        let best = self.state.best.map(|(loss, step)| (loss.to_bits(), step));
        let own = serde_json::to_string(&(&self.state, best, self.known)).map_err(words)?;
        let told = team.told(team.leads().then_some(own.as_str()))?;
        if !team.leads() {
            let best: Option<(u64, u64)>;
            (self.state, best, self.known) = serde_json::from_str(&told).map_err(words)?;
            self.state.best = best.map(|(loss, step)| (f64::from_bits(loss), step));
        }
        Ok(())
    }
}

/// Every rank needs a part of each step.
fn check_ranks(config: &RunConfig, team: &Team) -> Result<(), TrainError> {
    let (ranks, passes, batch) = (team.size(), config.train.accumulate, config.train.batch);
    if config.train.device != CPU {
        return Err(TrainError::RanksOnDevice { device: config.train.device.clone() });
    }
    match ranks <= passes {
        true => Ok(()),
        false => Err(TrainError::TooManyRanks { ranks, passes, batch }),
    }
}
