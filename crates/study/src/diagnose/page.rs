//! A diagnosis as one page: the answer, the evidence, the figures, what to do next.

use super::summary::Summary;
use crate::words::{grouped, quoted};
use hadal_report::figure::Figure;
use hadal_report::page::{Answer, Next};
use std::path::Path;

/// Figures that come first, the most telling at the top.
const FIRST: [&str; 10] = [
    "removal-loss",
    "angular-distance",
    "connectivity",
    "causal-score",
    "reading-turn",
    "write-size",
    "gradient-rms",
    "stream-growth",
    "massive-activations",
    "attention-sink",
];
/// The same numbers as another figure in other units; their files are written, but a page shows nothing twice.
const TWICE: [&str; 1] = ["removal-perplexity"];

/// What a page says besides the numbers.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The models, as they were named.
    pub models: String,
    /// The data, as it was named; the model's own if it was not.
    pub data: Option<String>,
    /// What to do next.
    pub next: Vec<Next>,
}

/// The page of a diagnosis, or of several that are laid over each other.
pub fn page(summaries: &[Summary], figures: &[Figure], context: &Context) -> String {
    let mut figures: Vec<Figure> =
        figures.iter().filter(|figure| !TWICE.contains(&figure.name.as_str())).cloned().collect();
    let rank = |figure: &Figure| FIRST.iter().position(|&name| name == figure.name);
    figures.sort_by_key(|figure| rank(figure).unwrap_or(FIRST.len()));
    let (headline, line, sentences) = match summaries {
        [one] => {
            let verdict = one.verdict();
            let refused = one
                .refused
                .iter()
                .map(|refusal| format!("No {}: {}.", refusal.diagnostic.name(), refusal.reason));
            let sentences = verdict.sentences.into_iter().chain(refused).collect();
            (verdict.headline, about(one, context), sentences)
        }
        several => {
            let of =
                |summary: &Summary| format!("{}: {}.", summary.name, summary.verdict().headline);
            let lines: Vec<String> =
                several.iter().map(|summary| about(summary, context)).collect();
            let same = lines.windows(2).all(|pair| pair[0] == pair[1]);
            let line =
                if same { lines.first().cloned().unwrap_or_default() } else { String::new() };
            let headline = format!("What the blocks of {} models do", several.len());
            (headline, line, several.iter().map(of).collect())
        }
    };
    Answer {
        kicker: format!("hadal diagnose · {}", context.models),
        headline,
        line,
        sentences,
        figures,
        next: context.next.clone(),
        ..Answer::default()
    }
    .html()
}

/// Model, data and loss.
fn about(summary: &Summary, context: &Context) -> String {
    let Summary { residual, blocks, tokens, loss, perplexity, .. } = summary;
    let step = summary.step.map_or(String::new(), |step| format!(", step {step}"));
    let data = context.data.as_deref().unwrap_or("its own held-out data");
    format!(
        "{residual}, {blocks} blocks{step} · loss {loss:.4} (perplexity {perplexity:.3}) on {} tokens of {data}",
        grouped(*tokens)
    )
}

/// What can be done with a model after it was diagnosed.
///
/// `can_skip` says whether its policy lets tokens skip.
pub fn next(summary: &Summary, model: &Path, data: Option<&Path>, can_skip: bool) -> Vec<Next> {
    let model = quoted(model);
    let data = data.map_or(String::new(), |data| format!(" --data {}", quoted(data)));
    let mut next = Vec::new();
    if summary.blocks > 1 {
        let blocks = summary.useless().len().clamp(1, summary.blocks - 1);
        let what = match blocks {
            1 => "Plan a model without its cheapest block".to_owned(),
            blocks => format!("Plan a model without {blocks} blocks, chosen together"),
        };
        next.push(Next::new(what, format!("hadal prune plan {model}{data} --blocks {blocks}")));
    }
    if can_skip && summary.skips.is_none() {
        next.push(Next::new(
            "See what it costs if tokens skip sub-layers",
            format!("hadal skip sweep {model}{data}"),
        ));
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::Removal;

    fn summary() -> Summary {
        let removal = |block| Removal { block, loss_change: Some(0.001), reason: None };
        let removals = (0..3).map(removal).collect();
        Summary { blocks: 3, name: "m".into(), removals, ..Summary::default() }
    }

    #[test]
    fn commands_fit_the_model() {
        let commands = |summary: &Summary, can_skip| -> Vec<String> {
            next(summary, Path::new("runs/a"), Some(Path::new("b.txt")), can_skip)
                .into_iter()
                .map(|n| n.command)
                .collect()
        };
        // One block must stay.
        assert_eq!(
            commands(&summary(), true),
            [
                "hadal prune plan runs/a --data b.txt --blocks 2",
                "hadal skip sweep runs/a --data b.txt"
            ]
        );
        assert_eq!(commands(&summary(), false).len(), 1);
        assert!(commands(&Summary { blocks: 1, ..summary() }, false).is_empty());
    }

    #[test]
    fn the_answer_is_the_title_and_several_models_have_a_sentence_each() {
        let context = Context { models: "a <b>".into(), ..Context::default() };
        let one = page(&[summary()], &[], &context);
        assert!(one.contains("<h1>3 of 3 blocks hardly matter"), "{one}");
        assert!(one.contains("a &lt;b&gt;") && one.contains("held-out data"));
        let two = page(&[summary(), Summary { name: "n".into(), ..summary() }], &[], &context);
        assert!(two.contains("What the blocks of 2 models do") && two.contains("n: 3 of 3 blocks"));
    }
}
