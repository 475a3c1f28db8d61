//! How strongly the loss depends on each block: on its outputs and on its parameters.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, block_axis, line};
use super::error::DiagnoseError;
use super::summary::Summary;
use super::sums::Mean;
use super::values::square;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::take_gradient;
use hadal_model::{Decoder, ModelCost, Pass, PassError};
use hadal_report::figure::{Axis, Figure};
use hadal_residual::{Place, Probe, Signal, Site};
use hadal_train::quality::scalar;
use std::collections::BTreeMap;

/// Gradients by sub-layer and by block.
pub(crate) struct Gradient {
    /// Mean square by sub-layer.
    writes: Vec<Mean>,
    /// Sum over all positions so far.
    parameters: BTreeMap<String, Vec<f32>>,
    positions: usize,
}

impl Gradient {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            writes: vec![Mean::default(); 2 * blocks],
            parameters: BTreeMap::new(),
            positions: 0,
        }
    }

    /// RMS gradient of a block's parameters.
    fn of_block(&self, block: usize) -> Option<f64> {
        let prefix = format!("layers.{block}.");
        let own = self.parameters.iter().filter(|(name, _)| name.starts_with(&prefix));
        let (mut sum, mut count) = (0.0, 0);
        for (_, values) in own {
            sum += square(values);
            count += values.len();
        }
        (count > 0).then(|| (sum / count as f64).sqrt() / self.positions.max(1) as f64)
    }

    fn write(&self, site: usize) -> Option<f64> {
        self.writes.get(site).and_then(Mean::root)
    }
}

/// A zero beside each write: its gradient shows how the loss depends on the write.
#[derive(Default)]
struct Taps(Vec<(Site, Tensor<3>)>);

impl Probe for Taps {
    fn wants(&self, _: Signal) -> bool {
        false
    }

    fn record(&mut self, _: Place, _: Signal, _: Tensor<4>) {}

    fn tap(&mut self, site: Site, output: Tensor<3>) -> Tensor<3> {
        let zero = Tensor::zeros(output.dims(), &output.device()).require_grad();
        self.0.push((site, zero.clone()));
        output + zero
    }
}

/// What may be kept for a backward pass, unless a single row needs more.
pub(crate) const MOST_BYTES: u64 = 512 << 20;

/// Rows that are learnt from at a time: what a backward pass needs is kept until its end.
fn rows_at_a_time(decoder: &Decoder, batch: &Batch) -> usize {
    let time = batch.input.time() as u64;
    let cost = ModelCost::of(decoder.config());
    let row = cost.map_or(0, |cost| cost.activation_bytes_per_token * time).max(1);
    usize::try_from(MOST_BYTES / row).unwrap_or(usize::MAX).clamp(1, batch.input.batch())
}

impl Gradient {
    /// Learns from some rows of a batch. `writes` receives the sum of squares by sub-layer, and their number.
    fn learn(
        &mut self,
        models: Models,
        rows: &Batch,
        writes: &mut [(f64, usize)],
    ) -> Result<(), DiagnoseError> {
        let Models { learning: decoder, variant, .. } = models;
        let mut taps = Taps::default();
        let pass = Pass { probe: Some(&mut taps), ..variant.pass() };
        let loss = decoder.loss(&rows.input, &rows.target, &rows.scored, pass)?;
        let mean = scalar(&loss).map_err(PassError::from)?;
        if !mean.is_finite() {
            return Err(DiagnoseError::NotFinite { loss: mean });
        }
        let positions = rows.positions() as f32;
        let mut gradients = loss.backward();
        for (site, zero) in taps.0 {
            let mut values = take_gradient(&zero, &mut gradients).unwrap_or_default();
            values.iter_mut().for_each(|value| *value *= positions);
            let (sum, count) = &mut writes[site.index];
            *sum += square(&values);
            *count += values.len();
        }
        decoder.each_gradient(gradients, |name, mut values| {
            // Blocks alone: an embedding may be larger than all of them.
            if !name.starts_with("layers.") {
                return;
            }
            match self.parameters.get_mut(name) {
                Some(sum) => {
                    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += positions * value);
                }
                None => {
                    values.iter_mut().for_each(|value| *value *= positions);
                    self.parameters.insert(name.to_owned(), values);
                }
            }
        });
        self.positions += rows.positions();
        Ok(())
    }
}

impl Diagnostic for Gradient {
    fn passes(&self) -> usize {
        1
    }

    fn pass(&mut self, _: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let mut writes = vec![(0.0, 0); self.writes.len()];
        let rows = rows_at_a_time(models.learning, batch);
        let pieces = batch.pieces(rows * batch.input.time());
        // Rows that nothing is asked of teach nothing.
        for piece in pieces.iter().filter(|piece| piece.positions() > 0) {
            self.learn(models, piece, &mut writes)?;
        }
        for (mean, (sum, count)) in self.writes.iter_mut().zip(writes) {
            if count > 0 {
                mean.add(sum / count as f64);
            }
        }
        Ok(())
    }

    fn figures(&self) -> Vec<Figure> {
        let blocks = self.writes.len() / 2;
        let writes = Words {
            name: "gradient-rms",
            title: "Gradient at each block's outputs",
            caption: "Root mean square, over tokens and channels, of how the summed loss changes with what the \
                      attention and the MLP of each block return. If it falls steeply with depth, early blocks \
                      learn from a far stronger signal than late ones; even curves mean that all blocks learn.",
        }
        .lines(
            block_axis(),
            Axis::new("RMS of the gradient").unit("nats per unit").log(),
            vec![
                line("attention output", (0..blocks).map(|block| self.write(2 * block))),
                line("MLP output", (0..blocks).map(|block| self.write(2 * block + 1))),
            ],
        );
        let parameters = Words {
            name: "gradient-rms-parameters",
            title: "Gradient by each block's parameters",
            caption: "Root mean square of the mean loss's gradient over all matrices of a block: how hard plain \
                      gradient descent would pull on it.",
        }
        .lines(
            block_axis(),
            Axis::new("RMS of the gradient").log(),
            vec![line("parameters of the block", (0..blocks).map(|block| self.of_block(block)))],
        );
        vec![writes, parameters]
    }

    fn tell(&self, summary: &mut Summary) {
        let last = self.writes.len().saturating_sub(1);
        summary.gradient_ratio = self.write(1).zip(self.write(last)).map(|(a, b)| a / b);
    }
}
