//! Lines of the table of runs: sections, policies, runs.

use super::html::{Safe, ago, left, loss, part, scaled, spread};
use super::spark::sparkline;
use crate::catalogue::{Standing, Summary};
use crate::group::{Group, Section};
use hadal_report::palette::{Look, looks};
use std::fmt::Write;

/// Heads of columns: key for sorting, title, class.
const COLUMNS: [(&str, &str, &str); 9] = [
    ("name", "Run", ""),
    ("status", "State", ""),
    ("policy", "Policy", ""),
    ("seed", "Seed", "number"),
    ("step", "Steps", "number"),
    ("train", "Training loss", "number"),
    ("held", "Held-out", "number"),
    ("speed", "Tokens/s", "number"),
    ("changed", "Written", "number"),
];
/// Cells of a line behind its box, the curve included.
const CELLS: usize = COLUMNS.len() + 1;

/// The head line.
pub(super) fn head() -> String {
    let mut text = String::from(
        "<thead><tr><th class=\"pick\"><input type=\"checkbox\" id=\"all\" aria-label=\"Select all shown\"></th>",
    );
    for (key, title, class) in COLUMNS {
        let _ = write!(
            text,
            "<th class=\"{class} c-{key}\"><button data-key=\"{key}\">{title}</button></th>"
        );
        if key == "step" {
            text.push_str("<th class=\"c-curve\">Curve</th>");
        }
    }
    text + "</tr></thead>"
}

/// A section with all its lines. `titled` says whether it has a line of its own.
pub(super) fn section(section: &Section<'_>, titled: bool) -> String {
    let kind = if section.suite.is_some() { "suite" } else { "folder" };
    let mut text = format!("<tbody class=\"{kind}\" data-section=\"{}\">\n", Safe(section.id));
    if titled {
        text.push_str(&title(section));
    }
    for group in &section.groups {
        if group.is_many() {
            text.push_str(&policy(group));
            text.push('\n');
        }
        for line in &group.runs {
            text.push_str(&run(line, Some((section, group))));
            text.push('\n');
        }
    }
    text + "</tbody>\n"
}

/// The line above a section: its name, how far it is, what it found, and where that can be read.
pub(super) fn title(section: &Section<'_>) -> String {
    let name = match (section.id, section.suite) {
        ("", None) => "<b>Single runs</b>".into(),
        (id, None) => format!("<b>{}</b>", Safe(id)),
        (id, Some(_)) => format!("<a href=\"/suites/{}\"><b>{}</b></a>", part(id), Safe(id)),
    };
    let mut text = format!(
        "<tr class=\"title-row\" data-title=\"{}\"><td class=\"pick\"><input type=\"checkbox\" \
         aria-label=\"Select all of {}\"></td><td colspan=\"{CELLS}\"><div class=\"section\">{name}",
        Safe(section.id),
        Safe(section.id)
    );
    let _ = write!(text, "<span class=\"faint\">{}</span>", about(section));
    if let Some(seconds) = section.left() {
        let _ = write!(text, "<span class=\"busy\">about {} left</span>", left(seconds));
    }
    if section.suite.is_some_and(|suite| suite.has_report) {
        let _ = write!(
            text,
            "<a class=\"chip\" href=\"/suites/{}/report\">report</a>",
            part(section.id)
        );
    }
    text.push_str("</div>");
    if let Some(headline) = section.suite.and_then(|suite| suite.headline.as_ref()) {
        let _ = write!(text, "<p class=\"headline\">{}</p>", Safe(headline));
    }
    text + "</td></tr>\n"
}

/// `5 policies × 6 seeds, 28 of 30 runs done`.
pub(super) fn about(section: &Section<'_>) -> String {
    let count = section.runs().count();
    let done = section.runs().filter(|run| run.status == Standing::Done).count();
    let planned = section.suite.map_or(count, |suite| suite.planned.max(count));
    let depths = section.depths();
    let policies = section.groups.len() / depths.max(1);
    let many = |count: usize, one: &str, more: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {more}"),
    };
    let mut text = match section.suite {
        Some(_) => format!(
            "{} × {}{}, ",
            many(policies, "policy", "policies"),
            if depths > 0 { format!("{depths} depths × ") } else { String::new() },
            many(section.seeds(), "seed", "seeds")
        ),
        None => String::new(),
    };
    text += &match done == planned {
        true => format!("{} done", many(planned, "run", "runs")),
        false => format!("{done} of {} done", many(planned, "run", "runs")),
    };
    text
}

