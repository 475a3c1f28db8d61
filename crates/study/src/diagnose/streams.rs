//! What n streams are used for: how many count, how alike they are, which one leads, and what their mixers do over depth.

use super::diagnostic::Diagnostic;
use super::draw::{Words, line, reference, site_axis};
use super::mixer::{Square, mean_cosine};
use super::spectrum::{effective, participation};
use super::summary::{StreamsSummary, Summary};
use super::sums::{Mean, slot};
use super::values::{Values, square};
use hadal_report::figure::{Axis, Figure, Line};
use hadal_residual::{Place, Signal, Site};

/// Tokens of a batch that are looked at, evenly.
const TOKENS: usize = 256;

/// Means by sub-layer.
type Means = Vec<Mean>;

/// What was seen of streams and mixers.
#[derive(Default)]
pub(crate) struct Streams {
    sites: usize,
    /// Streams that a state has at the most.
    most: usize,
    /// By entropy and by participation, of what is read, written, and of the squared norms.
    counts: [[Means; 2]; 3],
    cosine: Means,
    share: Means,
    /// `[site][stream]`: tokens at which it is the largest.
    leads: Vec<Vec<u64>>,
    from_identity: Means,
    diagonal: Means,
    from_uniform: Means,
    gains: [Means; 2],
    ranks: [Means; 2],
    /// The product of this batch's mixers so far, by token.
    products: Vec<Square>,
}

impl Streams {
    pub(crate) fn new(blocks: usize) -> Self {
        Self { sites: 2 * blocks, ..Self::default() }
    }

    /// Counts how many weights matter, by their magnitude.
    fn count(&mut self, what: usize, site: usize, weights: &[f64]) {
        let sizes = || weights.iter().map(|w| w.abs());
        let found = [effective(sizes()), participation(sizes())];
        for (means, found) in self.counts[what].iter_mut().zip(found) {
            if let Some(found) = found {
                slot(means, site).add(found);
            }
        }
    }

    fn see_streams(&mut self, site: usize, values: &Values) {
        self.most = self.most.max(values.streams());
        if values.streams() < 2 {
            return;
        }
        for token in sample(values) {
            let rows: Vec<&[f32]> = (0..values.streams()).map(|i| values.row(token, i)).collect();
            let squares: Vec<f64> = rows.iter().map(|row| square(row)).collect();
            self.count(2, site, &squares);
            if let Some(cosine) = mean_cosine(&rows) {
                slot(&mut self.cosine, site).add(cosine);
            }
            let all: f64 = squares.iter().sum();
            let largest = squares.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            if let Some((leader, largest)) = largest
                && all > 0.0
                && all.is_finite()
            {
                slot(&mut self.share, site).add(largest / all);
                *slot(slot(&mut self.leads, site), leader) += 1;
            }
        }
    }

    fn see_mixers(&mut self, site: usize, values: &Values) {
        let n = values.streams();
        if n < 2 || values.features() != n {
            return;
        }
        let tokens = sample(values);
        if self.products.first().is_none_or(|product| product.streams() != n) {
            self.products = vec![Square::identity(n); tokens.len()];
        }
        for (i, token) in tokens.into_iter().enumerate() {
            let numbers = (0..n).flat_map(|target| values.row(token, target));
            let mixer = Square::of(n, numbers.map(|&v| f64::from(v)));
            let product = mixer.after(&self.products[i]);
            slot(&mut self.from_identity, site).add(mixer.distance_to_identity());
            slot(&mut self.diagonal, site).add(mixer.diagonal());
            slot(&mut self.from_uniform, site).add(product.distance_to_uniform());
            slot(&mut self.gains[0], site).add(product.forward_gain());
            slot(&mut self.gains[1], site).add(product.backward_gain());
            if let Some(ranks) = product.ranks() {
                slot(&mut self.ranks[0], site).add(ranks.of_values);
                slot(&mut self.ranks[1], site).add(ranks.of_squares);
            }
            self.products[i] = product;
        }
    }

    /// The stream that is largest at most tokens, and the share of tokens at which it is.
    fn leader(&self, site: usize) -> Option<(usize, f64)> {
        let counts = self.leads.get(site)?;
        let all: u64 = counts.iter().sum();
        let (leader, count) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
        (all > 0).then(|| (leader, *count as f64 / all as f64))
    }

    /// The stream that leads at most sub-layers, and at how many of those that were seen.
    fn usual_leader(&self) -> Option<(usize, f64)> {
        let leaders: Vec<usize> =
            (0..self.sites).filter_map(|site| Some(self.leader(site)?.0)).collect();
        let count = |i: usize| leaders.iter().filter(|&&leader| leader == i).count();
        let usual = (0..self.most).max_by_key(|&i| (count(i), std::cmp::Reverse(i)))?;
        (!leaders.is_empty()).then(|| (usual, count(usual) as f64 / leaders.len() as f64))
    }

    fn curve(&self, name: &str, means: &[Mean]) -> Line {
        line(name, (0..self.sites).map(|site| means.get(site).and_then(Mean::get)))
    }

    fn counted(&self) -> Figure {
        let names = ["read", "written", "held"];
        let mut series = Vec::new();
        for (name, [entropy, participation]) in names.iter().zip(&self.counts) {
            for (means, form) in [(entropy, "entropy"), (participation, "participation")] {
                if means.iter().any(|mean| mean.get().is_some()) {
                    series.push(self.curve(&format!("{name}, {form}"), means));
                }
            }
        }
        series.push(reference("all streams", vec![self.most as f64; self.sites]));
        Words {
            name: "streams-effective",
            title: "Effective number of streams",
            caption: "How many streams count at each sub-layer, for what is read (pre), what is written (post) and what they hold \
                      (squared norm): exp(entropy) and participation 1 / sum p^2 of the shares, per token, then the mean. One means that a \
                      single stream does all; negative weights count by their size.",
        }
        .lines(site_axis(), Axis::new("effective number of streams"), series)
    }

