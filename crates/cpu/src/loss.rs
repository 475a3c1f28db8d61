//! Cross-entropy together with the head: `loss = sum_t share_t (ln sum_v exp(h_t . e_v) - h_t . e_target)`.
//!
//! Logits exist for one chunk of tokens at a time. When gradients are wanted they are computed on the
//! way, because the loss is a scalar: what comes back later only multiplies them.

use crate::buffer::unwritten;
use crate::gemm::{MR, Packed, Scratch, Store, View, multiply, row_pairs, row_tasks};
use crate::linear::{Weight, pack_forward};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::cut_mut;
use crate::simd::exp;
use crate::work;

/// Logits of one chunk: 16 MiB at most, and not fewer than a few rows.
const LOGITS: usize = 1 << 22;

/// The loss with its gradients.
#[derive(Debug)]
pub struct Loss {
    /// The loss.
    pub value: f32,
    /// Of the head's input, `[tokens, width]`; empty unless asked for.
    pub hidden: Vec<f32>,
    /// Of the head, `[vocabulary, width]`; empty unless asked for.
    pub head: Vec<f32>,
}

/// The loss of `hidden`, `[tokens, width]`, under `head`, `[vocabulary, width]`. Each token counts with its
/// share; every target must be below the vocabulary's size.
pub fn cross_entropy(
    hidden: &[f32],
    head: &[f32],
    width: usize,
    targets: &[u32],
    shares: &[f32],
    with_gradients: bool,
    precision: Precision,
) -> Loss {
    let precision = precision.of_rows(targets.len());
    let vocabulary = head.len() / width;
    assert_eq!(head.len(), vocabulary * width, "whole rows");
    assert_eq!(hidden.len(), targets.len() * width, "a target for each token");
    assert_eq!(shares.len(), targets.len(), "a share for each token");
    let passes = if with_gradients { 3 } else { 1 };
    work::add(passes * 2 * hidden.len() * vocabulary);
    let packed = pack_forward(Weight::new(head, width), width, precision);
    let packed_rows =
        with_gradients.then(|| Packed::new(View::rows(head, width), vocabulary, width, precision));
    let chunk = (LOGITS / vocabulary).clamp(64, 2064);
    // SAFETY: each chunk writes all of its logits before it reads them, and its rows of the gradient.
    let new = |length: usize| unsafe { unwritten(length) };
    let mut logits = new(chunk.min(targets.len()) * vocabulary);
    let mut value = 0.0;
    let mut d_hidden = new(if with_gradients { hidden.len() } else { 0 });
    let mut d_head = vec![0.0; if with_gradients { head.len() } else { 0 }];
    let chunks = hidden.chunks(chunk * width).zip(targets.chunks(chunk)).zip(shares.chunks(chunk));
    for (i, ((hidden, targets), shares)) in chunks.enumerate() {
        let logits = &mut logits[..targets.len() * vocabulary];
        // Not by the number of threads: the loss is summed in these parts.
        let rows = (targets.len() / 16).max(1).next_multiple_of(MR);
        let tasks = logits
            .chunks_mut(rows * vocabulary)
            .zip(hidden.chunks(rows * width))
            .zip(targets.chunks(rows).zip(shares.chunks(rows)));
        let parts: Vec<f64> = parallel::map_init(
            tasks,
            Scratch::of_thread,
            |scratch, ((logits, hidden), (targets, shares))| {
                let sizes = [targets.len(), vocabulary, width];
                multiply(
                    sizes,
                    View::rows(hidden, width),
                    &packed,
                    logits,
                    vocabulary,
                    Store::SET,
                    scratch,
                );
                let rows = logits.chunks_exact_mut(vocabulary).zip(targets.iter().zip(shares));
                rows.map(|(logits, (target, share))| {
                    f64::from(*share) * f64::from(row_loss(logits, *target as usize, *share))
                })
                .sum()
            },
        );
        value += parts.iter().sum::<f64>();
        let Some(packed_rows) = &packed_rows else { continue };
        let d_hidden = &mut d_hidden[i * chunk * width..][..hidden.len()];
        let tasks = row_pairs(d_hidden, width, logits, vocabulary, precision);
        parallel::for_each_init(tasks, Scratch::of_thread, |scratch, (d, logits)| {
            let sizes = [d.len() / width, width, vocabulary];
            let logits = View::rows(logits, vocabulary);
            multiply(sizes, logits, packed_rows, d, width, Store::SET, scratch);
        });
        let packed_hidden = Packed::new(View::rows(hidden, width), targets.len(), width, precision);
        let (mut d, mut word) = (d_head.as_mut_slice(), 0);
        let tasks = row_tasks(vocabulary, precision).map(|words| {
            word += words;
            (cut_mut(&mut d, words * width), &logits[word - words..])
        });
        parallel::for_each_init(tasks, Scratch::of_thread, |scratch, (d, logits)| {
            let sizes = [d.len() / width, width, targets.len()];
            let logits = View::transposed(logits, vocabulary);
            multiply(sizes, logits, &packed_hidden, d, width, Store::ADD, scratch);
        });
    }
    Loss { value: value as f32, hidden: d_hidden, head: d_head }
}

