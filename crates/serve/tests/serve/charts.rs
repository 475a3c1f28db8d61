//! Axes and marks of charts, in a real browser.

use crate::browser::browser;
use crate::chromium::Browser;
use crate::support::{Site, run};
use serde_json::{Value, json};
use std::fs;

/// Shows figures as those of a run's diagnosis and waits until all are drawn.
fn show(browser: &mut Browser, figures: &[Value]) -> Site {
    let site = Site::new(|root| {
        let folder = run(root, "mine", "mgr", 20).join("diagnosis");
        fs::create_dir(&folder).unwrap();
        for figure in figures {
            let name = figure["name"].as_str().unwrap();
            fs::write(folder.join(format!("{name}.json")), figure.to_string()).unwrap();
        }
    });
    browser.open(&format!("{}runs/mine", site.server.url()));
    browser.until(&format!(
        "document.querySelectorAll('#figures .chart').length === {}",
        figures.len()
    ));
    browser.until(
        "[...document.querySelectorAll('#figures svg')].every(s => s.querySelector('.axis'))",
    );
    site
}

fn figure(name: &str, x: &Value, y: &str, marks: &Value) -> Value {
    json!({ "name": name, "title": name, "caption": "", "x": x, "y": { "label": y }, "marks": marks })
}

/// Texts of a chart's ticks and names.
fn texts(browser: &mut Browser, name: &str) -> Vec<String> {
    let texts = browser.value(&format!(
        "[...document.querySelectorAll('#figure-{name} svg text')].map(t => t.textContent)"
    ));
    serde_json::from_value(texts).unwrap()
}

