//! NAG's lanes: how far each sub-layer turns the direction, and what the norm does.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, line, reference, site_axis};
use super::error::DiagnoseError;
use super::summary::{LanesSummary, Summary};
use super::sums::{Mean, Spread};
use super::values::{Values, square};
use hadal_data::Batch;
use hadal_model::{Decoder, Pass, PassError, Tokens, Variant};
use hadal_report::figure::{Axis, Figure, Line, Marks, Points};
use hadal_residual::{Place, Recorder, Signal, Site};
use hadal_train::quality::losses;

/// Gains beyond this are large (the spec's measure of a lively branch).
const LARGE_GAIN: f64 = 0.25;

/// Tokens whose temperature is compared with their loss.
const TEMPERATURES: usize = 2048;

/// What was seen of the two lanes.
pub(crate) struct Lanes {
    /// Alpha by sub-layer.
    alphas: Vec<f64>,
    log_gain: f64,
    gains: Vec<Spread>,
    /// Size of the gains, in f64.
    sizes: Vec<Mean>,
    angles: Vec<Spread>,
    growth: Vec<Mean>,
    large: Mean,
    /// Logarithm of the norm before the first sub-layer, for this batch.
    entry: Vec<f64>,
    /// Logarithm of the inverse temperature and loss of single tokens.
    temperatures: Vec<(f64, f64)>,
}

/// The parameters that decide about lanes, if the model has them: alpha of each sub-layer, and the logarithm of the
/// factor on the embedding.
pub(crate) fn parameters(decoder: &Decoder) -> Option<(Vec<f64>, f64)> {
    let is_lane = |name: &str| name == "residual.log_gain";
    if !decoder.declared().iter().any(|declared| is_lane(&declared.name)) {
        return None;
    }
    let sites = 2 * decoder.config().n_layers;
    let (mut alphas, mut log_gain) = (vec![0.0; sites], 0.0);
    for (name, values) in decoder.parameters() {
        let value = f64::from(values.first().copied().unwrap_or_default());
        let site = name.strip_prefix("residual.").and_then(|n| n.strip_suffix(".alpha"));
        if is_lane(&name) {
            log_gain = value;
        } else if let Some(alpha) =
            site.and_then(|site| alphas.get_mut(site.parse::<usize>().ok()?))
        {
            *alpha = value;
        }
    }
    Some((alphas, log_gain))
}

impl Lanes {
    pub(crate) fn new(alphas: Vec<f64>, log_gain: f64) -> Self {
        let sites = alphas.len();
        Self {
            alphas,
            log_gain,
            gains: vec![Spread::default(); sites],
            sizes: vec![Mean::default(); sites],
            angles: vec![Spread::default(); sites],
            growth: vec![Mean::default(); sites],
            large: Mean::default(),
            entry: Vec::new(),
            temperatures: Vec::new(),
        }
    }

    fn sites(&self) -> usize {
        self.alphas.len()
    }

    /// The modulation m = g / alpha of a sub-layer: mean and least.
    fn modulation(&self, site: usize) -> Option<(f64, f64)> {
        let (alpha, gains) = (self.alphas[site], &self.gains[site]);
        let least = if alpha > 0.0 { gains.least()? } else { gains.most()? };
        (alpha != 0.0).then_some((gains.mean()? / alpha, least / alpha))
    }

    /// Mean angle in degrees by which a sub-layer turns the direction.
    pub(crate) fn rotation(&self, site: usize) -> Option<f64> {
        self.angles[site].mean()
    }

