//! What a model loses without some of its parts: loss, and how far its predictions move.

use super::course::Course;
use super::error::PruneError;
use super::ledger;
use hadal_data::Batch;
use hadal_kernels::read_back;
use hadal_model::{Decoder, Part, Pass, PassError, Recording};
use hadal_residual::StepMode;
use hadal_train::quality::MOST_LOGITS;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What a cut costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Mean cross-entropy without the parts, in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Mean KL(whole || without) of the predictions, in nats.
    pub kl: f64,
}

/// What several cuts cost on the same data.
#[derive(Debug)]
pub(super) struct Costs {
    /// The whole model.
    pub(super) whole: Cost,
    /// Each cut, or why the policy cannot do without its parts.
    pub(super) cuts: Vec<Result<Cost, String>>,
}

/// Predictions of the whole model on one piece of data.
pub(crate) struct Whole {
    /// `[positions, V]`
    logits: Vec<f32>,
    probabilities: Vec<f32>,
}

impl Whole {
    /// Of these logits.
    pub(crate) fn of(logits: Vec<f32>, vocabulary: usize) -> Self {
        Self { probabilities: probabilities(&logits, vocabulary), logits }
    }

    pub(crate) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// `KL(whole, other)`, summed over the positions that count.
    pub(crate) fn divergence(&self, other: &[f32], batch: &Batch) -> f64 {
        let vocabulary = self.logits.len() / batch.target.ids().len().max(1);
        compare(self, other, batch, vocabulary).kl
    }
}

/// Sums over positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) loss: f64,
    pub(super) kl: f64,
}

impl Sums {
    fn cost(self, positions: usize) -> Cost {
        let mean = |sum: f64| sum / positions.max(1) as f64;
        // Rounding can leave a hair below zero where nothing moved.
        Cost {
            loss: mean(self.loss),
            perplexity: mean(self.loss).exp(),
            kl: mean(self.kl).max(0.0),
        }
    }
}

/// Measures cuts on batches: the data is read once, and the whole model and what all cuts have in common run once on
/// each piece of it. A cut then runs from the first of its own parts on. What the course knows is not measured again.
pub(super) fn measure(
    decoder: &Decoder,
    mode: &StepMode,
    batches: &[Batch],
    cuts: &[Vec<Part>],
    course: &mut Course,
) -> Result<Costs, PruneError> {
    let vocabulary = decoder.config().vocab_size;
    let mut positions = 0;
    let mut whole_sums = Sums::default();
    let mut sums = vec![Ok(Sums::default()); cuts.len()];
    for piece in batches.iter().flat_map(|batch| pieces(batch, vocabulary)) {
        positions += piece.positions();
        let found = measure_piece(decoder, mode, &piece, cuts, course)?;
        whole_sums.loss += found.whole.loss;
        for (sums, more) in sums.iter_mut().zip(found.cuts) {
            match (sums.as_mut(), more) {
                (Ok(sum), Ok(more)) => {
                    sum.loss += more.loss;
                    sum.kl += more.kl;
                }
                (Ok(_), Err(reason)) => *sums = Err(reason),
                (Err(_), _) => {}
            }
        }
    }
    let cuts = sums.into_iter().map(|sums| Ok(sums?.cost(positions))).collect();
    Ok(Costs { whole: whole_sums.cost(positions), cuts })
}

/// Sums over one piece.
struct Found {
    whole: Sums,
    /// Each cut, or why the policy cannot do without its parts.
    cuts: Vec<Result<Sums, String>>,
}