/// Several seeds of one policy in one line, which can be folded out.
pub(super) fn policy(group: &Group<'_>) -> String {
    let (standing, count) = group.standing();
    let (id, status, all) = (Safe(&group.id), standing.word(), group.runs.len());
    let first = group.runs[0];
    let counted = group.counted();
    let state = if count == all { status.to_owned() } else { format!("{status} {count}/{all}") };
    let mut text = format!(
        "<tr class=\"policy\" data-group=\"{id}\" data-count=\"{all}\">\
         <td class=\"pick\"><input type=\"checkbox\" aria-label=\"Select {id}\"></td>\
         <td class=\"c-name\" data-v=\"{id}\"><button class=\"fold\" aria-expanded=\"false\" \
         title=\"Show its runs\"><i class=\"swatch {look}\"></i>{label}</button>{tags}</td>\
         <td class=\"c-status\" data-v=\"{status}\"><span class=\"pill {status}\">{state}</span></td>\
         <td class=\"c-policy\" data-v=\"{kind}\">{kind}{shape}</td>",
        look = group.look.class(),
        label = Safe(&group.label),
        kind = Safe(group.kind()),
        shape = shape(first),
        tags = tags(group.runs.iter().flat_map(|run| &run.tags)),
    );
    number(
        &mut text,
        "seed",
        Some(all as f64),
        &format!("<span class=\"faint\">{all} seeds</span>"),
    );
    let steps = group.mean(|run| Some(run.step as f64)).map(|(mean, _)| mean);
    number(&mut text, "step", steps, &steps.map_or("–".into(), |steps| format!("{steps:.0}")));
    let curves: Vec<&[(f32, f32)]> = counted.iter().map(|run| run.spark.as_slice()).collect();
    let _ = write!(text, "<td class=\"c-curve\">{}</td>", sparkline(&curves, &group.look.class()));
    for (key, value) in
        [("train", group.mean(|run| run.train_loss)), ("held", group.mean(|run| run.held_out_loss))]
    {
        number(&mut text, key, value.map(|(mean, _)| mean), &spread(value));
    }
    let speed = group.mean(|run| run.tokens_per_second).map(|(mean, _)| mean);
    number(&mut text, "speed", speed, &scaled(speed));
    number(&mut text, "changed", Some(group.changed() as f64), &ago(group.changed()));
    text + "</tr>"
}

