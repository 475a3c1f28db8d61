//! A text that grows: the model reads more tokens and says what may come next.

use crate::cache::Cache;
use crate::decoder::Decoder;
use crate::pass::{Pass, PassError, Tokens};
use crate::stepper::Stepper;
use crate::tally::Tally;
use hadal_residual::Site;

/// A model and the text it has read.
///
/// Several tokens at once are a pass through the cache. A single one takes the same way by kernels over slices alone,
/// without tensors and without allocating, wherever a model has that form ([`Writer::steps`]).
#[derive(Debug)]
pub struct Writer<'a> {
    decoder: &'a Decoder,
    absent: Vec<Site>,
    cache: Cache,
    stepper: Option<Stepper>,
    /// Tokens for which there will be room from the first step on.
    expected: usize,
    logits: Vec<f32>,
}

impl<'a> Writer<'a> {
    /// Nothing read yet. `absent` are sub-layers to leave out, besides those that the model leaves out itself, and the text
    /// is `expected` to become so long: if it becomes longer, memory is taken on the way.
    pub fn new(decoder: &'a Decoder, absent: &[Site], expected: usize) -> Result<Self, PassError> {
        decoder.check_absent(absent)?;
        Ok(Self {
            decoder,
            absent: absent.to_vec(),
            cache: Cache::new(decoder.config()),
            stepper: Stepper::new(decoder, absent),
            expected: expected.min(decoder.config().max_seq_len),
            logits: Vec::new(),
        })
    }

    /// Tokens read so far.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether nothing has been read yet.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Whether single tokens are read by kernels over slices alone.
    pub fn steps(&self) -> bool {
        self.stepper.is_some()
    }

    /// Reads more of the text and returns the logits of what comes next.
    pub fn read(&mut self, ids: &[u32], tally: Option<&mut Tally>) -> Result<&[f32], PassError> {
        let Self { decoder, cache, stepper, .. } = self;
        decoder.check(ids, cache.len() + ids.len())?;
        if let (Some(stepper), &[token]) = (stepper, ids) {
            if self.expected > 0 {
                stepper.reserve(cache, std::mem::take(&mut self.expected));
            }
            return Ok(stepper.step(token, decoder.config(), cache, tally));
        }
        let (cache, absent) = (Some(cache), self.absent.as_slice());
        let pass = Pass { cache, absent, only_last: true, tally, ..Pass::default() };
        let logits = decoder.logits(&Tokens::row(ids), pass)?;
        // Reading back from a device can fail; nobody can go on from no logits, and says so.
        self.logits = logits.try_into_vec_as().unwrap_or_default();
        Ok(&self.logits)
    }
}
