//! Reading a prompt and decoding after it, timed.

use super::error::BenchError;
use super::job::{Job, SkipRate};
use super::protocol::{ContextTimes, DecodeTimes, Work};
use super::skip::let_skip;
use super::tokens::{batch, tokens};
use super::weights::made_up;
use hadal_model::{Decoder, PassError, Precision, Session, Tally, Variant};
use std::time::Instant;

/// Tokens written after each context. The first one is not timed: it makes room in the cache.
pub const DECODED: usize = 9;

/// The lengths of context at which tokens are timed: a quarter, a half and all of `seq`.
pub fn contexts(seq: usize) -> Vec<usize> {
    let mut contexts = vec![(seq / 4).max(1), (seq / 2).max(1), seq];
    contexts.dedup();
    contexts
}

/// A model that writes.
pub(super) struct Decoding {
    decoder: Decoder,
    seq: usize,
    precision: Precision,
    compared: bool,
}

impl Decoding {
    pub(super) fn new(job: &Job) -> Result<Self, BenchError> {
        // There is no training, so nothing is kept for a backward pass.
        let mut decoder = made_up(job, &job.device)?;
        // The prompt that will be read.
        let_skip(&mut decoder, job, &[batch(0, 1, job.seq, job.model.vocab_size)])?;
        let Job { seq, precision, .. } = *job;
        Ok(Self { decoder, seq, precision, compared: job.skip != SkipRate::Unasked })
    }

    /// Reads a prompt of every length, and writes tokens after it.
    pub(super) fn step(&self) -> Result<DecodeTimes, BenchError> {
        let ids = tokens(0, self.seq + DECODED, self.decoder.config().vocab_size);
        let (mut prefill_ms, mut reading, mut writing) = (0.0, None, None);
        let contexts = contexts(self.seq).into_iter().map(|context| {
            let (prompt, rest) = ids.split_at(context);
            let variant = Variant { precision: self.precision, ..Variant::default() };
            let mut session = Session::new(&self.decoder, variant)?;
            session.reserve(context + DECODED);
            let [mut read, mut wrote] = [Tally::default(), Tally::default()];
            // The longest comes last.
            prefill_ms = self.read(prompt, &mut session, &mut read)?;
            let tokens = rest[..DECODED].chunks(1);
            let written = tokens.map(|token| self.read(token, &mut session, &mut wrote));
            let ms = written.skip(1).collect::<Result<_, PassError>>()?;
            let config = self.decoder.config();
            reading = self.compared.then(|| Work::depth(&read, config));
            writing = self.compared.then(|| Work::whole(&wrote, config));
            Ok(ContextTimes { context, ms })
        });
        let contexts = contexts.collect::<Result<_, PassError>>()?;
        Ok(DecodeTimes { prefill_ms, contexts, reading, writing })
    }

    /// Everything that is timed: from tokens to the logits of the next one, in milliseconds.
    fn read(
        &self,
        ids: &[u32],
        session: &mut Session,
        tally: &mut Tally,
    ) -> Result<f64, PassError> {
        let tally = self.compared.then_some(tally);
        let started = Instant::now();
        std::hint::black_box(session.feed(ids, tally)?);
        Ok(1e3 * started.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::job;

    #[test]
    fn contexts_grow_to_the_whole_length() {
        assert_eq!(contexts(256), [64, 128, 256]);
        assert_eq!(contexts(2), [1, 2]);
        assert_eq!(contexts(1), [1]);
    }

    #[test]
    fn every_context_has_its_times() {
        let mut job = job("mgr:streams=2");
        job.model.max_seq_len = job.seq + DECODED;
        let times = Decoding::new(&job).unwrap().step().unwrap();
        assert!(times.prefill_ms > 0.0);
        assert_eq!(times.contexts.iter().map(|c| c.context).collect::<Vec<_>>(), contexts(job.seq));
        for context in &times.contexts {
            assert_eq!(context.ms.len(), DECODED - 1);
            assert!(context.ms.iter().all(|&ms| ms > 0.0));
        }
        assert_eq!((times.reading, times.writing), (None, None));
    }

    #[test]
    fn reading_and_writing_skip_work() {
        let mut job = job("nag");
        job.skip = SkipRate::Rate(0.5);
        job.seq = 64;
        job.model.max_seq_len = job.seq + DECODED;
        let times = Decoding::new(&job).unwrap().step().unwrap();
        let (reading, writing) = (times.reading.unwrap(), times.writing.unwrap());
        assert!((reading.skipped_share - 0.5).abs() < 0.1, "{reading:?}");
        assert!(writing.skipped_share > 0.1 && writing.flop_ratio < 1.0, "{writing:?}");
    }
}