    fn correlation(&self) -> Option<f64> {
        let n = self.temperatures.len() as f64;
        let (mut x, mut y) = (0.0, 0.0);
        self.temperatures.iter().for_each(|(s, loss)| (x, y) = (x + s / n, y + loss / n));
        let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
        for (s, loss) in &self.temperatures {
            xy += (s - x) * (loss - y);
            xx += (s - x).powi(2);
            yy += (loss - y).powi(2);
        }
        (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
    }

    fn rotations(&self) -> Line {
        let ends = |get: fn(&Spread) -> Option<f64>| {
            self.angles.iter().map(|spread| get(spread).unwrap_or_default()).collect()
        };
        Line {
            band: Some((ends(Spread::least), ends(Spread::most))),
            ..line("mean rotation", self.angles.iter().map(Spread::mean))
        }
    }
}

/// Logarithm of the inverse temperature and loss of each token of a row.
fn temperatures(
    decoder: &Decoder,
    variant: Variant,
    input: &Tokens,
    target: &Tokens,
) -> Result<Vec<(f64, f64)>, PassError> {
    let mut seen = Recorder::of(&[Signal::LogNorm]);
    let logits = decoder.logits(input, Pass { probe: Some(&mut seen), ..variant.pass() })?;
    let losses = losses(logits, target)?;
    let Some(norms) = seen.get(Place::Out, Signal::LogNorm) else { return Ok(Vec::new()) };
    Ok(Values::of(norms)?
        .all()
        .iter()
        .zip(losses)
        .map(|(&s, loss)| (s.into(), loss.into()))
        .collect())
}

impl Diagnostic for Lanes {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Embedding | Signal::Gain | Signal::LogNorm)
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        let Place::Site(Site { index }) = place else { return };
        match signal {
            Signal::Embedding => {
                let width = values.features() as f64;
                let log = |row: &[f32]| 0.5 * (square(row) / width).ln() + self.log_gain;
                self.entry = values.rows(0).map(log).collect();
            }
            Signal::Gain => {
                for &gain in values.all() {
                    let size = f64::from(gain).abs();
                    self.gains[index].add(gain);
                    self.sizes[index].add(size);
                    self.angles[index].add(size.atan().to_degrees() as f32);
                    self.large.add(f64::from(u8::from(size > LARGE_GAIN)));
                }
            }
            Signal::LogNorm => {
                for (norm, entry) in values.all().iter().zip(&self.entry) {
                    self.growth[index].add((f64::from(*norm) - entry).exp());
                }
            }
            _ => {}
        }
    }

    fn passes(&self) -> usize {
        1
    }

    fn pass(&mut self, _: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let Models { plain: decoder, variant, .. } = models;
        let time = batch.input.time();
        for (row, (input, target)) in
            batch.input.ids().chunks(time).zip(batch.target.ids().chunks(time)).enumerate()
        {
            if self.temperatures.len() >= TEMPERATURES {
                break;
            }
            // A row at a time, because all logits of a row exist at once.
            let found = temperatures(decoder, variant, &Tokens::row(input), &Tokens::row(target))?;
            let counts =
                |at: &usize| batch.scored.get(row * time + at).is_none_or(|&scored| scored);
            let tokens = (0..found.len()).filter(counts).map(|at| found[at]);
            self.temperatures.extend(tokens);
        }
        Ok(())
    }

    fn figures(&self) -> Vec<Figure> {
        let sites = self.sites();
        let modulation = |pick: fn((f64, f64)) -> f64| {
            (0..sites).map(move |site| self.modulation(site).map(pick))
        };
        let gain = Words {
            name: "nag-gain",
            title: "NAG: gains by sub-layer",
            caption: "The gain |alpha m| is the tangent of the angle by which a sub-layer turns the stream; alpha is \
                      learnt for the sub-layer, m between 0 and 1 is decided for each token. A modulation near zero \
                      is a gate that collapsed.",
        }
        .lines(
            site_axis(),
            Axis::new("gain"),
            vec![
                line("mean |gain|", self.sizes.iter().map(Mean::get)),
                line("alpha", self.alphas.iter().copied().map(Some)),
                line("mean m", modulation(|(mean, _)| mean)),
                line("least m", modulation(|(_, least)| least)),
            ],
        );
        let rotation = Words {
            name: "nag-rotation",
            title: "NAG: rotation by sub-layer",
            caption: "Angle arctan |gain| by which each sub-layer turns the direction of the stream: mean over tokens, \
                      and the range of all tokens as a band.",
        }
        .lines(site_axis(), Axis::new("rotation").unit("degrees"), vec![self.rotations()]);
        let growth = Words {
            name: "nag-norm",
            title: "NAG: growth of the norm lane",
            caption: "Norm behind each sub-layer relative to the embedding. It only serves as the temperature of the \
                      answer. Dashed: sub-layers that start at alpha = 1/sqrt(l) with m = 1.",
        }
        .lines(
            site_axis(),
            Axis::new("norm relative to the embedding").log(),
            vec![
                line("measured", self.growth.iter().map(Mean::get)),
                reference("sqrt(l + 1)", (0..sites).map(|site| ((site + 2) as f64).sqrt())),
            ],
        );
        let mut figures = vec![gain, rotation, growth];
        if !self.temperatures.is_empty() {
            let (x, y) = self.temperatures.iter().map(|(s, loss)| ((-s).exp(), *loss)).unzip();
            let series = vec![Points { name: "tokens".into(), x, y, labels: Vec::new() }];
            let words = Words {
                name: "nag-temperature",
                title: "NAG: temperature against loss",
                caption: "Each point is a token: the temperature that the norm lane chose for its logits, and its loss. \
                          A model that knows when it is sure has low temperatures (left) where the loss is low.",
            };
            let x_axis = Axis::new("temperature").log();
            let y_axis = Axis::new("loss of the token").unit("nats");
            figures.push(words.with(x_axis, y_axis, Marks::Points { series }));
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        let rotations: Vec<f64> = (0..self.sites()).filter_map(|s| self.rotation(s)).collect();
        if rotations.is_empty() {
            return;
        }
        summary.lanes = Some(LanesSummary {
            rotation: rotations.iter().sum::<f64>() / rotations.len() as f64,
            large_gains: self.large.get().unwrap_or_default(),
            temperature_correlation: self.correlation(),
        });
    }
}
