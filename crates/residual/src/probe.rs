//! Watching a traversal from outside, so that diagnosis needs no second forward pass.

use crate::site::Site;
use crate::traversal::Traversal;
use burn::tensor::Tensor;

/// A quantity that a traversal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// The embedding, before anything is read; seen at the first site. `[B, T, 1, d]`
    Embedding,
    /// What the sub-layer reads, before its norm; at [`Place::Out`] the read-out before the final norm. `[B, T, 1, d]`
    Reading,
    /// What an attention makes keys and values of, and what its write is added to if that is none of these, before
    /// norms: where they are not what its queries read, which is [`Signal::Reading`]. `[B, T, 2 or 3, d]`
    Ways,
    /// What the sub-layer returned. `[B, T, 1, d]`
    Write,
    /// How much of the write each stream takes. `[B, T, n, 1]`, or `[B, T, 1, d]` for a gate per channel
    Gates,
    /// Weights of the sources that were mixed into the reading. `[B, T, n, 1]`
    PoolWeights,
    /// How old streams become new ones, `[target, source]`. `[B, T, n, n]`
    Mixing,
    /// The streams after the write. `[B, T, n, d]`
    Streams,
    /// What stands between two blocks, where that is not what the next one reads, see
    /// [`Residual::between`](crate::Residual::between); at the block's attention, be it absent or not, and at
    /// [`Place::Out`] behind the last block. `[B, T, n, d]`
    Between,
    /// NAG: tangent of the rotation that this sub-layer applies. `[B, T, 1, 1]`
    Gain,
    /// NAG: logarithm of the stream's norm. `[B, T, 1, 1]`
    LogNorm,
    /// One where the token skipped the sub-layer, else zero. `[B, T, 1, 1]`
    Skipped,
    /// Mixture-of-Depths: one where the predictor agrees with the router's choice, else zero. `[B, T, 1, 1]`
    Agreement,
    /// How much of its attention each head gives to the first token. `[B, T, heads, 1]`
    FirstToken,
}

impl Signal {
    /// Every signal.
    pub const ALL: [Self; 14] = [
        Self::Embedding,
        Self::Reading,
        Self::Ways,
        Self::Write,
        Self::Gates,
        Self::PoolWeights,
        Self::Mixing,
        Self::Streams,
        Self::Between,
        Self::Gain,
        Self::LogNorm,
        Self::Skipped,
        Self::Agreement,
        Self::FirstToken,
    ];
}

/// Where a signal was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// At a sub-layer.
    Site(Site),
    /// At the read-out before the head.
    Out,
}

/// A watcher. Signals that it does not want are never computed.
pub trait Probe {
    /// Whether [`Probe::record`] should be called for this signal.
    fn wants(&self, signal: Signal) -> bool;

    /// Receives a signal.
    ///
    /// # Shapes
    /// - `value`: `[batch, time, streams, features]`, see [`Signal`]
    fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>);

    /// What goes on as a sub-layer's output: the output itself, or the output plus a zero whose gradient shows how the
    /// loss depends on it.
    ///
    /// # Shapes
    /// - `output` and what is returned: `[batch, time, features]`
    fn tap(&mut self, _site: Site, output: Tensor<3>) -> Tensor<3> {
        output
    }

    /// Whether [`Probe::steer`] changes anything. The traversal then goes step by step, as if it were watched.
    fn steers(&self) -> bool {
        false
    }

    /// What the policy goes on with in place of something it computed: a signal that policies with streams let a probe
    /// change, which is [`Signal::PoolWeights`], [`Signal::Gates`], [`Signal::Mixing`] or [`Signal::Streams`]. Signals
    /// are shown as they were steered.
    ///
    /// # Shapes
    /// - `value` and what is returned: those of the [`Signal`]
    fn steer(&mut self, _place: Place, _signal: Signal, value: Tensor<4>) -> Tensor<4> {
        value
    }
}

/// Keeps every signal of the wanted kinds.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    wanted: Vec<Signal>,
    /// What was seen, in the order of the traversal.
    pub seen: Vec<(Place, Signal, Tensor<4>)>,
}

impl Recorder {
    /// A recorder of these signals.
    pub fn of(wanted: &[Signal]) -> Self {
        Self { wanted: wanted.to_vec(), seen: Vec::new() }
    }

