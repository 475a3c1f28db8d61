//! What the model loses without a block or a sub-layer: the loss with it absent, minus the loss of the whole model.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, bars, block_categories};
use super::error::DiagnoseError;
use super::summary::{Removal, Summary};
use hadal_data::Batch;
use hadal_model::{Pass, PassError, Recording};
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::Site;
use hadal_train::quality::mean_loss;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A part that is left out, and how the model does without it.
#[derive(Debug, Serialize, Deserialize)]
struct Without {
    #[serde(skip)]
    absent: Vec<Site>,
    /// Sum over positions.
    loss: f64,
    /// Why it cannot be left out.
    refused: Option<String>,
}

/// Losses without each block, attention and MLP.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Removals {
    blocks: usize,
    whole: f64,
    positions: usize,
    /// Three for each block: the block, its attention, its MLP.
    without: Vec<Without>,
    /// What the sub-layers of the whole model return for the present batch.
    #[serde(skip)]
    recording: Option<Recording>,
}

impl Removals {
    pub(crate) fn new(blocks: usize) -> Self {
        let sites = (0..blocks).flat_map(|block| {
            let (attention, mlp) = (Site::new(2 * block), Site::new(2 * block + 1));
            [vec![attention, mlp], vec![attention], vec![mlp]]
        });
        let without = |absent| Without { absent, loss: 0.0, refused: None };
        let without = sites.map(without).collect();
        Self { blocks, whole: 0.0, positions: 0, without, recording: None }
    }

    /// The loss of the whole model.
    pub(crate) fn loss(&self) -> f64 {
        self.whole / self.positions.max(1) as f64
    }

    /// Change of the loss without the block (part 0), its attention (1) or its MLP (2).
    pub(crate) fn change(&self, block: usize, part: usize) -> Option<f64> {
        let without = &self.without[3 * block + part];
        let measured = without.refused.is_none() && self.positions > 0;
        measured.then(|| without.loss / self.positions as f64 - self.loss())
    }

    fn perplexity_change(&self, block: usize, part: usize) -> Option<f64> {
        self.change(block, part).map(|change| (self.loss() + change).exp() - self.loss().exp())
    }
}

impl Diagnostic for Removals {
    fn passes(&self) -> usize {
        self.without.len() + 1
    }

    fn pass(&mut self, index: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let Models { plain: decoder, variant, .. } = models;
        let count = batch.positions();
        let loss = |pass: Pass| Ok(mean_loss(decoder, batch, pass)? * count as f64);
        let record =
            |recording: &mut Recording| loss(Pass { record: Some(recording), ..variant.pass() });
        let Some(without) = index.checked_sub(1) else {
            self.whole += record(self.recording.insert(Recording::default()))?;
            self.positions += count;
            return Ok(());
        };
        // An interrupted batch goes on without its recording.
        if self.recording.is_none() {
            record(self.recording.insert(Recording::default()))?;
        }
        let last = index == self.without.len();
        let without = &mut self.without[without];
        let absent = [variant.absent, &without.absent].concat();
        let replay = self.recording.as_ref();
        match loss(Pass { absent: &absent, replay, ..variant.pass() }) {
            Ok(loss) => without.loss += loss,
            Err(error @ PassError::NotAbsent { .. }) => without.refused = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        if last {
            self.recording = None;
        }
        Ok(())
    }

    fn save(&self) -> Option<Value> {
        serde_json::to_value(self).ok()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(mut saved) = Self::deserialize(saved) else { return false };
        let fits = (saved.blocks, saved.without.len()) == (self.blocks, self.without.len());
        if fits {
            for (saved, own) in saved.without.iter_mut().zip(&mut self.without) {
                saved.absent = std::mem::take(&mut own.absent);
            }
            *self = saved;
        }
        fits
    }

    fn figures(&self) -> Vec<Figure> {
        let series = |get: &dyn Fn(usize, usize) -> Option<f64>| Marks::Bars {
            series: ["block", "attention", "MLP"]
                .into_iter()
                .enumerate()
                .map(|(part, name)| bars(name, (0..self.blocks).map(|block| get(block, part))))
                .collect(),
        };
        let refused = self.without.iter().find_map(|without| without.refused.as_deref());
        let gaps = refused.map_or(String::new(), |why| format!(" Missing bars: {why}."));
        let loss = format!(
            "How much the loss rises when a block, or one of its halves, is left out of the finished model. Bars near \
             zero are parts that do almost nothing.{gaps}"
        );
        let perplexity = format!("The same as a change of perplexity, exp(loss).{gaps}");
        vec![
            Words {
                name: "removal-loss",
                title: "Loss without each block and sub-layer",
                caption: &loss,
            }
            .with(
                block_categories(self.blocks),
                Axis::new("change of the loss").unit("nats"),
                series(&|block, part| self.change(block, part)),
            ),
            Words {
                name: "removal-perplexity",
                title: "Perplexity without each block and sub-layer",
                caption: &perplexity,
            }
            .with(
                block_categories(self.blocks),
                Axis::new("change of the perplexity"),
                series(&|block, part| self.perplexity_change(block, part)),
            ),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        let removal = |block: usize| Removal {
            block,
            loss_change: self.change(block, 0),
            reason: self.without[3 * block].refused.clone(),
        };
        summary.removals = (0..self.blocks).map(removal).collect();
    }
}
