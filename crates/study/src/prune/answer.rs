//! A plan as an answer: what can go and what it costs, for how much, why, and what to do next.

use super::apply::undo;
use super::figures::{AS_PARTS_GO, figures};
use super::halves::MeasuredOn;
use super::plan::Plan;
use super::scores::PartScore;
use crate::words::{change, grouped, listed, quoted, rounded, scaled, sentence};
use hadal_model::Part;
use hadal_report::figure::Figure;
use hadal_report::page::{Answer, Next};
use std::path::Path;

/// Perplexity that rises by less than this share is hardly worth a word.
const LITTLE: f64 = 0.01;
/// By more, and it is another model.
const MUCH: f64 = 0.25;
/// Fewer tokens tell perplexities only roughly.
const FEW: u64 = 10_000;

/// The answer of a plan that is in `file`.
pub fn answer(plan: &Plan, file: &Path) -> Answer {
    let name = plan.source.path.file_name().unwrap_or(plan.source.path.as_os_str());
    Answer {
        kicker: format!("hadal prune plan · {}", name.display()),
        headline: headline(plan),
        line: line(plan, &name.display().to_string()),
        sentences: sentences(plan),
        figures: figures(plan).into_iter().filter(|figure| shown(plan, figure)).collect(),
        next: next(plan, file),
        ..Answer::default()
    }
}

/// A curve of two points is what the headline says.
fn shown(plan: &Plan, figure: &Figure) -> bool {
    plan.chosen.len() > 1 || !AS_PARTS_GO.contains(&figure.name.as_str())
}

/// `blocks 14 and 12`.
fn named(parts: &[Part]) -> String {
    let all_blocks = parts.iter().all(|part| matches!(part, Part::Block(_)));
    let name = |part: &Part| match part {
        Part::Block(block) => block.to_string(),
        Part::Attention(block) => format!("the attention of block {block}"),
        Part::Mlp(block) => format!("the MLP of block {block}"),
    };
    let names = listed(&parts.iter().map(name).collect::<Vec<_>>());
    match (all_blocks, parts.len()) {
        (true, 1) => format!("block {names}"),
        (true, _) => format!("blocks {names}"),
        (false, _) => names,
    }
}

fn rise(plan: &Plan) -> f64 {
    plan.outcome.cut.perplexity / plan.outcome.whole.perplexity - 1.0
}

fn headline(plan: &Plan) -> String {
    let (outcome, memory) = (&plan.outcome, &plan.memory);
    if plan.chosen.is_empty() {
        return "Nothing goes: the budget is smaller than one part".into();
    }
    let what = named(&plan.chosen);
    let verdict = match rise(plan) {
        rise if rise <= LITTLE => format!("{} can go at hardly any cost", sentence(&what)),
        rise if rise <= MUCH => format!("{} can go", sentence(&what)),
        // Also if it is not a number.
        _ => format!("Without {what} the model is much worse"),
    };
    let stays = 100.0 * memory.parameters_after as f64 / memory.parameters_before as f64;
    let reading = plan.speed.reading();
    let reading =
        reading.map_or(String::new(), |share| format!(", reading takes {share} of the time"));
    format!(
        "{verdict}: perplexity {} becomes {} ({}), {stays:.0} % of the parameters stay{reading}",
        rounded(outcome.whole.perplexity),
        rounded(outcome.cut.perplexity),
        change(outcome.cut.perplexity, outcome.whole.perplexity),
    )
}

fn line(plan: &Plan, name: &str) -> String {
    let tokens = match plan.outcome.held_out {
        true => format!(
            "chosen on {} tokens, judged by {} others",
            grouped(plan.scores.tokens),
            grouped(plan.outcome.tokens)
        ),
        false => {
            format!("chosen on {} tokens and judged by the same", grouped(plan.outcome.tokens))
        }
    };
    let data = match &plan.data {
        Some(MeasuredOn { path: Some(path), .. }) => {
            format!(" of {}", path.file_name().unwrap_or(path.as_os_str()).display())
        }
        Some(_) => " of the run's held-out data".into(),
        None => String::new(),
    };
    format!(
        "{name}: {} blocks, {}, {} parameters · {tokens}{data}",
        plan.blocks,
        plan.residual,
        scaled(plan.memory.parameters_before as f64, "")
    )
}

