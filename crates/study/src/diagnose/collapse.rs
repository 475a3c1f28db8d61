//! Token collapse: how many directions the tokens of a sequence still span at each depth.
//!
//! From the singular values s of the matrix [T, d] of what a sub-layer reads, before its norm: the stable rank
//! `sum s^2 / s_1^2`, `exp(entropy of s^2 / sum s^2)`, and `sum s / sqrt(sum s^2)`. Where all of them go to one, all tokens
//! of a text have become the same vector. As in DepthBench's code.

use super::diagnostic::Diagnostic;
use super::draw::{Words, line, place_index};
use super::spectrum::{Ranks, singular_values};
use super::summary::Summary;
use super::sums::Mean;
use super::values::Values;
use hadal_data::Batch;
use hadal_report::figure::{Axis, Figure};
use hadal_residual::{Place, Signal};
use serde::{Deserialize, Serialize};

/// Sequences that are looked at, at most so many of a batch.
const SEQUENCES: usize = 16;
const OF_A_BATCH: usize = 4;
/// Tokens of a sequence: an eigenvalue problem grows with their cube.
const TOKENS: usize = 256;
/// Tokens have collapsed if they span less than this share of what they spanned at first.
const COLLAPSED: f64 = 0.25;

/// How many directions the tokens span, by three measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenRanks {
    /// `sum s^2 / s_1^2`
    pub stable: f64,
    /// `exp(entropy of s^2 / sum s^2)`
    pub entropy: f64,
    /// `sum s / sqrt(sum s^2)`
    pub ratio: f64,
}

/// Where the tokens begin and where they end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollapseSummary {
    /// What the first sub-layer reads.
    pub first: TokenRanks,
    /// What the head reads.
    pub last: TokenRanks,
    /// The reader at which the entropy rank is least (sub-layers, then the head), and that rank.
    pub least: (usize, f64),
}

impl CollapseSummary {
    /// A sentence without its full stop, and whether it stands out.
    pub(crate) fn sentence(&self) -> (String, bool) {
        let Self { first, last, least: (_, least) } = self;
        let words = format!(
            "The tokens of a sequence span {:.1} directions at the embedding, {:.1} at the head and {least:.1} where they \
             are most alike (entropy of squared singular values)",
            first.entropy, last.entropy
        );
        let collapsed = last.entropy < COLLAPSED * first.entropy;
        (if collapsed { format!("Tokens collapse: {}", lower(&words)) } else { words }, collapsed)
    }
}

fn lower(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

/// Ranks by reader.
pub(crate) struct Collapse {
    sites: usize,
    sequences: usize,
    /// Sequences of this batch that are looked at.
    here: usize,
    /// Stable rank, entropy rank and ratio.
    ranks: [Vec<Mean>; 3],
}

impl Collapse {
    pub(crate) fn new(blocks: usize) -> Self {
        let sites = 2 * blocks;
        let none = || vec![Mean::default(); sites + 1];
        Self { sites, sequences: 0, here: 0, ranks: [none(), none(), none()] }
    }

    fn at(&self, reader: usize) -> Option<TokenRanks> {
        let [stable, entropy, ratio] = [0, 1, 2].map(|i| self.ranks[i][reader].get());
        Some(TokenRanks { stable: stable?, entropy: entropy?, ratio: ratio? })
    }
}

impl Diagnostic for Collapse {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::Reading
    }

    fn begin(&mut self, batch: &Batch) {
        self.here = batch.input.batch().min(OF_A_BATCH).min(SEQUENCES - self.sequences);
        self.sequences += self.here;
    }

    fn see(&mut self, place: Place, _: Signal, values: &Values) {
        let reader = place_index(place, self.sites);
        let (time, width) = (values.time(), values.features());
        let tokens = time.min(TOKENS);
        for sequence in 0..self.here {
            let rows = (0..tokens).flat_map(|token| values.row(sequence * time + token, 0));
            let matrix: Vec<f64> = rows.map(|&value| f64::from(value)).collect();
            let found = Ranks::of(&singular_values(&matrix, tokens, width));
            if let Some(Ranks { stable, of_squares, ratio, .. }) = found {
                for (means, rank) in self.ranks.iter_mut().zip([stable, of_squares, ratio]) {
                    means[reader].add(rank);
                }
            }
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let curve = |name: &str, i: usize| line(name, self.ranks[i].iter().map(Mean::get));
        if self.ranks[0].iter().all(|mean| mean.get().is_none()) {
            return Vec::new();
        }
        let caption = format!(
            "How many directions the tokens of a sequence span in what each sub-layer (last: the head) reads, from the \
             singular values s of its matrix [tokens, channels]; mean over {} sequences. Curves that fall to one are \
             tokens that become the same.",
            self.sequences
        );
        vec![
            Words { name: "token-rank", title: "Directions that tokens span", caption: &caption }
                .lines(
                    Axis::new("reader (attention of block i is 2i, its MLP 2i + 1)"),
                    Axis::new("rank").log(),
                    vec![
                        curve("exp(entropy of s^2)", 1),
                        curve("sum s^2 / s_1^2", 0),
                        curve("sum s / sqrt(sum s^2)", 2),
                    ],
                ),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        let all = (0..=self.sites).filter_map(|reader| Some((reader, self.at(reader)?.entropy)));
        let least = all.min_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some(first), Some(last), Some(least)) = (self.at(0), self.at(self.sites), least) {
            summary.collapse = Some(CollapseSummary { first, last, least });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};
    use hadal_model::Tokens;
    use hadal_residual::Site;

    /// The spec's three tokens, and one of which all tokens are multiples.
    #[test]
    fn ranks_of_the_spec_and_of_collapsed_tokens() {
        let tokens = Tokens::row(&[0, 1, 2]);
        let batch = Batch { input: tokens.clone(), target: tokens, scored: Vec::new() };
        let mut collapse = Collapse::new(1);
        collapse.begin(&batch);
        let mut show = |place, values: [[f32; 3]; 3]| {
            let values = Tensor::<2>::from_floats(values, &Device::flex()).reshape([1, 3, 1, 3]);
            collapse.see(place, Signal::Reading, &Values::of(values).unwrap());
        };
        show(Place::Site(Site::new(0)), [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 3.0]]);
        show(Place::Out, [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [-1.0, -2.0, 0.0]]);
        let mut summary = Summary::default();
        collapse.tell(&mut summary);
        let CollapseSummary { first, last, least } = summary.collapse.unwrap();
        for (found, expected) in [
            (first.stable, 2.1111111),
            (first.entropy, 2.3699238),
            (first.ratio, 1.6059101),
            (last.stable, 1.0),
            (last.entropy, 1.0),
            (last.ratio, 1.0),
        ] {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        assert_eq!(least.0, 2);
        let (words, stands_out) = summary.collapse.unwrap().sentence();
        // 1 of 2.37 is more than a quarter.
        assert!(!stands_out && words.contains("2.4 directions at the embedding, 1.0 at the head"));
    }
}
