//! The scores of every part, in one pass over the data.

use super::course::Course;
use super::error::PruneError;
use super::measure::measure;
use super::turns::Turns;
use crate::diagnose::{Diagnostic, Distance, watch};
use hadal_data::Batch;
use hadal_model::{Decoder, Part, Variant};
use hadal_residual::StepMode;
use serde::{Deserialize, Serialize};

/// What is known about one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartScore {
    /// The part, by its number in the original model.
    pub part: Part,
    /// Angular distance that it makes, over the last token of each sequence: 0 to 1.
    pub distance: Option<f64>,
    /// Block Influence, `1 - cos` over all tokens.
    pub influence: Option<f64>,
    /// Change of the loss without it, in nats.
    pub loss_change: Option<f64>,
    /// Change of the perplexity without it.
    pub perplexity_change: Option<f64>,
    /// KL(whole || without it), in nats.
    pub kl: Option<f64>,
    /// Why it cannot be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What is known about all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Loss of the whole model.
    pub loss: f64,
    /// Perplexity of the whole model.
    pub perplexity: f64,
    /// Tokens that were looked at.
    pub tokens: u64,
    /// Three for each block: the block, its attention, its MLP.
    pub parts: Vec<PartScore>,
    /// Angular distance d(l, n) that the n blocks from l on make, `[l][n - 1]`, over last tokens.
    pub distances: Vec<Vec<Option<f64>>>,
    /// The same over all tokens.
    pub distances_of_all_tokens: Vec<Vec<Option<f64>>>,
}

impl Scores {
    /// What is known about a part.
    pub fn of(&self, part: Part) -> Option<&PartScore> {
        self.parts.iter().find(|score| score.part == part)
    }
}

/// The cuts for which [`score`] makes passes over each piece of data, besides the common one.
pub(super) fn cuts(blocks: usize) -> Vec<Vec<Part>> {
    all_parts(blocks).into_iter().map(|part| vec![part]).collect()
}

pub(super) fn all_parts(blocks: usize) -> Vec<Part> {
    (0..blocks)
        .flat_map(|block| [Part::Block(block), Part::Attention(block), Part::Mlp(block)])
        .collect()
}

/// Scores every block, attention and MLP of a model without autodiff.
pub(super) fn score(
    decoder: &Decoder,
    mode: &StepMode,
    batches: &[Batch],
    course: &mut Course,
) -> Result<Scores, PruneError> {
    let blocks = decoder.config().n_layers;
    let (mut turns, mut last, mut all) =
        (Turns::default(), Distance::new(blocks), Distance::of_all_tokens(blocks));
    let mut tokens = 0;
    for batch in batches {
        let mut watchers: [&mut dyn Diagnostic; 3] = [&mut turns, &mut last, &mut all];
        watch(decoder, Variant::in_mode(mode), batch, &mut watchers)?;
        tokens += batch.input.ids().len() as u64;
        course.passed()?;
    }
    let costs = measure(decoder, mode, batches, &cuts(blocks), course)?;
    let whole = costs.whole;
    let parts = all_parts(blocks).into_iter().zip(&costs.cuts).map(|(part, cost)| {
        let measured = cost.as_ref().ok();
        PartScore {
            part,
            distance: turns.distance(part),
            influence: turns.influence(part),
            loss_change: measured.map(|cost| cost.loss - whole.loss),
            perplexity_change: measured.map(|cost| cost.perplexity - whole.perplexity),
            kl: measured.map(|cost| cost.kl),
            refused: cost.as_ref().err().cloned(),
        }
    });
    let map = |distance: &Distance| -> Vec<Vec<Option<f64>>> {
        let row = |from| (1..=blocks - from).map(|n| distance.get(from, n)).collect();
        (0..blocks).map(row).collect()
    };
    Ok(Scores {
        loss: whole.loss,
        perplexity: whole.perplexity,
        tokens,
        parts: parts.collect(),
        distances: map(&last),
        distances_of_all_tokens: map(&all),
    })
}
