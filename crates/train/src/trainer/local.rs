//! Rounds of steps that ranks make by themselves (DiLoCo, arXiv 2311.08105).
//!
//! In a round each rank makes H steps on its own part of the data, with an optimiser of its own. At its end
//! `D = start - mean(parameters)` is the gradient of an outer step by Nesterov's rule, `m = mu m + D`,
//! `parameters = start - rate (D + mu m)`, which all ranks begin the next round with. What inner optimisers remember is
//! averaged as well, so that one checkpoint holds all of a run.

use super::Trainer;
use crate::error::TrainError;
use crate::gradient::{Gradients, loss_and_gradient};
use crate::observer::StepReport;
use crate::optim::{Slot, clip_norm, global_norm};
use crate::plan::Wire;
use crate::team::{self, Seen, Tree, share};
use hadal_model::{Decoder, Pass};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What inner optimisers remember.
const MEANS: [fn(&mut Slot) -> &mut Vec<f32>; 2] =
    [|slot| &mut slot.first, |slot| &mut slot.second];

/// What a rank remembers of the round that it is in.
#[derive(Debug)]
pub(super) struct Round {
    /// Parameters at its start.
    start: Gradients,
}

impl Round {
    pub(super) fn begin(decoder: &Decoder) -> Self {
        Self { start: decoder.parameters().into_iter().collect() }
    }
}

impl Trainer {
    /// Whether ranks make steps by themselves.
    pub(super) fn is_local(&self) -> bool {
        self.config.ranks.local_steps > 0
    }

    /// Refuses to go on with other ranks than those that have begun, where the course of a run depends on their number.
    pub(super) fn check_ranks(&mut self) -> Result<(), TrainError> {
        if !self.is_local() {
            return Ok(());
        }
        let now = self.team.size();
        match self.state.ranks {
            Some(then) if then != now => Err(TrainError::OtherRanks { then, now }),
            _ => {
                self.state.ranks = Some(now);
                Ok(())
            }
        }
    }

    /// A step of this rank alone, and the end of the round after its last one.
    pub(super) fn local_step(&mut self, stop: &AtomicBool) -> Result<StepReport, TrainError> {
        let started = Instant::now();
        self.team.take_spent();
        self.clock = false;
        let mut round = match self.round.take() {
            Some(round) => round,
            None => Round::begin(&self.decoder),
        };
        let step = self.state.step;
        let mode = self.prepare()?;
        let (memory, precision) = (self.config.memory.memory(), self.config.train.precision);
        let parts = self.config.train.accumulate;
        let own = share(parts, self.team.rank(), self.team.size());
        let (mut sum, mut seen) = (Tree::new(own.len(), None), Seen::default());
        for part in own.clone() {
            let batch = self.batch(step, part)?;
            let tally = Some(&mut seen.tally);
            let pass = Pass { mode: &mode, memory, precision, tally, ..Pass::default() };
            let (value, mut more) = loss_and_gradient(&self.decoder, &batch, pass)?;
            seen.losses.push(value / own.len() as f64);
            let share = 1.0 / own.len() as f32;
            more.values_mut().flatten().for_each(|value| *value *= share);
            sum.part(part - own.start, more);
        }
        let mut gradients = sum.finish().unwrap_or_default();
        let (loss, norm) = (seen.loss(), global_norm(&gradients));
        if !(loss.is_finite() && norm.is_finite()) {
            let problem = format!("loss is {loss} and the gradient's norm {norm}");
            let on_failure = self.config.failure.on_failure;
            return Err(TrainError::NotFinite { step, problem, dump: None, on_failure });
        }
        clip_norm(&mut gradients, norm, self.config.optimizer.clip);
        let rate = self.schedule.rate(step);
        self.optimizer.step(&mut self.decoder, &gradients, step, rate);
        drop(gradients);
        self.state.step += 1;
        let is_last = self.state.step == self.steps();
        if is_last || self.state.step.is_multiple_of(self.config.ranks.local_steps) {
            self.end_round(&mut round)?;
            let decision = Seen {
                stop: stop.load(Ordering::Relaxed),
                due: self.minutes_are_over(),
                ..Seen::default()
            };
            let decision = decision.together(&mut self.team)?;
            (self.stopping, self.clock) = (self.stopping || decision.stop, decision.due);
        }
        self.round = Some(round);
        let communication = self.team.take_spent();
        // All parts of a step cost the same.
        let flops = 3 * seen.tally.cost(self.decoder.config()) / own.len() as u64 * parts as u64;
        Ok(StepReport {
            step: self.state.step,
            steps: self.steps(),
            loss,
            gradient_norm: norm,
            rate,
            tokens: self.tokens_per_step(),
            flops,
            skip: None,
            communication: (!self.team.is_alone()).then_some(communication),
            time: started.elapsed(),
        })
    }

    /// The outer step.
    fn end_round(&mut self, round: &mut Round) -> Result<(), TrainError> {
        let (team, division) = (&mut self.team, &self.division);
        let mut moved = Gradients::new();
        let start = &round.start;
        self.decoder.change_parameters(|name, values| {
            let Some(start) = start.get(name) else { return };
            let moves = start.iter().zip(&*values).map(|(start, value)| start - value);
            moved.insert(name.to_owned(), moves.collect());
        });
        let ranks = &self.config.ranks;
        let moved = team::mean(team, division, moved, ranks.wire)?;
        let (rate, momentum) = (ranks.outer_rate as f32, ranks.outer_momentum as f32);
        let slots = self.optimizer.slots_mut();
        self.decoder.change_parameters(|name, values| {
            let found = (moved.get(name), start.get(name), slots.get_mut(name));
            let (Some(moved), Some(start), Some(slot)) = found else { return };
            slot.outer.resize(values.len(), 0.0);
            let each = values.iter_mut().zip(start).zip(moved).zip(&mut slot.outer);
            for (((value, start), moved), outer) in each {
                *outer = momentum * *outer + moved;
                *value = start - rate * (moved + momentum * *outer);
            }
        });
        crate::optim::project(&mut self.decoder);
        team::parameters(team, division, &mut self.decoder)?;
        for part in MEANS {
            let slots = self.optimizer.slots_mut();
            let own = slots.iter_mut().map(|(name, slot)| (name.clone(), part(slot).clone()));
            let own: Gradients = own.filter(|(_, values)| !values.is_empty()).collect();
            let mine = team::mean(team, division, own, Wire::F32)?;
            let theirs = team::to_all(team, division, &mine)?;
            for (name, values) in mine.into_iter().chain(theirs) {
                if let Some(slot) = slots.get_mut(&name) {
                    *part(slot) = values;
                }
            }
        }
        *round = Round::begin(&self.decoder);
        Ok(())
    }
}