#[test]
fn intervals_are_never_cut_off() {
    let Some(mut browser) = browser(1280) else { return };
    let names = ["lns", "nag", "both"];
    let bars = json!({ "kind": "bars", "series": [
        { "name": "difference", "values": [0.0964, -0.3469, 0.1], "errors": [0.3051, 0.2087, 0.0] }] });
    let axis = json!({ "label": "policy", "categories": names });
    let log = json!({ "kind": "bars", "series": [{ "name": "x", "values": [2.0, 5.0], "errors": [1.9, 9.0] }] });
    let mut figures = [
        figure("plain", &axis, "difference", &bars),
        figure("log", &json!({ "label": "policy", "categories": ["a", "b"] }), "ratio", &log),
    ];
    figures[1]["y"]["scale"] = json!("log");
    let _site = show(&mut browser, &figures);
    // What is drawn of an interval lies inside of the frame that marks are cut at.
    let outside = browser.value(
        "[...document.querySelectorAll('#figures svg')].flatMap(s => { \
           const frame = s.querySelector('clipPath rect'); \
           const [top, bottom] = [Number(frame.getAttribute('y')), Number(frame.getAttribute('y')) + Number(frame.getAttribute('height'))]; \
           return [...s.querySelectorAll('.interval')].map(i => i.getBBox()).filter(b => b.y < top || b.y + b.height > bottom); \
         }).length",
    );
    assert_eq!(outside, 0);
    assert_eq!(browser.value("document.querySelectorAll('#figures .interval').length"), 4);
    let ticks = texts(&mut browser, "plain");
    assert!(ticks.iter().any(|text| text.parse().is_ok_and(|n: f64| n <= -0.5)), "{ticks:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn ticks_have_as_many_digits_as_their_distance_needs() {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::new(|_| {});
    browser.open(site.server.url());
    let wrong = browser.value(
        "import('/assets/scale.js').then(({ scale, short, exact }) => { \
           const wrong = []; \
           for (const [low, high] of [[0, 0.003], [0.001, 0.0034], [0.0002, 0.0009], [-4e-4, 4e-4], [1e-7, 5e-7], \
                                      [1.2345, 1.23452], [0.70005, 0.7001], [12e3, 12.01e3]]) { \
             for (const log of low > 0 ? [false, true] : [false]) { \
               const ticks = scale(low, high, 0, 100, { log, count: 5 }).ticks.map(t => t.text); \
               if (new Set(ticks).size !== ticks.length || ticks.length < 2) wrong.push([low, high, log, ticks]); \
             } } \
           for (const [value, text] of [[0.001, '0.001'], [0.002, '0.002'], [0.005, '0.005'], [0.0123, '0.0123'], \
                                        [1.25, '1.25'], [12345, '12.3 k'], [0, '0']]) { \
             if (short(value) !== text) wrong.push([value, short(value)]); \
           } \
           return JSON.stringify(wrong); })",
    );
    assert_eq!(wrong, "[]");
}

#[test]
fn what_is_counted_has_whole_ticks() {
    let Some(mut browser) = browser(1280) else { return };
    let places: Vec<u32> = (0..12).collect();
    let values: Vec<f64> = places.iter().map(|&i| f64::from(i) + 0.5).collect();
    let lines =
        |x: &Value| json!({ "kind": "lines", "series": [{ "name": "x", "x": x, "y": values }] });
    let label = json!({ "label": "sub-layer (attention of block i is 2i, its MLP 2i + 1)" });
    let floats: Vec<f64> = places.iter().map(|&i| f64::from(i) * 0.11).collect();
    let figures = [
        figure("counted", &label, "size", &lines(&json!(places))),
        figure("few", &label, "size", &lines(&json!([0, 1, 2, 3]))),
        figure("measured", &label, "size", &lines(&json!(floats))),
    ];
    let _site = show(&mut browser, &figures);
    // Ticks below the axis.
    let below = |name: &str| {
        format!(
            "[...document.querySelectorAll('#figure-{name} svg > text[text-anchor=middle]')].map(t => t.textContent)"
        )
    };
    for name in ["counted", "few"] {
        let ticks: Vec<String> = serde_json::from_value(browser.value(&below(name))).unwrap();
        assert!(ticks.len() >= 3 && ticks.iter().all(|t| t.parse::<u32>().is_ok()), "{ticks:?}");
    }
    let ticks: Vec<String> = serde_json::from_value(browser.value(&below("measured"))).unwrap();
    assert!(ticks.iter().any(|t| t.contains('.')), "{ticks:?}");
}

#[test]
fn long_names_of_axes_are_wrapped_or_told_in_a_title() {
    let Some(mut browser) = browser(390) else { return };
    let long = "angular distance between what a block reads and what a later one reads (0: the same direction, 0.5: orthogonal)";
    let lines =
        json!({ "kind": "lines", "series": [{ "name": "x", "x": [1, 2], "y": [1.0, 2.0] }] });
    let heat = json!({ "kind": "heat", "values": [[0.1, 0.5], [0.2, 0.9]], "legend": long });
    let axis = json!({ "label": long });
    let figures = [figure("lines", &axis, long, &lines), figure("heat", &axis, long, &heat)];
    let _site = show(&mut browser, &figures);
    let outside = browser.value(
        "[...document.querySelectorAll('#figures svg')].flatMap(s => { \
           const frame = s.getBoundingClientRect(); \
           return [...s.querySelectorAll('text.label')].map(t => [t.textContent, t.getBoundingClientRect()]) \
             .filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1) \
             .map(([text]) => text); \
         }).join('; ')",
    );
    assert_eq!(outside, "");
    let titles = format!(
        "[...document.querySelectorAll('#figures svg g > title')].filter(t => t.textContent === {}).length",
        json!(long)
    );
    assert_eq!(browser.value(&titles), 5);
}

#[test]
fn a_flat_line_stands_in_the_middle_of_a_sensible_range() {
    let Some(mut browser) = browser(1280) else { return };
    let lines = json!({ "kind": "lines", "series": [
        { "name": "x", "x": [0, 1, 2], "y": [1.0, 1.000_000_1, 0.999_999_9] }] });
    let mut figures = [
        figure("plain", &json!({ "label": "block" }), "size", &lines),
        figure("log", &json!({ "label": "block" }), "size", &lines),
    ];
    figures[1]["y"]["scale"] = json!("log");
    let _site = show(&mut browser, &figures);
    for name in ["plain", "log"] {
        let texts = texts(&mut browser, name);
        assert!(texts.contains(&"always 1".to_owned()), "{texts:?}");
        let numbers: Vec<f64> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        assert!(
            numbers.iter().any(|&n| n <= 0.9) && numbers.iter().any(|&n| n >= 1.1),
            "{texts:?}"
        );
    }
    let path = browser.value("document.querySelector('#figure-plain path.curve').getBBox().height");
    assert!(path.as_f64().unwrap() < 1.0);
}