fn measure_piece(
    decoder: &Decoder,
    mode: &StepMode,
    piece: &Batch,
    cuts: &[Vec<Part>],
    course: &mut Course,
) -> Result<Found, PruneError> {
    let vocabulary = decoder.config().vocab_size;
    let name = ledger::name(piece);
    let known: Vec<_> = cuts.iter().map(|cut| course.ledger.get(&name, cut)).collect();
    let whole = course.ledger.get(&name, &[]).and_then(Result::ok);
    if let Some(whole) = whole
        && known.iter().all(Option::is_some)
    {
        course.known(1 + cuts.len());
        return Ok(Found { whole, cuts: known.into_iter().flatten().collect() });
    }
    let mut recording = Recording::default();
    let logits = recorded(decoder, mode, piece, &[], &mut recording)?;
    let whole = Whole::of(logits, vocabulary);
    let whole_sums = compare(&whole, &whole.logits, piece, vocabulary);
    course.ledger.put(&name, &[], &Ok(whole_sums));
    let common = in_common(cuts);
    if !common.is_empty() && cuts.len() > 1 {
        let mut shared = Recording::default();
        match recorded(decoder, mode, piece, &common, &mut shared) {
            Ok(_) => recording = shared,
            // Measuring the cuts will report this.
            Err(PassError::NotAbsent { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    course.passed()?;
    let mut found = Vec::with_capacity(cuts.len());
    for (cut, known) in cuts.iter().zip(known) {
        if let Some(known) = known {
            course.known(1);
            found.push(known);
            continue;
        }
        let sums = match replayed(decoder, mode, piece, cut, &recording) {
            Ok(logits) => Ok(compare(&whole, &logits, piece, vocabulary)),
            Err(PassError::NotAbsent { reason, .. }) => Err(reason.to_owned()),
            Err(error) => return Err(error.into()),
        };
        course.ledger.put(&name, cut, &sums);
        found.push(sums);
        course.passed()?;
    }
    Ok(Found { whole: whole_sums, cuts: found })
}

/// How many passes [`measure`] makes.
pub(super) fn passes(batches: &[Batch], vocabulary: usize, cuts: usize) -> usize {
    batches.iter().map(|batch| pieces(batch, vocabulary).len()).sum::<usize>() * (cuts + 1)
}

/// Parts that every cut has.
fn in_common(cuts: &[Vec<Part>]) -> Vec<Part> {
    let first = cuts.first().into_iter().flatten().copied();
    first.filter(|part| cuts.iter().all(|cut| cut.contains(part))).collect()
}

pub(super) fn logits(
    decoder: &Decoder,
    mode: &StepMode,
    batch: &Batch,
    without: &[Part],
) -> Result<Vec<f32>, PassError> {
    replayed(decoder, mode, batch, without, &Recording::default())
}

fn recorded(
    decoder: &Decoder,
    mode: &StepMode,
    batch: &Batch,
    without: &[Part],
    recording: &mut Recording,
) -> Result<Vec<f32>, PassError> {
    let absent = Part::all_sites(without);
    let pass = Pass { absent: &absent, mode, record: Some(recording), ..Pass::default() };
    values(decoder, batch, pass)
}

fn replayed(
    decoder: &Decoder,
    mode: &StepMode,
    batch: &Batch,
    without: &[Part],
    recording: &Recording,
) -> Result<Vec<f32>, PassError> {
    let absent = Part::all_sites(without);
    let pass = Pass { absent: &absent, mode, replay: Some(recording), ..Pass::default() };
    values(decoder, batch, pass)
}

fn values(decoder: &Decoder, batch: &Batch, pass: Pass) -> Result<Vec<f32>, PassError> {
    Ok(read_back(decoder.logits(&batch.input, pass)?)?)
}

/// A batch in pieces whose logits fit in memory, for the whole model and for one cut.
pub(super) fn pieces(batch: &Batch, vocabulary: usize) -> Vec<Batch> {
    batch.pieces(2 * MOST_LOGITS / vocabulary)
}

/// `ln sum exp`, without overflow.
fn log_sum(row: &[f32]) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from((x - most).exp())).sum();
    f64::from(most) + sum.ln()
}

fn probabilities(logits: &[f32], vocabulary: usize) -> Vec<f32> {
    let mut values = logits.to_vec();
    values.par_chunks_mut(vocabulary).for_each(|row| {
        let log_sum = log_sum(row);
        row.iter_mut().for_each(|x| *x = (f64::from(*x) - log_sum).exp() as f32);
    });
    values
}

/// Sums over the positions that count.
fn compare(whole: &Whole, logits: &[f32], batch: &Batch, vocabulary: usize) -> Sums {
    let rows = logits.par_chunks(vocabulary).enumerate();
    let each = |(position, row): (usize, &[f32])| {
        if batch.scored.get(position) == Some(&false) {
            return Sums::default();
        }
        let at = position * vocabulary..(position + 1) * vocabulary;
        let (full, p) = (&whole.logits[at.clone()], &whole.probabilities[at]);
        let log_sum_here = log_sum(row);
        let target = batch.target.ids()[position] as usize;
        // sum p (ln p - ln q); where rows are equal, all of it cancels exactly.
        let moved: f64 = p
            .iter()
            .zip(full.iter().zip(row))
            .map(|(&p, (&a, &b))| f64::from(p) * (f64::from(a) - f64::from(b)))
            .sum();
        let kl = moved + log_sum_here - log_sum(full);
        Sums { loss: log_sum_here - f64::from(row[target]), kl }
    };
    // In order, so that sums are the same whatever the number of threads.
    let all: Vec<Sums> = rows.map(each).collect();
    all.into_iter().fold(Sums::default(), |sum, more| Sums {
        loss: sum.loss + more.loss,
        kl: sum.kl + more.kl,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::Tokens;

    fn batch(ids: &[u32], scored: &[bool]) -> Batch {
        let tokens = Tokens::row(ids);
        Batch { input: tokens.clone(), target: tokens, scored: scored.to_vec() }
    }

    #[test]
    fn divergence_and_loss_agree_with_a_worked_example() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), both shifted by what a softmax ignores.
        let ln = |x: f64| x.ln() as f32;
        let full = vec![ln(0.5) + 3.0, ln(0.25) + 3.0, ln(0.25) + 3.0];
        let other = vec![ln(0.25) - 7.0, ln(0.25) - 7.0, ln(0.5) - 7.0];
        let whole = Whole::of(full, 3);
        let sums = compare(&whole, &other, &batch(&[2], &[]), 3);
        let expected = 0.5 * 2f64.ln() - 0.25 * 2f64.ln();
        assert!((sums.kl - expected).abs() < 1e-6, "{} is not {expected}", sums.kl);
        assert!((sums.loss - 2f64.ln()).abs() < 1e-6, "{}", sums.loss);
        let same = compare(&whole, &whole.logits, &batch(&[2], &[]), 3);
        assert_eq!(same.kl, 0.0);
        let ignored = compare(&whole, &other, &batch(&[2], &[false]), 3);
        assert_eq!((ignored.kl, ignored.loss), (0.0, 0.0));
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        assert!((log_sum(&[3e38, 3e38]) - 3e38).abs() < 1e32);
        assert_eq!(probabilities(&[3e38, -3e38], 2), [1.0, 0.0]);
    }
}
