//! What runs were trained on and with, in words, from their settings.

use super::comparable::section;
use super::group::Group;
use crate::run::Run;
use crate::words::{count, numeral, range};
use serde_json::Value;

/// A task in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// For a headline: `three-hop lookup`.
    pub name: String,
    /// What it is: `three-hop lookup in sequences of 64 over 4 symbols`.
    pub about: String,
    /// Share of right answers of a guess that looks at nothing.
    pub chance: Option<f64>,
    /// The loss of such a guess, in nats, where answers are not counted.
    pub blind_loss: Option<f64>,
}

impl Task {
    /// From a run's `data` settings: a generated task, or the text that it learns.
    pub fn of(data: &Value) -> Self {
        match data.get("generated") {
            Some(generated) => generated_task(generated),
            None => text(data),
        }
    }
}

/// The task of a run.
pub(super) fn task(run: &Run) -> Task {
    Task::of(&section(run, "data"))
}

/// Tasks of `hadal-data` by their settings; one that is not known here is called by its name.
fn generated_task(settings: &Value) -> Task {
    let name = settings.get("task").and_then(Value::as_str).unwrap_or("a generated task");
    let number = |key: &str| settings.get(key).and_then(Value::as_u64);
    let one_of = |choices: u64| (choices > 0).then(|| 1.0 / choices as f64);
    let up_to = |fixed: &str, most: &str| match (number(fixed), number(most)) {
        (Some(fixed), _) => fixed.to_string(),
        (None, Some(most)) => format!("1 to {most}"),
        _ => "some".into(),
    };
    let known = match name {
        "khop" => number("k").zip(number("alphabet")).zip(number("length")).map(
            |((k, alphabet), length)| {
                let name = format!("{}-hop lookup", numeral(k));
                let about = format!("{name} in sequences of {length} over {alphabet} symbols");
                (name, about, one_of(alphabet))
            },
        ),
        "depo" => number("nodes").map(|nodes| {
            let steps = up_to("hops", "max_hops");
            let about = format!("walks of {steps} steps along a cycle of {nodes} nodes");
            ("walks along a cycle".into(), about, one_of(nodes))
        }),
        "mano" => number("modulus").map(|modulus| {
            let about = format!(
                "nested sums and products of {} operations modulo {modulus}",
                up_to("operations", "max_operations")
            );
            ("nested arithmetic".into(), about, one_of(modulus))
        }),
        "mqar" => number("pairs").zip(number("vocabulary")).map(|(pairs, vocabulary)| {
            let about = format!("recall of values among {pairs} pairs over {vocabulary} tokens");
            ("recall of pairs".into(), about, one_of(vocabulary - vocabulary / 2))
        }),
        _ => None,
    };
    let (name, about, chance) = known.unwrap_or_else(|| (name.into(), name.into(), None));
    Task { name, about, chance, blind_loss: None }
}

/// A text: one that ships with the program, of bytes, or a folder of prepared ones.
fn text(data: &Value) -> Task {
    const BYTES: f64 = 256.0;
    let of = |key: &str| data.get(key).and_then(Value::as_str).unwrap_or_default();
    let folder = of("train").trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let (name, about, blind_loss) = match (of("text"), folder) {
        ("", "") => (String::new(), String::new(), None),
        ("", folder) => (format!("the text {folder}"), format!("text of {folder}"), None),
        (book, _) => {
            let about = format!("bytes of the built-in book {book}");
            (format!("the book {book}"), about, Some(BYTES.ln()))
        }
    };
    Task { name, about, chance: None, blind_loss }
}

/// Task, model, budget and seeds of groups that are compared, in one line.
pub(super) fn line(groups: &[Group]) -> String {
    let runs = || groups.iter().flat_map(|group| &group.runs);
    let Some(first) = runs().next() else { return String::new() };
    let task = task(first);
    let mut about = task.about.clone();
    if let Some(initial) = about.get(..1).map(str::to_uppercase) {
        about.replace_range(..1, &initial);
    }
    if let Some(chance) = task.chance {
        about += &format!(" (blind guesses are {:.0} % right)", 100.0 * chance);
    }
    if let Some(loss) = task.blind_loss {
        about += &format!(" (a blind guess costs {loss:.2} nats)");
    }
    let of = |table: &'static str, key: &'static str| {
        range(runs().filter_map(|run| section(run, table).get(key)?.as_f64()))
    };
    let parameters = range(runs().filter_map(|run| Some(run.outcome?.parameters as f64)));
    let model = [
        of("model", "n_layers").map(|blocks| format!("{blocks} blocks")),
        of("model", "d_model").map(|width| format!("width {width}")),
        parameters.map(|parameters| format!("{parameters} parameters")),
    ];
    let tokens = range(runs().filter_map(|run| Some(run.steps.last()?.tokens as f64)));
    let budget = [
        of("train", "steps").map(|steps| format!("{steps} steps")),
        tokens.map(|tokens| format!("{tokens} tokens")),
    ];
    let mut seeds: Vec<i64> = runs().map(Run::seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let joined =
        |parts: Vec<Option<String>>| parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let parts = [about, joined(model.into()), joined(budget.into()), count(seeds.len(), "seed")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}
