//! A run in a few words: its settings before it starts, its result at the end.

use crate::output::{grouped, scaled};
use hadal_data::DataConfig;
use hadal_model::{ModelConfig, ModelCost};
use hadal_train::estimate::Plan;
use hadal_train::optim::HiddenRule;
use hadal_train::{Course, Evaluation, RunConfig, Trainer};
use std::path::Path;

/// Text that is read more often teaches little that is new (Muennighoff et al., arXiv 2305.16264).
const EPOCHS: f64 = 4.0;

/// What a run learns and from how much.
pub(super) struct Summary<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) model: &'a ModelConfig,
    pub(super) seq_len: usize,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    /// Tokens of the data, where their number is known.
    pub(super) data: Option<u64>,
}

impl<'a> Summary<'a> {
    pub(super) fn of(trainer: &'a Trainer) -> Self {
        Self {
            config: trainer.config(),
            model: trainer.model(),
            seq_len: trainer.seq_len(),
            steps: trainer.steps(),
            tokens: trainer.steps() * trainer.tokens_per_step(),
            data: trainer.data_tokens(),
        }
    }

    pub(super) fn planned(config: &'a RunConfig, plan: &'a Plan) -> Self {
        let rows = (config.train.batch * config.train.accumulate) as u64;
        Self {
            config,
            model: &plan.model,
            seq_len: (plan.tokens_per_step / rows.max(1)) as usize,
            steps: plan.steps,
            tokens: plan.tokens,
            data: plan.data,
        }
    }

    /// The settings that matter most, in one line.
    pub(super) fn line(&self) -> String {
        let Self { config, model, seq_len, steps, tokens, .. } = self;
        let parameters = ModelCost::of(model).map_or(0, |cost| cost.parameters.total());
        let passes = match config.train.accumulate {
            1 => String::new(),
            passes => format!("{passes} x "),
        };
        let adamw = config.optimizer.adamw.lr;
        let rates = match config.optimizer.hidden {
            HiddenRule::Adamw => format!("adamw {adamw}"),
            HiddenRule::Muon => format!("muon {}, adamw {adamw}", config.optimizer.muon.lr),
        };
        let start =
            config.from.as_deref().map_or(String::new(), |from| format!("from {}: ", name(from)));
        format!(
            "{start}{} blocks of {}, {} parameters, {}; {}; {} steps of {passes}{} x {seq_len} tokens ({}{}); rates {rates}",
            model.n_layers,
            model.d_model,
            scaled(parameters as f64),
            config.residual,
            source(&config.data),
            grouped((*steps).into()),
            config.train.batch,
            scaled(*tokens as f64),
            self.epochs().map_or(String::new(), |epochs| format!(", {}", counted(epochs))),
        )
    }

    /// How often the data is read, if that is known.
    fn epochs(&self) -> Option<f64> {
        self.data.map(|data| self.tokens as f64 / data.max(1) as f64)
    }

    /// Says that the data is read too often.
    pub(super) fn warning(&self) -> Option<String> {
        let (epochs, data) = (self.epochs().filter(|&epochs| epochs > EPOCHS)?, self.data?);
        Some(format!(
            "the data has {} tokens to learn from, so the run reads it {epochs:.0} times; more text or fewer steps (about \
             {} for {EPOCHS} times) would avoid learning it by heart",
            grouped(data.into()),
            grouped(((self.steps as f64 * EPOCHS / epochs).ceil() as u64).into()),
        ))
    }
}

fn counted(epochs: f64) -> String {
    match epochs {
        few if few < 0.995 => format!("{:.0} % of the data", (100.0 * few).max(1.0)),
        some if some < 9.95 => format!("{some:.1} epochs"),
        many => format!("{many:.0} epochs"),
    }
}

fn source(data: &DataConfig) -> String {
    match (&data.train, &data.text, &data.generated) {
        (Some(directory), ..) => name(directory),
        (_, Some(text), _) => text.name().to_owned(),
        (.., Some(task)) => task.name().to_owned(),
        _ => String::new(),
    }
}

fn name(path: &Path) -> String {
    path.file_name().map_or(path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// One evaluation.
pub(super) fn describe(evaluation: &Evaluation) -> String {
    let mut text =
        format!("held-out loss {:.4}, perplexity {:.3}", evaluation.loss, evaluation.perplexity);
    if let Some(bits) = evaluation.bits_per_byte {
        text += &format!(", {bits:.4} bits per byte");
    }
    if let Some(accuracy) = evaluation.accuracy {
        text += &format!(", accuracy {:.1} %", 100.0 * accuracy);
    }
    if let Some(exact) = evaluation.exact_match {
        text += &format!(", all answers right {:.1} %", 100.0 * exact);
    }
    text
}

/// What a run did to the model that it went on from, if it was measured before.
pub(super) fn healed(course: &Course, evaluation: &Evaluation) -> Option<String> {
    let (before, after) = (course.before?.loss?, evaluation.loss);
    let text = format!("held-out perplexity {:.3} -> {:.3}", before.exp(), after.exp());
    let change = 100.0 * ((after - before).exp() - 1.0);
    if after < before {
        return Some(format!("{text} ({:.1} % lower)", -change));
    }
    let best = course.best.filter(|best| best.step > 0 && best.loss < Some(before));
    let best = match best {
        Some(best) => {
            let perplexity = best.loss.unwrap_or_default().exp();
            format!("it was lowest at step {} ({perplexity:.3})", best.step)
        }
        None => "the model that it started from is better".into(),
    };
    Some(format!(
        "warning: the model got worse: {text} ({change:.1} % higher); {best}: fewer steps, more text or a lower \
         optimizer.adamw.lr may help"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_report::run::EvaluationPoint;

    fn point(step: u64, loss: f64) -> EvaluationPoint {
        EvaluationPoint {
            step,
            loss: Some(loss),
            perplexity: Some(loss.exp()),
            bits_per_byte: None,
            accuracy: None,
            exact_match: None,
        }
    }

    fn ended(loss: f64) -> Evaluation {
        let perplexity = loss.exp();
        Evaluation { loss, perplexity, bits_per_byte: None, accuracy: None, exact_match: None }
    }

    #[test]
    fn a_model_that_got_worse_is_said_to_be_worse() {
        let course = |best| Course {
            losses: None,
            before: Some(point(0, 2.0)),
            best: Some(best),
            ..Course::default()
        };
        let better = healed(&course(point(9, 1.0)), &ended(1.0)).unwrap();
        assert_eq!(better, "held-out perplexity 7.389 -> 2.718 (63.2 % lower)");
        let worse = healed(&course(point(0, 2.0)), &ended(2.1)).unwrap();
        assert!(
            worse.starts_with("warning: the model got worse: held-out perplexity 7.389 -> 8.166")
        );
        assert!(
            worse.contains("10.5 % higher")
                && worse.contains("started from is better: fewer steps, more text"),
            "{worse}"
        );
        let later = healed(&course(point(5, 1.5)), &ended(2.1)).unwrap();
        assert!(later.contains("lowest at step 5 (4.482)"), "{later}");
        assert_eq!(healed(&Course::default(), &ended(1.0)), None);
    }

    #[test]
    fn epochs_are_counted_in_words() {
        assert_eq!(counted(0.001), "1 % of the data");
        assert_eq!(counted(0.5), "50 % of the data");
        assert_eq!(counted(1.0), "1.0 epochs");
        assert_eq!(counted(59.1), "59 epochs");
    }
}
