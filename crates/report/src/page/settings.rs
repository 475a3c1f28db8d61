//! Settings and machines side by side, with differences in view.

use super::html::{Cell, Html};

/// A tree of settings as rows: a key with dots, and its value.
pub(super) fn flat(prefix: &str, value: &serde_json::Value) -> Vec<(String, String)> {
    let key =
        |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    match value {
        serde_json::Value::Object(table) => {
            table.iter().flat_map(|(name, value)| flat(&key(name), value)).collect()
        }
        serde_json::Value::String(text) => vec![(prefix.to_owned(), text.clone())],
        serde_json::Value::Null => vec![(prefix.to_owned(), "none".into())],
        other => vec![(prefix.to_owned(), other.to_string())],
    }
}

/// Rows of all columns, in the order in which keys first appear; missing values are empty.
pub(super) fn aligned(columns: &[Vec<(String, String)>]) -> Vec<(String, Vec<String>)> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        for (key, value) in column {
            let at = rows.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
                rows.push((key.clone(), vec![String::new(); columns.len()]));
                rows.len() - 1
            });
            rows[at].1[i] = value.clone();
        }
    }
    rows
}

/// The keys whose values are not the same for all.
pub(super) fn differing(settings: &[toml::Table]) -> Vec<String> {
    let columns: Vec<_> = settings
        .iter()
        .map(|table| flat("", &serde_json::to_value(table).unwrap_or_default()))
        .collect();
    let rows = aligned(&columns).into_iter();
    rows.filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]))
        .map(|(key, _)| key)
        .collect()
}

/// Differences in full view, equal settings folded away.
/// `what` names them at the start of a sentence.
pub(super) fn write(
    html: &mut Html,
    what: &str,
    labels: &[String],
    columns: &[Vec<(String, String)>],
) {
    let rows = aligned(columns);
    let (same, different): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, values)| values.windows(2).all(|pair| pair[0] == pair[1]));
    if !different.is_empty() {
        let mut head = vec!["setting".to_owned()];
        head.extend_from_slice(labels);
        let cells = |(key, values): &(String, Vec<String>)| {
            let mut cells = vec![Cell::Name { text: key.clone(), look: None, is_best: false }];
            cells.extend(values.iter().map(|value| Cell::Differs(value.clone())));
            cells
        };
        html.table(&head, &different.iter().map(cells).collect::<Vec<_>>());
    } else if labels.len() > 1 {
        html.markup("<p class=\"soft\">").text(what).markup(" do not differ between them.</p>");
    }
    if !same.is_empty() {
        html.markup("<details><summary>");
        let several = labels.len() > 1;
        html.markup(if several { "What all of them share (" } else { "Show all (" });
        html.text(same.len().to_string()).markup(")</summary>");
        let cells = |(key, values): &(String, Vec<String>)| {
            let value = values.first().cloned().unwrap_or_default();
            vec![Cell::Name { text: key.clone(), look: None, is_best: false }, Cell::Text(value)]
        };
        let rows: Vec<Vec<Cell>> = same.iter().map(cells).collect();
        html.table(&["setting".into(), "value".into()], &rows).markup("</details>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_differs_is_marked_and_what_one_does_not_have_is_empty() {
        let a = flat(
            "",
            &json!({ "train": { "steps": 1 }, "residual": { "kind": "mgr", "streams": 4 } }),
        );
        let b = flat("", &json!({ "train": { "steps": 1 }, "residual": { "kind": "<nag>" } }));
        let mut html = Html::default();
        write(&mut html, "Settings", &["a".into(), "b".into()], &[a, b]);
        let html = html.finish();
        assert!(html.contains("<td class=\"differs\" data-label=\"b\">&lt;nag&gt;</td>"), "{html}");
        assert!(
            html.contains("\"a\">4</td><td class=\"differs\" data-label=\"b\"></td>"),
            "{html}"
        );
        assert!(html.contains("train.steps</td><td data-label=\"value\">1</td>"), "{html}");
    }
}