fn sentences(plan: &Plan) -> Vec<String> {
    let (outcome, memory) = (&plan.outcome, &plan.memory);
    let mut all = Vec::new();
    if !outcome.held_out {
        all.push("The text is short, so the choice was judged by the tokens that it was made on. It will cost more elsewhere.".into());
    } else if outcome.tokens < FEW {
        all.push(format!(
            "{} tokens are few: take perplexities as rough, and plan with more before it matters.",
            grouped(outcome.tokens)
        ));
    }
    if plan.chosen.len() > 1 {
        let step = |(part, cost): (&Part, &super::Cost)| {
            format!("{part} ({})", change(cost.perplexity, outcome.whole.perplexity))
        };
        let steps: Vec<String> = plan.chosen.iter().zip(&plan.curve).map(step).collect();
        all.push(format!(
            "One after another, with what perplexity has risen by then: {}.",
            listed(&steps)
        ));
        all.push(format!(
            "Costs do not add up: one by one the parts cost what would make {}, together they make {}.",
            rounded(outcome.predicted_perplexity),
            rounded(outcome.cut.perplexity)
        ));
    }
    all.extend(dearest(plan));
    all.extend(by_angles(plan));
    if !plan.chosen.is_empty() {
        all.push(format!(
            "{} of {} parameters stay. Keys and values of a token take {} instead of {}.",
            scaled(memory.parameters_after as f64, ""),
            scaled(memory.parameters_before as f64, ""),
            scaled(memory.kv_bytes_after as f64, "B"),
            scaled(memory.kv_bytes_before as f64, "B"),
        ));
        all.push(format!("In turn with the whole model, {}.", plan.speed.words()));
    }
    all
}

/// Parts of the kind that is chosen from.
fn of_kind(plan: &Plan) -> impl Iterator<Item = &PartScore> {
    let blocks = !plan.options.sub_layers;
    plan.scores.parts.iter().filter(move |score| matches!(score.part, Part::Block(_)) == blocks)
}

/// Those that could go.
pub(super) fn candidates(plan: &Plan) -> impl Iterator<Item = &PartScore> {
    of_kind(plan).filter(|score| {
        score.refused.is_none() && !plan.options.protects(score.part.block(), plan.blocks)
    })
}

fn dearest(plan: &Plan) -> Option<String> {
    let cost = |score: &PartScore| score.loss_change.filter(|change| change.is_finite());
    let measured = of_kind(plan).filter_map(|score| Some((score, cost(score)?)));
    let (dearest, change) = measured.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let protected = plan.options.protects(dearest.part.block(), plan.blocks);
    Some(format!(
        "Dearest is {}: without it perplexity is {}.{}",
        named(&[dearest.part]),
        rounded((plan.scores.loss + change).exp()),
        if protected { " It was protected." } else { "" }
    ))
}

