//! Perplexity of a text, counted as llama.cpp's `llama-perplexity` does, so that numbers can be compared: the text is cut
//! into chunks, and the second half of each is scored, where every token has at least half a chunk before it.

use hadal_data::Batch;
use hadal_model::{Decoder, PassError, Tokens, Variant};
use hadal_train::quality::mean_loss;
use serde::Serialize;

/// What to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Tokens of a chunk.
    pub context: usize,
    /// The most chunks that are read.
    pub most: Option<usize>,
    /// What takes the place of each chunk's first token, for models that want it.
    pub begin: Option<u32>,
}

/// Why there is no perplexity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum PerplexityError {
    /// Nothing would be scored.
    #[error("a context of {context} tokens is too short; it must be at least 4")]
    ShortContext { context: usize },
    /// The text does not fill one chunk.
    #[error(
        "the text has {tokens} tokens, fewer than one chunk of {context}; give a longer text or a smaller --context"
    )]
    ShortText { tokens: usize, context: usize },
    /// The model refuses the text.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Mean cross-entropy of the scored tokens, in nats.
    pub loss: f64,
    /// Standard error of the loss, from how chunks differ; none for a single one. llama.cpp takes it from how tokens
    /// differ, as if neighbours were independent, so the two cannot be compared.
    pub loss_error: Option<f64>,
    /// Tokens of a chunk.
    pub context: usize,
    /// Chunks.
    pub chunks: usize,
    /// Scored tokens.
    pub scored: usize,
}

/// Measures a model on a text; tokens after the last whole chunk are not read. `progress` receives the result so far
/// and the number of chunks.
pub fn perplexity(
    decoder: &Decoder,
    variant: Variant,
    ids: &[u32],
    chunks: &Chunks,
    progress: &mut dyn FnMut(&Perplexity, usize),
) -> Result<Perplexity, PerplexityError> {
    let context = chunks.context;
    if context < 4 {
        return Err(PerplexityError::ShortContext { context });
    }
    let all = (ids.len() / context).min(chunks.most.unwrap_or(usize::MAX));
    let mut losses = Vec::new();
    let mut found = Err(PerplexityError::ShortText { tokens: ids.len(), context });
    for chunk in ids.chunks_exact(context).take(all) {
        losses.push(chunk_loss(decoder, variant, chunk, chunks.begin)?);
        let so_far = summary(&losses, context);
        progress(&so_far, all);
        found = Ok(so_far);
    }
    found
}

/// The mean loss of the second half.
fn chunk_loss(
    decoder: &Decoder,
    variant: Variant,
    chunk: &[u32],
    begin: Option<u32>,
) -> Result<f64, PassError> {
    let mut ids = chunk.to_vec();
    if let (Some(first), Some(begin)) = (ids.first_mut(), begin) {
        *first = begin;
    }
    let (input, target) = (&ids[..ids.len() - 1], &ids[1..]);
    let scored: Vec<bool> = (0..input.len()).map(|position| position >= chunk.len() / 2).collect();
    let batch = Batch { input: Tokens::row(input), target: Tokens::row(target), scored };
    mean_loss(decoder, &batch, variant.pass())
}

/// Every chunk scores the same number of tokens, so all means count alike.
fn summary(losses: &[f64], context: usize) -> Perplexity {
    let count = losses.len() as f64;
    let loss = losses.iter().sum::<f64>() / count;
    let squares: f64 = losses.iter().map(|chunk| (chunk - loss).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    Perplexity {
        perplexity: loss.exp(),
        loss,
        loss_error: (losses.len() > 1).then_some(error),
        context,
        chunks: losses.len(),
        scored: losses.len() * (context - 1 - context / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::{Device, Pass, load, negative_log_likelihood};
    use std::path::Path;

    fn stories() -> Decoder {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K");
        load(&path, &Device::flex()).unwrap().decoder
    }

    fn text(count: u32) -> Vec<u32> {
        (0..count).map(|i| 300 + i * i % 97).collect()
    }

    #[test]
    fn the_second_half_of_each_chunk_is_scored() {
        let (decoder, ids) = (stories(), text(50));
        let chunks = Chunks { context: 12, most: Some(3), begin: Some(1) };
        let mut seen = Vec::new();
        let mut told = |so_far: &Perplexity, all: usize| seen.push((so_far.chunks, all));
        let found = perplexity(&decoder, Variant::default(), &ids, &chunks, &mut told).unwrap();
        assert_eq!(seen, [(1, 3), (2, 3), (3, 3)]);
        // Token by token, from whole logits.
        let losses: Vec<f64> = (0..3)
            .map(|chunk| {
                let mut row = ids[12 * chunk..12 * (chunk + 1)].to_vec();
                row[0] = 1;
                let logits = decoder.logits(&Tokens::row(&row[..11]), Pass::default()).unwrap();
                let each = negative_log_likelihood(logits, &Tokens::row(&row[1..]));
                let each: Vec<f32> = each.try_into_vec_as().unwrap();
                each[6..].iter().map(|&loss| f64::from(loss)).sum::<f64>() / 5.0
            })
            .collect();
        let mean = losses.iter().sum::<f64>() / 3.0;
        let spread: f64 = losses.iter().map(|loss| (loss - mean).powi(2)).sum();
        assert!((found.loss - mean).abs() < 1e-5, "{} is not {mean}", found.loss);
        assert!((found.loss_error.unwrap() - (spread / 6.0).sqrt()).abs() < 1e-5);
        assert_eq!((found.scored, found.perplexity), (15, found.loss.exp()));
    }

    #[test]
    fn texts_that_fill_no_chunk_are_refused() {
        let decoder = stories();
        let refused = |count, context| {
            let chunks = Chunks { context, most: None, begin: None };
            perplexity(&decoder, Variant::default(), &text(count), &chunks, &mut |_, _| ())
                .unwrap_err()
                .to_string()
        };
        assert!(refused(11, 12).contains("11 tokens, fewer than one chunk of 12"));
        assert!(refused(11, 3).contains("at least 4"));
        assert!(refused(2000, 1000).contains("max_seq_len is 512"));
    }
}
