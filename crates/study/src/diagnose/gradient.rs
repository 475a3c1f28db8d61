//! How strongly the loss depends on each block: on its outputs and on its parameters.

use super::diagnostic::{Backward, Diagnostic};
use super::draw::{Words, block_axis, line};
use super::summary::Summary;
use super::sums::Mean;
use super::values::square;
use hadal_report::figure::{Axis, Figure};
use hadal_residual::Site;
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

impl Diagnostic for Gradient {
    fn wants_gradients(&self) -> bool {
        true
    }

    fn learn(&mut self, backward: &Backward) {
        for (Site { index }, values) in &backward.writes {
            if !values.is_empty() {
                self.writes[*index].add(square(values) / values.len() as f64);
            }
        }
        // Blocks alone: an embedding may be larger than all of them.
        let blocks = backward.parameters.iter().filter(|(name, _)| name.starts_with("layers."));
        for (name, values) in blocks {
            let sum =
                self.parameters.entry(name.clone()).or_insert_with(|| vec![0.0; values.len()]);
            let positions = backward.positions as f32;
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += positions * value);
        }
        self.positions += backward.positions;
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