simd! {
    /// The loss of a row, which becomes the gradient of its logits.
    fn row_loss(logits: &mut [f32], target: usize, share: f32) -> f32 {
        let mut largest = f32::NEG_INFINITY;
        for chunk in logits.chunks(16) {
            for &logit in chunk {
                largest = if logit > largest { logit } else { largest };
            }
        }
        let chosen = logits[target];
        let mut lanes = [0f32; 16];
        let mut chunks = logits.chunks_exact_mut(16);
        for chunk in &mut chunks {
            for j in 0..16 {
                chunk[j] = exp(chunk[j] - largest);
                lanes[j] += chunk[j];
            }
        }
        let mut sum = crate::simd::total(lanes);
        for logit in chunks.into_remainder() {
            *logit = exp(*logit - largest);
            sum += *logit;
        }
        let scale = share / sum;
        logits.iter_mut().for_each(|logit| *logit *= scale);
        logits[target] -= share;
        largest + sum.ln() - chosen
    }
}

/// `table[id]` for each id, `[ids, width]`.
pub fn embed(table: &[f32], width: usize, ids: &[u32]) -> Vec<f32> {
    let mut rows = Vec::with_capacity(ids.len() * width);
    for &id in ids {
        rows.extend_from_slice(&table[id as usize * width..][..width]);
    }
    rows
}

/// The gradient of the table of [`embed`], of `rows` rows.
pub fn embed_backward(d: &[f32], width: usize, ids: &[u32], rows: usize) -> Vec<f32> {
    let mut table = vec![0.0; rows * width];
    for (d, &id) in d.chunks_exact(width).zip(ids) {
        add_row(&mut table[id as usize * width..][..width], d);
    }
    table
}

simd! {
    fn add_row(sum: &mut [f32], row: &[f32]) {
        crate::simd::add_scaled(sum, 1.0, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_gradient, noise};

    #[derive(Clone)]
    struct Case {
        hidden: Vec<f32>,
        head: Vec<f32>,
        targets: Vec<u32>,
        shares: Vec<f32>,
        width: usize,
    }

    impl Case {
        fn new(tokens: usize, vocabulary: usize, width: usize) -> Self {
            Self {
                hidden: noise("hidden", tokens * width),
                head: noise("head", vocabulary * width).iter().map(|h| 3.0 * h).collect(),
                targets: (0..tokens).map(|t| (t * 7 % vocabulary) as u32).collect(),
                shares: (0..tokens).map(|t| (t % 3) as f32 / tokens as f32).collect(),
                width,
            }
        }

        fn loss(&self) -> f64 {
            let rows = self.hidden.chunks(self.width).zip(self.targets.iter().zip(&self.shares));
            rows.map(|(hidden, (target, share))| {
                let logits: Vec<f64> = self
                    .head
                    .chunks(self.width)
                    .map(|e| e.iter().zip(hidden).map(|(e, h)| f64::from(*e) * f64::from(*h)).sum())
                    .collect();
                let sum: f64 = logits.iter().map(|l| l.exp()).sum();
                f64::from(*share) * (sum.ln() - logits[*target as usize])
            })
            .sum()
        }
    }

    #[test]
    fn the_loss_and_its_gradients_are_those_of_the_definition() {
        // Two thousand and more tokens need two chunks.
        for (tokens, vocabulary, width) in [(1, 3, 5), (70, 37, 6), (2100, 19, 4)] {
            let case = Case::new(tokens, vocabulary, width);
            let of = |gradients| {
                let Case { hidden, head, targets, shares, .. } = &case;
                cross_entropy(hidden, head, width, targets, shares, gradients, Precision::F32)
            };
            let loss = of(true);
            assert!((f64::from(loss.value) - case.loss()).abs() < 1e-5);
            assert_eq!(of(false).value, loss.value);
            assert_gradient(
                "hidden",
                &loss.hidden,
                &case,
                |c: &mut Case| &mut c.hidden,
                Case::loss,
            );
            assert_gradient("head", &loss.head, &case, |c: &mut Case| &mut c.head, Case::loss);
        }
    }

    #[test]
    fn rows_of_a_table_are_taken_and_given_back() {
        let table = noise("table", 4 * 3);
        let ids = [2, 0, 2];
        assert_eq!(embed(&table, 3, &ids), [&table[6..9], &table[0..3], &table[6..9]].concat());
        let d: Vec<f32> = (0..9).map(|i| i as f32).collect();
        let want = [3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 6.0, 8.0, 10.0, 0.0, 0.0, 0.0];
        assert_eq!(embed_backward(&d, 3, &ids, 4), want);
    }
}
