//! The contents of a prepared directory, counted token by token.

use super::dataset::ShardSet;
use super::error::DataError;
use super::pieces::SEPARATOR;
use serde::Serialize;
use std::collections::BTreeMap;

/// Counts over all shards.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Tokens, with those after documents.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// How much text a token stands for.
    pub bytes_per_token: f64,
    /// Shards.
    pub shards: usize,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// How many tokens of the vocabulary occur.
    pub used_tokens: usize,
    /// The tokens that occur most, most frequent first.
    pub most_frequent: Vec<TokenCount>,
    /// How long documents are, in tokens without the one that ends them.
    pub document_lengths: DocumentLengths,
}

/// How often a token occurs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenCount {
    /// The token.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// How often it occurs.
    pub count: u64,
    /// Its share of all tokens.
    pub share: f64,
}

/// The distribution of lengths: for each quantile the smallest length that this share does not exceed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DocumentLengths {
    /// The average.
    pub mean: f64,
    /// The shortest.
    pub min: u64,
    /// 10 % are no longer.
    pub p10: u64,
    /// 25 % are no longer.
    pub p25: u64,
    /// Half are no longer.
    pub p50: u64,
    /// 75 % are no longer.
    pub p75: u64,
    /// 90 % are no longer.
    pub p90: u64,
    /// 99 % are no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Reads all tokens and counts; `top` is how many frequent tokens to name. `progress` receives the number of tokens
/// counted since its last call.
pub fn stats(
    set: &ShardSet,
    top: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Stats, DataError> {
    const STRETCH: u64 = 1 << 20;
    let manifest = set.manifest();
    let end_of_text = manifest.tokenizer.end_of_text;
    let mut counts = vec![0u64; manifest.tokenizer.vocab_size];
    let mut lengths = BTreeMap::new();
    let mut length = 0;
    let mut at = 0;
    while at < set.len() {
        let stretch = STRETCH.min(set.len() - at);
        for token in set.read(at, stretch as usize)? {
            counts[token as usize] += 1;
            length += 1;
            if token == end_of_text {
                *lengths.entry(length - 1).or_default() += 1;
                length = 0;
            }
        }
        at += stretch;
        progress(stretch);
    }
    let totals = manifest.totals;
    Ok(Stats {
        tokens: totals.tokens,
        documents: totals.documents,
        bytes: totals.bytes,
        bytes_per_token: totals.bytes as f64 / totals.tokens.max(1) as f64,
        shards: manifest.shards.len(),
        vocab_size: counts.len(),
        used_tokens: counts.iter().filter(|&&count| count > 0).count(),
        most_frequent: most_frequent(set, &counts, top)?,
        document_lengths: distribution(&lengths),
    })
}

fn most_frequent(set: &ShardSet, counts: &[u64], top: usize) -> Result<Vec<TokenCount>, DataError> {
    let tokenizer = set.tokenizer()?;
    let mut ids: Vec<u32> =
        (0..).take(counts.len()).filter(|&id| counts[id as usize] > 0).collect();
    ids.sort_by_key(|&id| (std::cmp::Reverse(counts[id as usize]), id));
    ids.truncate(top);
    let described = ids.into_iter().map(|id| {
        let text = if id == set.manifest().tokenizer.end_of_text {
            SEPARATOR.to_owned()
        } else {
            tokenizer.decode(&[id])?
        };
        let count = counts[id as usize];
        Ok(TokenCount { id, text, count, share: count as f64 / set.len() as f64 })
    });
    described.collect()
}

/// Exact quantiles of numbers that are counted by value.
fn distribution(lengths: &BTreeMap<u64, u64>) -> DocumentLengths {
    let total: u64 = lengths.values().sum();
    let quantile = |share: f64| {
        let rank = (share * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = lengths.iter().find(|&(_, &count)| {
            seen += count;
            seen >= rank
        });
        reached.map_or(0, |(&length, _)| length)
    };
    let sum: f64 = lengths.iter().map(|(&length, &count)| length as f64 * count as f64).sum();
    DocumentLengths {
        mean: sum / total.max(1) as f64,
        min: lengths.keys().next().copied().unwrap_or(0),
        p10: quantile(0.10),
        p25: quantile(0.25),
        p50: quantile(0.50),
        p75: quantile(0.75),
        p90: quantile(0.90),
        p99: quantile(0.99),
        max: lengths.keys().next_back().copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Workshop;
    use super::*;

    #[test]
    fn documents_and_tokens_are_counted_across_shards() {
        let workshop = Workshop::new();
        workshop.write("a.txt", "aaab<|endoftext|>aa<|endoftext|>a");
        let set = workshop.prepared(|options| options.shard_tokens = 4);
        assert!(set.shards().len() > 1);
        let stats = stats(&set, 2, &mut |_| ()).unwrap();
        assert_eq!((stats.tokens, stats.documents, stats.bytes), (10, 3, 7));
        assert_eq!((stats.vocab_size, stats.used_tokens), (257, 3));
        assert_eq!(stats.bytes_per_token, 0.7);
        let frequent: Vec<_> =
            stats.most_frequent.iter().map(|t| (t.id, t.text.as_str(), t.count)).collect();
        assert_eq!(frequent, [(97, "a", 6), (256, "<|endoftext|>", 3)]);
        let lengths = stats.document_lengths;
        assert_eq!((lengths.min, lengths.p50, lengths.max), (1, 2, 4));
        assert_eq!(lengths.mean, 7.0 / 3.0);
    }

    #[test]
    fn quantiles_are_the_smallest_lengths_that_suffice() {
        let lengths = BTreeMap::from([(1, 50), (10, 40), (100, 9), (1000, 1)]);
        let found = distribution(&lengths);
        assert_eq!((found.p10, found.p50, found.p75, found.p90), (1, 1, 10, 10));
        assert_eq!((found.p99, found.max), (100, 1000));
        assert_eq!(distribution(&BTreeMap::new()), DocumentLengths::default());
    }
}
