//! Attention over depth: a learned query weighs a token's sources, and their mean is read.
//!
//! `weight_i = softmax_i(query . rms(source_i))`, `h = sum_i weight_i source_i`: only the keys are
//! normalised, the values are raw. Used by AttnRes, whose query carries a key gain, and by MGR, whose query is scaled
//! by `1/sqrt(d)`.

use burn::tensor::{Tensor, activation::softmax};
use hadal_kernels::{MOST_POOLED_GROUPS, inverse_rms, pool_sources, rms, takes_cubes};

/// A vector per token that can be pooled.
///
/// It keeps its inverse RMS instead of a normalised copy: a source is read by every later
/// sub-layer, and copies would make memory grow with the square of the depth.
#[derive(Clone, Debug)]
pub struct Source {
    /// `[B, T, d]`
    pub value: Tensor<3>,
    /// None if the value is its own key.
    eps: Option<f64>,
    /// `[B, T, 1]`; none where kernels find it.
    inverse_rms: Option<Tensor<3>>,
}

impl Source {
    /// Makes a vector poolable.
    pub fn new(value: Tensor<3>, eps: f64) -> Self {
        let inverse_rms = (!takes_cubes(&value.device())).then(|| inverse_rms(value.clone(), eps));
        Self { inverse_rms, eps: Some(eps), value }
    }

    /// A source whose value is normalised already: it is its own key.
    pub fn normalised(value: Tensor<3>, eps: f64) -> Self {
        let value = rms(value, eps);
        Self { inverse_rms: None, eps: None, value }
    }

    /// What makes keys of values. `[B, T, 1]`
    fn inverse_rms(&self) -> Tensor<3> {
        let [batch, time, _] = self.value.dims();
        match (&self.inverse_rms, self.eps) {
            (Some(inverse), _) => inverse.clone(),
            (None, Some(eps)) => inverse_rms(self.value.clone(), eps),
            (None, None) => Tensor::ones([batch, time, 1], &self.value.device()),
        }
    }

    /// `query . rms(value)` for each token.
    ///
    /// # Shapes
    /// - `query`: `[d]`
    /// - output: `[B, T, 1]`
    pub fn score(&self, query: Tensor<1>) -> Tensor<3> {
        project(self.value.clone(), query.unsqueeze_dim(1)) * self.inverse_rms()
    }
}

/// What a query reads from its sources.
pub(crate) struct Pooled {
    /// `[B, T, d]`
    pub value: Tensor<3>,
    /// `[B, T, sources]`
    pub weights: Tensor<3>,
}

/// Reads the sources through a query.
///
/// # Shapes
/// - `query`: `[d]`
pub(crate) fn pool(sources: &[Source], query: Tensor<1>) -> Pooled {
    if takes_cubes(&query.device()) {
        return pool_by_kernels(sources, query, 1);
    }
    let scores = sources.iter().map(|source| source.score(query.clone())).collect();
    let weights = softmax(Tensor::cat(scores, 2), 2);
    let value = sources
        .iter()
        .enumerate()
        .map(|(i, source)| source.value.clone() * weights.clone().narrow(2, i, 1))
        .reduce(|sum, part| sum + part)
        .expect("a pool has at least one source");
    Pooled { value, weights }
}

/// Reads the sources through a query whose groups of neighbouring channels each have a softmax of their own. The
/// weights shown are the mean of the groups'.
///
/// # Shapes
/// - `query`: `[d]`
pub(crate) fn pool_in_groups(sources: &[Source], query: Tensor<1>, groups: usize) -> Pooled {
    if groups == 1 {
        return pool(sources, query);
    }
    if groups <= MOST_POOLED_GROUPS && takes_cubes(&query.device()) {
        return pool_by_kernels(sources, query, groups);
    }
    let [batch, time, width] = sources[0].value.dims();
    let grouped = |x: Tensor<3>| x.reshape([batch, time, groups, width / groups]);
    let score = |source: &Source| {
        let product = source.value.clone() * query.clone().unsqueeze();
        grouped(product).sum_dim(3) * source.inverse_rms().unsqueeze_dim(3)
    };
    let weights = softmax(Tensor::cat(sources.iter().map(score).collect(), 3), 3);
    let value = sources
        .iter()
        .enumerate()
        .map(|(i, source)| grouped(source.value.clone()) * weights.clone().narrow(3, i, 1))
        .reduce(|sum, part| sum + part)
        .expect("a pool has at least one source");
    Pooled {
        value: value.reshape([batch, time, width]),
        weights: weights.mean_dim(2).squeeze_dim(2),
    }
}