/// One run: alone, or folded into the line of its policy.
pub(super) fn run(run: &Summary, of: Option<(&Section<'_>, &Group<'_>)>) -> String {
    let (id, status) = (Safe(&run.id), run.status.word());
    let prefix = of.map_or("", |(section, _)| section.prefix);
    let name = run.id.strip_prefix(prefix).unwrap_or(&run.id);
    let look = of.map_or_else(|| own_look(run), |(_, group)| group.look);
    let folded = of.filter(|(_, group)| group.is_many()).map_or_else(String::new, |(_, group)| {
        format!(" class=\"seed\" data-of=\"{}\" hidden", Safe(&group.id))
    });
    let link = part(&run.id);
    let mut below = String::new();
    if let Some(reason) = &run.reason {
        let _ = write!(below, "<div class=\"reason\">{}</div>", Safe(reason));
    } else if let Some(line) = run.note.lines().next() {
        let _ = write!(below, "<div class=\"note\">{}</div>", Safe(line));
    }
    below += &tags(run.tags.iter());
    if run.has_diagnosis {
        let _ = write!(below, "<a class=\"small\" href=\"/runs/{link}#diagnosis\">diagnosis</a>");
    }
    if run.has_report {
        let _ = write!(below, "<a class=\"small\" href=\"/runs/{link}/report\">report</a>");
    }
    let tagged: String = run.tags.iter().map(|tag| format!(" #{tag}")).collect();
    let words =
        format!("{} {} {} {}{tagged}", run.id, run.residual, status, run.note).to_lowercase();
    let words = Safe(words.replace('\n', " "));
    let mut text = format!(
        "<tr data-id=\"{id}\"{folded} data-status=\"{status}\" data-words=\"{words}\">\
         <td class=\"pick\"><input type=\"checkbox\" aria-label=\"Select {id}\"></td>\
         <td class=\"c-name\" data-v=\"{id}\"><a href=\"/runs/{link}\"><i class=\"swatch {look}\"></i>{name}</a>{below}</td>\
         <td class=\"c-status\" data-v=\"{status}\"><span class=\"pill {status}\">{status}</span></td>\
         <td class=\"c-policy\" data-v=\"{policy}\">{policy}{shape}</td>",
        name = Safe(name),
        look = look.class(),
        policy = Safe(&run.residual),
        shape = shape(run),
    );
    let seed = run.seed.map_or("–".into(), |seed| seed.to_string());
    number(&mut text, "seed", run.seed.map(|seed| seed as f64), &seed);
    number(&mut text, "step", Some(run.step as f64), &progress(run));
    let _ = write!(text, "<td class=\"c-curve\">{}</td>", sparkline(&[&run.spark], &look.class()));
    number(&mut text, "train", run.train_loss, &loss(run.train_loss));
    number(&mut text, "held", run.held_out_loss, &loss(run.held_out_loss));
    number(&mut text, "speed", run.tokens_per_second, &scaled(run.tokens_per_second));
    number(&mut text, "changed", Some(run.changed as f64), &ago(run.changed));
    text + "</tr>"
}

/// The look of a run that stands alone.
pub(super) fn own_look(run: &Summary) -> Look {
    looks([run.residual.as_str()])[0]
}

/// Tags, each once, which filter the list by a click.
fn tags<'a>(tags: impl Iterator<Item = &'a String>) -> String {
    let mut seen: Vec<&String> = Vec::new();
    for tag in tags {
        if !seen.contains(&tag) {
            seen.push(tag);
        }
    }
    let tag =
        |tag: &&String| format!("<button class=\"tag\" data-tag=\"{0}\">#{0}</button>", Safe(tag));
    seen.iter().map(tag).collect()
}

fn number(text: &mut String, key: &str, value: Option<f64>, shown: &str) {
    let value = value.map_or(String::new(), |value| value.to_string());
    let _ = write!(text, "<td class=\"number c-{key}\" data-v=\"{value}\">{shown}</td>");
}

fn shape(run: &Summary) -> String {
    match (run.blocks, run.width) {
        (Some(blocks), Some(width)) => format!(" <span class=\"faint\">{blocks}×{width}</span>"),
        _ => String::new(),
    }
}

fn progress(run: &Summary) -> String {
    let Some(steps) = run.steps.filter(|_| run.status != Standing::Done) else {
        return run.step.to_string();
    };
    let mut text = format!("{} <span class=\"faint\">/ {steps}</span>", run.step);
    if let Some(seconds) = run.left() {
        let _ = write!(text, "<div class=\"busy\">{} left</div>", left(seconds));
    }
    let _ = write!(
        text,
        "<progress value=\"{}\" max=\"{}\"></progress>",
        run.step.min(steps),
        steps.max(1)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_odd_names_as_text() {
        let odd = Summary { id: "<img src=x>/\"a' b".into(), ..Summary::default() };
        let row = run(&odd, None);
        assert!(!row.contains("<img"), "{row}");
        assert!(row.contains("/runs/%3Cimg%20src%3Dx%3E%2F%22a%27%20b"), "{row}");
    }

    #[test]
    fn a_run_under_way_says_how_long_it_takes() {
        let run = Summary {
            status: Standing::Running,
            step: 50,
            steps: Some(100),
            tokens: 5000,
            tokens_per_second: Some(10.0),
            ..Summary::default()
        };
        assert!(progress(&run).contains("9 min left"), "{}", progress(&run));
        let done = Summary { status: Standing::Done, ..run };
        assert_eq!(progress(&done), "50");
    }
}
