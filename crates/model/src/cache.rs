//! Keys and values of the tokens seen so far.
//!
//! Layers only extend their own part; the pass that drives them advances the position once, when every layer has run.
//! So an absent layer cannot stop the clock.

use crate::attention::KeyValue;
use crate::config::ModelConfig;
use burn::tensor::{Tensor, TensorData};
use hadal_kernels::{ReadBackError, SeenRows, SeenTokens, read_back};

/// A decoding state for one batch.
#[derive(Clone, Debug)]
pub struct Cache {
    layers: Vec<Option<Seen>>,
    length: usize,
}

/// What a layer has seen: as tensors, or as a fused attention keeps it.
#[derive(Clone, Debug)]
enum Seen {
    Tensors(Box<SeenTensors>),
    Rows(SeenRows),
}

#[derive(Clone, Debug)]
struct SeenTensors {
    stored: KeyValue,
    /// The positions whose keys exist, row by row; `None` for all.
    present: Option<Vec<Vec<u32>>>,
}

impl Seen {
    fn batch(&self) -> usize {
        match self {
            Self::Tensors(seen) => seen.stored.key.dims()[0],
            Self::Rows(seen) => seen.batch(),
        }
    }
}

impl Cache {
    /// An empty cache; it grows with the text.
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
            Some(stored) if stored.batch() != batch => {
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

    /// Whether a layer's keys are kept by fused operations; `None` if there are none yet.
    pub(crate) fn fused(&self) -> Option<bool> {
        self.layers.iter().flatten().next().map(|seen| matches!(seen, Seen::Rows(_)))
    }

    /// How many tokens of each row have keys in a layer: fewer than were seen, where tokens that skip have none.
    pub(crate) fn keys(&self, layer: usize, batch: usize) -> Vec<usize> {
        match self.layers.get(layer).and_then(Option::as_ref) {
            None => vec![0; batch],
            Some(Seen::Rows(seen)) => seen.lengths().collect(),
            Some(Seen::Tensors(seen)) => match &seen.present {
                Some(rows) => rows.iter().map(Vec::len).collect(),
                None => vec![self.length; batch],
            },
        }
    }

    /// Adds a layer's new keys and values and returns all of them, with the positions that exist. `present` are the
    /// positions of the new ones; `None` for all.
    pub(crate) fn extend(
        &mut self,
        layer: usize,
        new: KeyValue,
        present: Option<Vec<Vec<u32>>>,
    ) -> (KeyValue, Option<Vec<Vec<u32>>>) {
        let time = new.key.dims()[2];
        let total = self.length + time;
        let old = match self.layers[layer].take() {
            None => None,
            Some(Seen::Tensors(old)) => Some(*old),
            Some(Seen::Rows(old)) => {
                Some(SeenTensors { stored: tensors(&old, &new), present: None })
            }
        };
        let (stored, present) = match old {
            None => (new, present),
            Some(SeenTensors { stored, present: before }) => {
                let stored = KeyValue {
                    key: append(stored.key, new.key, self.length),
                    value: append(stored.value, new.value, self.length),
                };
                let present = before.zip(present).map(|(mut rows, new)| {
                    rows.iter_mut().zip(new).for_each(|(row, new)| row.extend(new));
                    rows
                });
                (stored, present)
            }
        };
        let seen = |tensor: &Tensor<4>| tensor.clone().narrow(2, 0, total);
        let all = KeyValue { key: seen(&stored.key), value: seen(&stored.value) };
        let seen = SeenTensors { stored, present: present.clone() };
        self.layers[layer] = Some(Seen::Tensors(Box::new(seen)));
        (all, present)
    }

    /// Lends what a layer has seen to a fused attention, which adds to it.
    pub(crate) fn with_fused(
        &mut self,
        layer: usize,
        attend: impl FnOnce(SeenTokens) -> Tensor<3>,
    ) -> Tensor<3> {
        let lent = self.rows(layer);
        let seen = SeenTokens::new(std::mem::take(lent));
        let out = attend(seen.clone());
        *lent = seen.take();
        out
    }

    /// What a layer has seen, in the form that fused operations keep.
    ///
    /// # Panics
    /// If what plain operations left cannot be read back from its device.
    pub(crate) fn rows(&mut self, layer: usize) -> &mut SeenRows {
        let seen = &mut self.layers[layer];
        if let Some(Seen::Tensors(tensors)) = seen {
            let rows = rows(&tensors.stored, self.length);
            *seen = Some(Seen::Rows(rows.unwrap_or_else(|error| panic!("{error}"))));
        }
        match seen.get_or_insert_with(|| Seen::Rows(SeenRows::default())) {
            Seen::Rows(seen) => seen,
            Seen::Tensors(_) => unreachable!("they have become rows"),
        }
    }

    /// Called by the pass when every layer has seen `time` more tokens.
    pub(crate) fn advance(&mut self, time: usize) {
        self.length += time;
    }
}

/// A pass without fused operations may follow one with them, and vice versa.
fn tensors(seen: &SeenRows, like: &KeyValue) -> KeyValue {
    let [batch, heads, _, width] = like.key.dims();
    let tensor = |values: Vec<f32>| {
        let time = values.len() / (batch * heads * width);
        Tensor::from_data(TensorData::new(values, [batch, heads, time, width]), &like.key.device())
    };
    let (keys, values) = seen.to_vectors();
    KeyValue { key: tensor(keys), value: tensor(values) }
}

fn rows(seen: &KeyValue, length: usize) -> Result<SeenRows, ReadBackError> {
    let [batch, heads, _, width] = seen.key.dims();
    let values = |tensor: &Tensor<4>| read_back(tensor.clone().narrow(2, 0, length));
    let (keys, values) = (values(&seen.key)?, values(&seen.value)?);
    Ok(SeenRows::from_vectors(&keys, &values, [batch, heads, width]))
}

/// Writes `new` after the first `length` entries, doubling the room when it is used up.
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
