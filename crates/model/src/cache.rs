//! Keys and values of the tokens seen so far.
//!
//! Layers only extend their own part; the pass that drives them advances the position once, when
//! every layer has run. So a layer that is absent cannot stop the clock.

use crate::attention::KeyValue;
use crate::config::ModelConfig;
use burn::tensor::Tensor;

/// A decoding state for one batch.
#[derive(Clone, Debug)]
pub struct Cache {
    layers: Vec<Option<KeyValue>>,
    length: usize,
}

impl Cache {
    /// Empty; it grows with the text.
    pub fn new(config: &ModelConfig) -> Self {
        Self { layers: vec![None; config.n_layers], length: 0 }
    }

    /// Tokens seen so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing has been seen yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.layers.fill(None);
        self.length = 0;
    }

    /// Whether a pass over this many rows, with these layers' attention present, continues what the
    /// cache holds. `None` if it does, or else the reason.
    pub(crate) fn mismatch(
        &self,
        layers: usize,
        batch: usize,
        present: impl Fn(usize) -> bool,
    ) -> Option<&'static str> {
        if self.layers.len() != layers {
            return Some("it was made for a model of another depth");
        }
        if self.length == 0 {
            return None;
        }
        self.layers.iter().enumerate().find_map(|(layer, stored)| match stored {
            Some(stored) if stored.key.dims()[0] != batch => {
                Some("it was filled with another number of rows")
            }
            Some(_) if !present(layer) => {
                Some("it was filled with an attention that is now absent")
            }
            None if present(layer) => {
                Some("it was filled without an attention that is now present")
            }
            _ => None,
        })
    }

    /// Adds a layer's new keys and values and returns all of them.
    pub(crate) fn extend(&mut self, layer: usize, new: KeyValue) -> KeyValue {
        let time = new.key.dims()[2];
        let total = self.length + time;
        let stored = match self.layers[layer].take() {
            None => new,
            Some(old) => KeyValue {
                key: append(old.key, new.key, self.length),
                value: append(old.value, new.value, self.length),
            },
        };
        let seen = |tensor: &Tensor<4>| tensor.clone().narrow(2, 0, total);
        let all = KeyValue { key: seen(&stored.key), value: seen(&stored.value) };
        self.layers[layer] = Some(stored);
        all
    }

    /// Called by the pass when every layer has seen `time` more tokens.
    pub(crate) fn advance(&mut self, time: usize) {
        self.length += time;
    }
}

/// Writes `new` behind the first `length` entries, doubling the room when it is used up.
fn append(room: Tensor<4>, new: Tensor<4>, length: usize) -> Tensor<4> {
    let [batch, heads, capacity, width] = room.dims();
    let total = length + new.dims()[2];
    let room = if total <= capacity {
        room
    } else {
        let more = total.max(2 * capacity) - length;
        let empty = Tensor::zeros([batch, heads, more, width], &new.device());
        Tensor::cat(vec![room.narrow(2, 0, length), empty], 2)
    };
    room.slice_assign([0..batch, 0..heads, length..total, 0..width], new)
}