    fn alike(&self) -> Vec<Figure> {
        let cosine = Words {
            name: "streams-cosine",
            title: "Cosine between streams",
            caption: "Mean cosine of every two streams behind each sub-layer. At one all streams are copies in \
                      different sizes; near zero they carry different things.",
        }
        .lines(
            site_axis(),
            Axis::new("mean cosine"),
            vec![self.curve("mean over pairs", &self.cosine)],
        );
        let mut series = vec![self.curve("share of the largest stream", &self.share)];
        for stream in 0..self.most {
            let leads = (0..self.sites).map(|site| {
                let counts = self.leads.get(site)?;
                let all: u64 = counts.iter().sum();
                let own = counts.get(stream).copied().unwrap_or_default();
                (all > 0).then(|| own as f64 / all as f64)
            });
            series.push(line(format!("stream {stream} leads (share of tokens)"), leads));
        }
        series.push(reference("even", vec![1.0 / self.most as f64; self.sites]));
        let dominant = Words {
            name: "streams-dominant",
            title: "The dominant stream",
            caption: "Share of the largest stream in the summed squared norm, and how often each stream is the \
                      largest. If the same one leads at every depth, the others are hardly used.",
        }
        .lines(site_axis(), Axis::new("share"), series);
        vec![cosine, dominant]
    }

    fn mixed(&self) -> Vec<Figure> {
        let mixers = Words {
            name: "mixers",
            title: "Mixers: how far from the identity",
            caption: "Distance ||R - I|| of each sub-layer's mixer from the identity (Frobenius) and the mean of its \
                      diagonal. A mixer at the identity mixes nothing.",
        }
        .lines(
            site_axis(),
            Axis::new("distance, diagonal"),
            vec![
                self.curve("distance from the identity", &self.from_identity),
                self.curve("mean of the diagonal", &self.diagonal),
            ],
        );
        let product = Words {
            name: "mixers-product",
            title: "The product of the mixers so far",
            caption: "Of P = R_l .. R_0: distance from the uniform matrix 11^T/n, largest row sum of |P| (gain forward) \
                      and column sum (gain backward). Products of doubly stochastic matrices go to the uniform one, \
                      where all streams are the same; gains far from one grow or fade with depth.",
        }
        .lines(
            site_axis(),
            Axis::new("distance, gain"),
            vec![
                self.curve("distance from uniform", &self.from_uniform),
                self.curve("gain forward", &self.gains[0]),
                self.curve("gain backward", &self.gains[1]),
            ],
        );
        let rank = Words {
            name: "mixers-rank",
            title: "Effective rank of the product of the mixers",
            caption: "exp(entropy) of the singular values' shares (s / sum s), and of their squares' (s^2 / sum s^2), of \
                      P = R_l .. R_0. Both forms are in use. At one nothing of the embedding's place in a stream is left.",
        }
        .lines(
            site_axis(),
            Axis::new("effective rank"),
            vec![
                self.curve("of s", &self.ranks[0]),
                self.curve("of s^2", &self.ranks[1]),
                reference("all streams", vec![self.most as f64; self.sites]),
            ],
        );
        vec![mixers, product, rank]
    }
}

/// Tokens to look at, evenly.
fn sample(values: &Values) -> Vec<usize> {
    let step = values.tokens().div_ceil(TOKENS).max(1);
    (0..values.tokens()).step_by(step).collect()
}

/// The mean of what was measured.
fn overall(means: &[Mean]) -> Option<f64> {
    let found: Vec<f64> = means.iter().filter_map(Mean::get).collect();
    (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
}

impl Diagnostic for Streams {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::PoolWeights | Signal::Gates | Signal::Mixing | Signal::Streams)
    }

    fn end(&mut self) {
        self.products.clear();
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        let Place::Site(Site { index: site }) = place else { return };
        match signal {
            Signal::PoolWeights | Signal::Gates
                if values.streams() > 1 && values.features() == 1 =>
            {
                let what = usize::from(signal == Signal::Gates);
                for token in sample(values) {
                    let weights: Vec<f64> =
                        (0..values.streams()).map(|i| values.row(token, i)[0].into()).collect();
                    self.count(what, site, &weights);
                }
            }
            Signal::Mixing => self.see_mixers(site, values),
            Signal::Streams => self.see_streams(site, values),
            _ => {}
        }
    }

    fn figures(&self) -> Vec<Figure> {
        // Weights of sources alone are no streams.
        if self.most < 2 {
            return Vec::new();
        }
        let mut figures = vec![self.counted()];
        figures.extend(self.alike());
        if !self.from_identity.is_empty() {
            figures.extend(self.mixed());
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        if self.most < 2 {
            return;
        }
        let last = |means: &[Mean]| means.iter().rev().find_map(Mean::get);
        summary.streams = Some(StreamsSummary {
            streams: self.most,
            read: overall(&self.counts[0][0]),
            written: overall(&self.counts[1][0]),
            held: overall(&self.counts[2][0]),
            cosine: last(&self.cosine),
            dominant_share: overall(&self.share),
            leader: self.usual_leader(),
            from_identity: overall(&self.from_identity),
            product_from_uniform: last(&self.from_uniform),
            product_rank: last(&self.ranks[0]).zip(last(&self.ranks[1])),
        });
    }
}
