//! A report of `hadal report` in a real browser: everything clickable works.

use crate::browser::browser;
use crate::chromium::Browser;
use crate::support::many;
use hadal_report::page::{Request, write};
use tempfile::TempDir;

/// A report of five runs, with every chart drawn.
fn open_report(browser: &mut Browser) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    many(folder.path(), 5, 60);
    let output = folder.path().join("report.html");
    let request = Request {
        inputs: vec![folder.path().into()],
        output: output.clone(),
        ..Request::default()
    };
    let charts = write(&request, |_| ()).unwrap().charts;
    browser.open(&format!("file://{}", output.display()));
    browser.until(&format!("document.querySelectorAll('.js-plotly-plot').length === {charts}"));
    folder
}

#[test]
fn charts_of_a_report_are_drawn_and_answer_to_clicks() {
    let Some(mut browser) = browser(1280) else { return };
    let _folder = open_report(&mut browser);

    let colours = "getComputedStyle(document.body).backgroundColor";
    let before = browser.value(colours);
    browser.click("button.theme");
    assert_ne!(browser.value(colours), before);

    let first = "document.querySelector('figure.chart')";
    let axis = |what: &str| format!("{first}.querySelector('.plot').layout.{what}");
    assert_eq!(browser.value(&axis("yaxis.type")), "linear");
    browser.click("figure.chart .switch:last-child button:last-child");
    browser.until(&format!("{} === 'log'", axis("yaxis.type")));
    let title = browser.value(&axis("xaxis.title.text"));
    browser.click("figure.chart .switch button:nth-child(2)");
    assert_ne!(browser.value(&axis("xaxis.title.text")), title);

    let hidden = "document.querySelector('figure.chart .plot').data.filter(t => t.visible === 'legendonly').length";
    assert_eq!(browser.value(hidden), 0);
    browser.click("figure.chart .legend button");
    browser.until(&format!("{hidden} > 0"));
    browser.click("figure.chart .legend button");
    browser.until(&format!("{hidden} === 0"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn a_report_fits_a_phone() {
    let Some(mut browser) = browser(390) else { return };
    let _folder = open_report(&mut browser);
    let width = browser.value("document.documentElement.scrollWidth").as_f64().unwrap();
    assert!(width <= 390.0, "the page is {width} wide");
    let right = "Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(e => e.getBoundingClientRect().right))";
    let right = browser.value(right).as_f64().unwrap();
    assert!(right <= 390.0, "a chart ends at {right}");
}