    /// The first value seen of a signal at a place.
    pub fn get(&self, place: Place, signal: Signal) -> Option<Tensor<4>> {
        self.seen
            .iter()
            .find(|(p, s, _)| *p == place && *s == signal)
            .map(|(_, _, value)| value.clone())
    }
}

impl Probe for Recorder {
    fn wants(&self, signal: Signal) -> bool {
        self.wanted.contains(&signal)
    }

    fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>) {
        self.seen.push((place, signal, value));
    }
}

/// Records a signal of one vector per token if the probe wants it.
///
/// # Shapes
/// - value: `[batch, time, features]`, recorded as one stream
pub(crate) fn show(
    traversal: &mut Traversal,
    place: Place,
    signal: Signal,
    value: impl FnOnce() -> Tensor<3>,
) {
    show_streams(traversal, place, signal, || value().unsqueeze_dim(2));
}

/// Records a signal of one number per stream and token if the probe wants it.
///
/// # Shapes
/// - value: `[batch, time, streams]`
pub(crate) fn show_per_stream(
    traversal: &mut Traversal,
    place: Place,
    signal: Signal,
    value: impl FnOnce() -> Tensor<3>,
) {
    show_streams(traversal, place, signal, || value().unsqueeze_dim(3));
}

/// What the probe makes of one number per stream and token.
///
/// # Shapes
/// - `value` and output: `[batch, time, streams]`
pub(crate) fn steer_per_stream(
    traversal: &mut Traversal,
    place: Place,
    signal: Signal,
    value: Tensor<3>,
) -> Tensor<3> {
    match traversal.steers() {
        true => traversal.steer(place, signal, value.unsqueeze_dim(3)).squeeze_dim(3),
        false => value,
    }
}

/// Records a signal that already has its stream axis if the probe wants it.
pub(crate) fn show_streams(
    traversal: &mut Traversal,
    place: Place,
    signal: Signal,
    value: impl FnOnce() -> Tensor<4>,
) {
    if traversal.wants(signal) {
        traversal.record(place, signal, value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::ResidualConfig;
    use crate::testing::{Stand, dimensions, drawn, normal, values, watching};
    use crate::weights::Weights;
    use burn::tensor::Device;

    /// What four hyper-connected streams come to when a probe is at work.
    fn run(probe: &mut Thief) -> Vec<f32> {
        let dimensions = dimensions(4, 2);
        let config: ResidualConfig = "hc".parse().unwrap();
        let mut at = |name: &str, shape: &[usize]| Some(drawn(name, shape));
        let policy = config.init(&dimensions, &mut Weights::stored(&mut at, &Device::flex()));
        let embedding = normal("embedding", [1, 2, 4]);
        values(policy.traverse(embedding, &mut Stand::new(&dimensions), &mut watching(probe)))
    }

    /// Takes the streams away behind a site, and watches.
    struct Thief {
        site: usize,
        seen: Recorder,
    }

    impl Probe for Thief {
        fn wants(&self, signal: Signal) -> bool {
            self.seen.wants(signal)
        }

        fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>) {
            self.seen.record(place, signal, value);
        }

        fn steers(&self) -> bool {
            true
        }

        fn steer(&mut self, place: Place, signal: Signal, value: Tensor<4>) -> Tensor<4> {
            match (place, signal) {
                (Place::Site(Site { index }), Signal::Streams) if index == self.site => value * 0.0,
                _ => value,
            }
        }
    }

    #[test]
    fn what_is_steered_flows_on_and_is_what_is_shown() {
        let mut thief = Thief { site: 3, seen: Recorder::of(&[Signal::Streams]) };
        assert!(run(&mut thief).iter().all(|x| *x == 0.0));
        let last = thief.seen.get(Place::Site(Site::new(3)), Signal::Streams).unwrap();
        assert!(values(last).iter().all(|x| *x == 0.0));
        let mut nobody = Thief { site: 9, seen: Recorder::of(&[Signal::Streams]) };
        assert!(run(&mut nobody).iter().any(|x| *x != 0.0));
    }

    #[test]
    fn a_probe_that_steers_needs_to_want_nothing() {
        let mut thief = Thief { site: 3, seen: Recorder::default() };
        assert!(run(&mut thief).iter().all(|x| *x == 0.0));
    }
}