/// What angles would have chosen, if it is something else.
fn by_angles(plan: &Plan) -> Option<String> {
    if plan.options.contiguous || !plan.options.score.is_measured() || plan.chosen.is_empty() {
        return None;
    }
    let mut order: Vec<(f64, Part)> =
        candidates(plan).filter_map(|score| Some((score.distance?, score.part))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lowest: Vec<Part> = order.iter().take(plan.chosen.len()).map(|(_, part)| *part).collect();
    let other = lowest.iter().any(|part| !plan.chosen.contains(part));
    other.then(|| format!("By angles alone, {} would have gone.", named(&lowest)))
}

fn next(plan: &Plan, file: &Path) -> Vec<Next> {
    if plan.chosen.is_empty() {
        return Vec::new();
    }
    let (model, cut) = (quoted(&plan.source.path), plan.source.cut_name());
    let data = plan.data.as_ref().and_then(|data| data.path.as_deref());
    let data = data.map_or(String::new(), |path| format!(" --data {}", quoted(path)));
    vec![
        Next::new(
            "Write the model without them; the original is not touched",
            format!("hadal prune apply {} --out {cut}", quoted(file)),
        ),
        Next::new(
            "See that it computes what was promised, and what it still can do",
            format!("hadal prune check {cut} --original {model}{data}"),
        ),
        Next::new(
            "Heal it: a short training on text that is like the one it was made for",
            format!("hadal train --from {cut} --set data.train=DIR --out runs/healed"),
        ),
        Next::new("Undo it", undo(Path::new(cut))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::tests::some_plan;

    #[test]
    fn the_headline_is_the_answer() {
        let plan = some_plan();
        assert_eq!(
            headline(&plan),
            "Blocks 14 and 12 can go: perplexity 37.7 becomes 41.9 (+11 %), 93 % of the parameters stay, reading takes \
             91 to 95 % of the time"
        );
        let mut worse = plan.clone();
        worse.outcome.cut.perplexity = 90.0;
        worse.speed.prefill_range = Some([0.2, 1.2]);
        assert_eq!(
            headline(&worse),
            "Without blocks 14 and 12 the model is much worse: perplexity 37.7 becomes 90.0 (+139 %), 93 % of the \
             parameters stay"
        );
        let mut same = plan.clone();
        same.outcome.cut.perplexity = 37.7;
        assert!(headline(&same).starts_with("Blocks 14 and 12 can go at hardly any cost: "));
        let mut halves = plan.clone();
        halves.chosen = vec![Part::Attention(3), Part::Mlp(12)];
        assert!(
            headline(&halves)
                .starts_with("The attention of block 3 and the MLP of block 12 can go")
        );
        let none = Plan { chosen: Vec::new(), ..plan };
        assert!(headline(&none).starts_with("Nothing goes"));
        assert!(answer(&none, Path::new("plan.json")).next.is_empty());
    }

    #[test]
    fn a_page_says_for_what_why_and_what_next() {
        let plan = some_plan();
        let page = answer(&plan, Path::new("my plan.json"));
        assert_eq!(
            page.line,
            "model.gguf: 16 blocks, prenorm, 135 M parameters · chosen on 256 tokens, judged by 256 others of text.txt"
        );
        let said = page.sentences.join("\n");
        for words in [
            "256 tokens are few",
            "14 (+4.0 %) and 12 (+11 %)",
            "would make 40.0, together they make 41.9",
            "Dearest is block 0: without it perplexity is 2,048. It was protected.",
            "By angles alone, blocks 2 and 3 would have gone.",
            "take 1.02 kB instead of 1.28 kB",
            "reading takes 91 to 95 % of the time, writing 93 %.",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        let commands: Vec<&str> = page.next.iter().map(|next| next.command.as_str()).collect();
        assert_eq!(commands[0], "hadal prune apply 'my plan.json' --out smaller.gguf");
        assert_eq!(
            commands[1],
            "hadal prune check smaller.gguf --original /models/model.gguf --data /data/text.txt"
        );
        assert!(commands[2].starts_with("hadal train --from smaller.gguf"));
        assert_eq!(commands[3], "rm smaller.gguf smaller.pruned.json");
        let mut directory = plan.clone();
        directory.source.kind = crate::prune::SourceKind::HuggingFace;
        let next = answer(&directory, Path::new("plan.json")).next;
        assert_eq!(next[0].command, "hadal prune apply plan.json --out smaller");
        assert_eq!(next[3].command, "rm -r smaller");
        // No chart twice.
        let mut names: Vec<&str> = page.figures.iter().map(|figure| figure.name.as_str()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let mut together = plan;
        together.outcome.held_out = false;
        let said = sentences(&together)[0].clone();
        assert!(said.contains("judged by the tokens that it was made on"), "{said}");
    }
}