/// [`pool_in_groups`] as GPUs' kernels take sources.
fn pool_by_kernels(sources: &[Source], query: Tensor<1>, groups: usize) -> Pooled {
    let values: Vec<_> = sources.iter().map(|source| source.value.clone()).collect();
    let (value, weights) = pool_sources(&values, query, groups, sources[0].eps);
    Pooled { value, weights: weights.mean_dim(3).squeeze_dim(3) }
}

/// `x W` without a batched product: `[B, T, d] x [d, m] -> [B, T, m]`.
pub(crate) fn project(x: Tensor<3>, w: Tensor<2>) -> Tensor<3> {
    let [batch, time, width] = x.dims();
    let [_, out] = w.dims();
    x.reshape([batch * time, width]).matmul(w).reshape([batch, time, out])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_near, normal, values};
    use burn::tensor::Device;

    const EPS: f64 = 1e-6;

    fn sources(count: usize) -> Vec<Source> {
        (0..count).map(|i| Source::new(normal(&format!("source.{i}"), [2, 3, 5]), EPS)).collect()
    }

    fn norms(x: Tensor<3>) -> Vec<f32> {
        values(x.square().sum_dim(2).sqrt())
    }

    #[test]
    fn a_zero_query_reads_the_mean() {
        let sources = sources(3);
        let sum = sources.iter().map(|s| s.value.clone()).reduce(|a, b| a + b).unwrap();
        let read = pool(&sources, Tensor::zeros([5], &Device::flex())).value;
        assert_close(read, sum / 3.0, 1e-6);
    }

    #[test]
    fn one_source_is_read_as_it_is() {
        let sources = sources(1);
        let read = pool(&sources, normal("query", [5])).value;
        assert_close(read, sources[0].value.clone(), 1e-6);
    }

    #[test]
    fn weights_are_a_distribution_over_the_sources_of_each_token() {
        let weights = pool(&sources(4), normal("query", [5])).weights;
        assert_eq!(weights.dims(), [2, 3, 4]);
        assert!(values(weights.clone()).iter().all(|&w| w > 0.0));
        assert_near(&values(weights.sum_dim(2)), &[1.0; 6], 1e-6);
    }

    #[test]
    fn a_reading_is_no_longer_than_the_longest_source() {
        let sources = sources(4);
        // Sharp weights, so that the bound is nearly reached somewhere.
        let read = norms(pool(&sources, normal("query", [5]) * 5.0).value);
        let lengths: Vec<_> = sources.iter().map(|s| norms(s.value.clone())).collect();
        for (token, length) in read.iter().enumerate() {
            let longest = lengths.iter().map(|l| l[token]).fold(0.0, f32::max);
            assert!(*length <= longest * (1.0 + 1e-5), "token {token}: {length} > {longest}");
        }
    }

    #[test]
    fn what_kernels_are_held_to_is_the_same_pool() {
        let (query, vectors) =
            (normal("query", [5]), [0, 1, 2].map(|i| normal(&format!("v.{i}"), [2, 3, 5])));
        for groups in [1, 5] {
            for make in [Source::new, Source::normalised] {
                let sources = vectors.clone().map(|v| make(v, EPS));
                let pooled = pool_in_groups(&sources, query.clone(), groups);
                let twin = pool_by_kernels(&sources, query.clone(), groups);
                assert_close(pooled.value, twin.value, 1e-6);
                assert_close(pooled.weights, twin.weights, 1e-6);
            }
        }
    }

    #[test]
    fn a_longer_source_weighs_the_same_and_reads_in_proportion() {
        let query = normal("query", [5]);
        let before = sources(3);
        let mut after = before.clone();
        after[1] = Source::new(before[1].value.clone() * 8.0, EPS);
        let (before_read, after_read) = (pool(&before, query.clone()), pool(&after, query));
        // Only epsilon tells the two apart.
        assert_close(after_read.weights, before_read.weights.clone(), 1e-5);
        let grown = before[1].value.clone() * before_read.weights.narrow(2, 1, 1) * 7.0;
        assert_close(after_read.value, before_read.value + grown, 1e-5);
    }

    #[test]
    fn the_worked_case_gives_its_numbers() {
        let device = Device::flex();
        let query = Tensor::<1>::from_floats([0.7, -0.3], &device);
        let sources = [[1.0, 2.0], [-1.0, 0.5], [0.5, -1.5]]
            .map(|v| Source::new(Tensor::from_floats([[v]], &device), EPS));
        let scores: Vec<_> = sources.iter().flat_map(|s| values(s.score(query.clone()))).collect();
        assert_near(&scores, &[0.063_245_54, -1.075_173_5, 0.715_541_5], 1e-6);
        let Pooled { value, weights } = pool(&sources, query);
        assert_near(&values(weights), &[0.308_616_37, 0.098_857_55, 0.592_526_1], 1e-6);
        assert_near(&values(value), &[0.506_021_86, -0.222_127_62], 1e-6);
    }

    #[test]
    fn gradients_of_query_and_sources_agree_with_central_differences() {
        const SHAPE: [usize; 3] = [1, 2, 3];
        let query = normal("query", [3]);
        let vectors = [normal("a", SHAPE), normal("b", SHAPE), normal("c", SHAPE)];
        let form = normal("form", SHAPE);
        let loss = |query: Tensor<1>, vectors: [Tensor<3>; 3]| {
            let sources = vectors.map(|v| Source::new(v, EPS));
            (pool(&sources, query).value * form.clone()).sum()
        };

        let leaf_query = query.clone().autodiff().require_grad();
        let leaves = vectors.clone().map(|v| v.autodiff().require_grad());
        let gradients = loss(leaf_query.clone(), leaves.clone()).backward();

        let step = 1e-2;
        let slope = |rise: Tensor<1>| rise.into_scalar::<f32>() / (2.0 * step);
        let nudge = |i: usize, count: usize| {
            let mut nudge = vec![0.0; count];
            nudge[i] = step;
            Tensor::<1>::from_floats(nudge.as_slice(), &Device::flex())
        };
        let along_query: Vec<f32> = (0..3)
            .map(|i| {
                let at = |moved| loss(moved, vectors.clone());
                slope(at(query.clone() + nudge(i, 3)) - at(query.clone() - nudge(i, 3)))
            })
            .collect();
        // The step's square and the rounding of f32 over the step cost a few times 1e-4.
        assert_near(&values(leaf_query.grad(&gradients).unwrap()), &along_query, 2e-3);

        for (which, leaf) in leaves.iter().enumerate() {
            let along_source: Vec<f32> = (0..6)
                .map(|i| {
                    let at = |step: Tensor<1>| {
                        let mut moved = vectors.clone();
                        moved[which] = moved[which].clone() + step.reshape(SHAPE);
                        loss(query.clone(), moved)
                    };
                    slope(at(nudge(i, 6)) - at(-nudge(i, 6)))
                })
                .collect();
            assert_near(&values(leaf.grad(&gradients).unwrap()), &along_source, 2e-3);
        }
    }

    #[test]
    fn a_projection_is_the_matrix_product_of_every_token() {
        let (x, w) = (normal("x", [2, 3, 5]), normal("w", [5, 4]));
        let sum_of_products = x.clone().unsqueeze_dim::<4>(3) * w.clone().unsqueeze::<4>();
        assert_close(project(x, w), sum_of_products.sum_dim(2).squeeze_dim(2), 1e-6);
    }
}
