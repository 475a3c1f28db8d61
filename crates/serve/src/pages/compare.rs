//! Several runs or policies in one chart.

use super::html::{Safe, loss, part, scaled, spread};
use super::{answer, page};
use crate::api::COMPARED;
use crate::app::{App, blocking};
use crate::catalogue::Snapshot;
use crate::group::{Chosen, Group, chosen};
use crate::limits::Work;
use axum::extract::{Query, State};
use axum::response::{Html, Response};
use hadal_report::provenance::{Provenance, together};
use std::fmt::Write;
use std::sync::Arc;

/// The page.
pub(crate) async fn compare(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let made = blocking(&app, Work::Many, move |app, now| Ok(render(app, now, &query))).await;
    answer(&app, made)
}

fn render(app: &App, now: &Snapshot, query: &[(String, String)]) -> Html<String> {
    let all = chosen(now, query);
    let count = all.len();
    if all.is_empty() || count > COMPARED {
        let body = format!(
            "<div class=\"title\"><h1>Nothing to compare</h1></div>\n<p class=\"empty\">Select 1 to {COMPARED} runs \
             in <a href=\"/\">the list</a>; {count} are selected.</p>"
        );
        return page(app, "compare", "", &body);
    }
    let groups = groups(now, &all);
    let has_seeds = groups.len() < count;
    let title = match has_seeds {
        true if groups.len() == 1 => format!("{count} seeds of {}", Safe(&groups[0].label)),
        true => format!("{} policies, {count} runs", groups.len()),
        false => format!("{count} runs compared"),
    };
    let mut body = format!("<div class=\"title\"><h1>{title}</h1></div>\n");
    let ids: Vec<&str> = all.iter().map(|one| one.id.as_str()).collect();
    for sentence in about_origins(now, &ids) {
        let _ = writeln!(body, "<p class=\"reason\">{}</p>", Safe(&sentence));
    }
    // Whoever chose policies wants their means; whoever chose runs wants these.
    let by_group = query.iter().any(|(key, _)| key == "group");
    let selected = |is: bool| if is { " selected" } else { "" };
    let _ = writeln!(
        body,
        "<div class=\"tools\"><label{}>Show <select id=\"seeds\"><option value=\"mean\"{}>mean over seeds</option>\
         <option value=\"all\"{}>every seed</option></select></label>\
         <label>By <select id=\"by\"><option value=\"step\">step</option>\
         <option value=\"tokens\">tokens</option><option value=\"seconds\">time</option></select></label>\
         <label>Smoothing <select id=\"smooth\"><option value=\"0\">none</option>\
         <option value=\"0.9\" selected>some</option><option value=\"0.98\">much</option></select></label>\
         <span class=\"grow\"></span><span id=\"live\" class=\"faint\"></span></div>\n\
         <div class=\"charts\" id=\"compare\"><div class=\"chart wide\" id=\"held\"></div>\
         <div class=\"chart wide\" id=\"train\"></div>\
         <div class=\"chart wide\" id=\"accuracy\" hidden></div></div>\n<p class=\"reason\" id=\"broken\"></p>",
        if has_seeds { "" } else { " hidden" },
        selected(by_group && has_seeds),
        selected(!(by_group && has_seeds)),
    );
    body.push_str("<h2>Last values</h2>\n");
    if has_seeds {
        means(&mut body, &groups);
        let open = if by_group { "" } else { " open" };
        let _ = write!(body, "<details class=\"more\"{open}><summary>All {count} runs</summary>");
    }
    runs(&mut body, now, &all);
    if has_seeds {
        body.push_str("</details>");
    }
    page(app, "compare", "compare", &body)
}

/// What was chosen of each policy. Runs that are not there belong to none.
fn groups<'a>(now: &'a Snapshot, all: &[Chosen]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for one in all {
        let Some(run) = now.runs.get(&one.id).map(|entry| &entry.summary) else { continue };
        match groups.iter_mut().find(|group| group.id == one.group) {
            Some(group) => group.runs.push(run),
            None => {
                let (id, label) = (one.group.clone(), one.group.clone());
                groups.push(Group { id, label, depth: None, runs: vec![run], look: one.look });
            }
        }
    }
    groups
}

const HEAD: &str = "<div class=\"scroll\"><table><thead><tr><th>Run</th><th class=\"c-policy\">Policy</th>\
    <th class=\"number c-seed\">Seed</th><th class=\"number c-step\">Steps</th><th class=\"number\">Training loss</th>\
    <th class=\"number\">Held-out</th><th class=\"number c-speed\">Tokens/s</th></tr></thead><tbody>\n";

fn means(body: &mut String, groups: &[Group<'_>]) {
    body.push_str(HEAD);
    for group in groups {
        let speed = group.mean(|run| run.tokens_per_second).map(|(mean, _)| mean);
        let steps = group.mean(|run| Some(run.step as f64)).map_or(0.0, |(mean, _)| mean);
        let _ = writeln!(
            body,
            "<tr><td><i class=\"swatch {}\"></i>{}</td><td class=\"c-policy\">{}</td>\
             <td class=\"number c-seed\">{} seeds</td><td class=\"number c-step\">{steps:.0}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number c-speed\">{}</td></tr>",
            group.look.class(),
            Safe(&group.label),
            Safe(group.kind()),
            group.counted().len(),
            spread(group.mean(|run| run.train_loss)),
            spread(group.mean(|run| run.held_out_loss)),
            scaled(speed)
        );
    }
    body.push_str("</tbody></table></div>\n");
}

fn runs(body: &mut String, now: &Snapshot, all: &[Chosen]) {
    body.push_str(HEAD);
    for one in all {
        let Some(run) = now.runs.get(&one.id).map(|entry| &entry.summary) else {
            let name = Safe(&one.id);
            let _ = writeln!(
                body,
                "<tr><td>{name}</td><td colspan=\"6\" class=\"reason\">not there</td></tr>"
            );
            continue;
        };
        let _ = writeln!(
            body,
            "<tr><td><a href=\"/runs/{}\"><i class=\"swatch {}\"></i>{}</a></td><td class=\"c-policy\">{}</td>\
             <td class=\"number c-seed\">{}</td><td class=\"number c-step\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number c-speed\">{}</td></tr>",
            part(&one.id),
            one.look.class(),
            Safe(&one.name),
            Safe(&run.residual),
            run.seed.map_or("–".into(), |seed| seed.to_string()),
            run.step,
            loss(run.train_loss),
            loss(run.held_out_loss),
            scaled(run.tokens_per_second)
        );
    }
    body.push_str("</tbody></table></div>\n");
}

/// Why these runs cannot be compared, or what may make a difference besides their settings.
fn about_origins(now: &Snapshot, ids: &[&str]) -> Vec<String> {
    let known = ids.iter().filter_map(|id| Some((*id, &now.runs.get(*id)?.path)));
    let made: Vec<(&str, Provenance)> =
        known.map(|(id, path)| (id, Provenance::read(path))).collect();
    let made: Vec<(&str, &Provenance)> = made.iter().map(|(id, made)| (*id, made)).collect();
    together(&made).unwrap_or_else(|apart| vec![apart.to_string()])
}
