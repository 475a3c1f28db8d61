//! Clicks through the main paths in a real browser.

use crate::chromium::{Browser, chromium};
use crate::security::remote;
use crate::support::{Site, append, lines, many, run};
use hadal_files::testing::skip;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::time::Duration;

/// A browser, or `None` where there is none.
pub(crate) fn browser(width: u32) -> Option<Browser> {
    if chromium().is_none() {
        skip("browser", "there is no Chromium here (apt-get install chromium)");
        return None;
    }
    Some(Browser::start(width, 900).expect("Chromium does not start"))
}

fn shown(browser: &mut Browser) -> u64 {
    browser
        .value("[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).length")
        .as_u64()
        .unwrap()
}

/// From the list through a filter and a selection to a comparison, and on to a run that grows.
fn click_through(count: usize) {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::new(|root| many(root, count, 200));
    browser.open(site.server.url());
    browser.until(&format!("document.querySelectorAll('#runs tbody tr').length === {count}"));
    browser.until("document.getElementById('count').textContent !== ''");
    let clock = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd";
    let time = browser.value(clock).as_f64().unwrap();
    let _ = writeln!(std::io::stderr(), "{count} runs: ready after {time:.0} ms");

    browser.click("#filter");
    browser.type_text("prenorm");
    assert_eq!(shown(&mut browser), count.div_ceil(5) as u64);
    browser.click("th.c-held button");
    let selected = if count > 5 { 2 } else { 1 };
    for place in 0..selected {
        let id = format!("prenorm-{:03}", place * 5);
        browser.click(&format!("tr[data-id=\"{id}\"] input"));
    }
    browser.click("#compare");
    browser.until("location.pathname === '/compare'");
    browser
        .until(&format!("document.querySelectorAll('#held svg path.curve').length === {selected}"));
    browser.until("document.querySelectorAll('#train svg path.curve:not(.raw)').length > 0");
    if selected > 1 {
        browser.click("#held .legend button");
        browser.until("document.querySelectorAll('#held svg path.curve').length === 1");
    }
    browser.value("(() => { const by = document.getElementById('by'); by.value = 'tokens'; by.onchange(); })()");
    browser.until(
        "[...document.querySelectorAll('#held text')].some(t => t.textContent === 'tokens')",
    );

    browser.click("main td a[href^='/runs/']");
    browser.until("location.pathname === '/runs/prenorm-000'");
    browser.until("document.querySelectorAll('#loss svg path.curve').length >= 2");
    let folder = site.folder.path().join("prenorm-000");
    append(&folder, &lines(201..=207));
    browser.until("document.getElementById('live').textContent === 'last point: step 207'");
    browser.until("document.getElementById('t-step').textContent.startsWith('207')");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn one_run_can_be_clicked_through() {
    click_through(1);
}

#[test]
fn fifty_runs_can_be_clicked_through() {
    click_through(50);
}

#[test]
fn five_hundred_runs_can_be_clicked_through() {
    click_through(500);
}

#[test]
fn charts_zoom_tell_values_and_go_log() {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 200)));
    browser.open(&format!("{}runs/mine", site.server.url()));
    browser.until("document.querySelector('#loss svg path.curve')");
    let frame = browser.value(
        "(() => { const b = document.querySelector('#loss svg').getBoundingClientRect(); return [b.left, b.top, b.width]; })()",
    );
    let at = |share: f64| json!(frame[0].as_f64().unwrap() + share * frame[2].as_f64().unwrap());
    let height = json!(frame[1].as_f64().unwrap() + 120.0);
    browser.mouse("mouseMoved", &at(0.5), &height);
    browser.until("document.querySelector('#loss .tip').innerText.includes('held-out')");
    let ticks = "[...document.querySelectorAll('#loss svg text')].map(t => t.textContent).join()";
    let before = browser.value(ticks);
    browser.mouse("mousePressed", &at(0.3), &height);
    browser.mouse("mouseMoved", &at(0.4), &height);
    browser.mouse("mouseReleased", &at(0.5), &height);
    let quoted = before.to_string();
    browser.until(&format!("{ticks} !== {quoted}"));
    browser.click("#loss header button:not([hidden])");
    browser.until(&format!("{ticks} === {quoted}"));
    browser.click("#loss header button:last-child");
    browser
        .until("document.querySelector('#loss header button:last-child').ariaPressed === 'true'");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn every_kind_of_figure_is_drawn() {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::new(|root| {
        let folder = run(root, "mine", "mgr", 20).join("diagnosis");
        fs::create_dir(&folder).unwrap();
        let names = ["a", "b", "c"];
        let marks = [
            json!({"kind": "lines", "series": [{"name": "x", "x": [1, 2, 3], "y": [1.0, null, 2.0]},
                {"name": "bound", "x": [1, 2, 3], "y": [2, 2, 2], "dashed": true, "band": [[1, 1, 1], [3, 3, 3]]}]}),
            json!({"kind": "bars", "series": [{"name": "x", "values": [1, -2, null], "errors": [0.1, 0.1, 0.1]}]}),
            json!({"kind": "points", "series": [{"name": "x", "x": [1, 2], "y": [3, 4], "labels": ["one", "two"]}]}),
            json!({"kind": "boxes", "series": [{"name": "x", "boxes": [{"min": 0, "q1": 1, "median": 2, "q3": 3, "max": 4}, null, null]}]}),
            json!({"kind": "heat", "values": [[0.1, 0.5, null], [0.2, 0.9, 1.0]], "legend": "angle"}),
        ];
        for (place, marks) in marks.into_iter().enumerate() {
            let places = marks["kind"] != "lines" && marks["kind"] != "points";
            let x = json!({"label": "block", "categories": if places { &names[..] } else { &[] }});
            let figure = json!({"name": format!("f{place}"), "title": "t", "caption": "c", "x": x, "y": {"label": "y"}, "marks": marks});
            fs::write(folder.join(format!("f{place}.json")), figure.to_string()).unwrap();
        }
    });
    browser.open(&format!("{}runs/mine", site.server.url()));
    browser.until("document.querySelectorAll('#figures .chart').length === 5");
    let drawn = [
        "#figure-f0 path.curve.dashed",
        "#figure-f1 rect.fill",
        "#figure-f2 circle.fill",
        "#figure-f3 rect.box",
        "#figure-f4 g rect[fill^=rgb]",
    ];
    for selector in drawn {
        browser.until(&format!("document.querySelector('{selector}')"));
    }
    let wrong = "[...document.querySelectorAll('svg *')].filter(e => [...e.attributes].some(a => /NaN|Infinity|undefined/.test(a.value))).length";
    assert_eq!(browser.value(wrong), 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn nothing_is_wider_than_a_phone() {
    let Some(mut browser) = browser(390) else { return };
    let site = Site::new(|root| many(root, 5, 60));
    for page in ["", "runs/mgr-003", "compare?run=mgr-003&run=nag-004"] {
        browser.open(&format!("{}{page}", site.server.url()));
        std::thread::sleep(Duration::from_millis(300));
        let width = browser.value("document.documentElement.scrollWidth").as_u64().unwrap();
        assert!(width <= 390, "{page} is {width} pixels wide");
    }
}

#[test]
fn a_name_with_a_script_runs_nothing() {
    let Some(mut browser) = browser(1280) else { return };
    let name = "<img src=x onerror=document.title='owned'>";
    let site = Site::new(|root| drop(run(root, name, "mgr", 60)));
    browser.open(site.server.url());
    browser.click("tbody a");
    browser.until("document.querySelector('#loss svg path.curve')");
    assert_eq!(browser.value("document.querySelector('h1').textContent"), name);
    assert!(!browser.value("document.title").to_string().contains("owned' "));
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 1);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn ticks_say_where_they_stand() {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::new(|_| {});
    browser.open(site.server.url());
    let wrong = browser.value(
        "import('/assets/scale.js').then(({ scale }) => { \
           const wrong = []; \
           const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }; \
           for (const low of [-3, 0, 0.01, 1.24, 999, 12345]) { \
             for (const width of [0.003, 0.05, 1.3, 7, 260, 9000, 2.6e6]) { \
               for (const log of low > 0 ? [false, true] : [false]) { \
                 const ticks = scale(low, low + width, 0, 100, { log, count: 5 }).ticks; \
                 const read = ({ text }) => { const [n, u] = text.split(' '); return n * (units[u] ?? 1); }; \
                 for (const tick of ticks) { \
                   if (Math.abs(read(tick) - tick.value) > 1e-6 + 1e-4 * Math.abs(tick.value)) wrong.push([low, width, log, tick]); \
                 } \
                 if (!ticks.length || new Set(ticks.map(t => t.text)).size !== ticks.length) wrong.push([low, width, log]); \
               } } } \
           return JSON.stringify(wrong); })",
    );
    assert_eq!(wrong, "[]");
}

#[test]
fn a_browser_needs_the_token_only_once() {
    let Some(mut browser) = browser(1280) else { return };
    let site = remote(|_| ());
    browser.open(site.server.url());
    browser.until("document.getElementById('count').textContent === '1 of 1 runs'");
    browser.click("main td a[href^='/runs/']");
    browser.until("location.href.endsWith('/runs/mine')");
    browser.until("document.querySelectorAll('#loss svg path.curve').length >= 1");
    append(&site.folder.path().join("mine"), &lines(11..=12));
    browser.until("document.getElementById('live').textContent === 'last point: step 12'");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
