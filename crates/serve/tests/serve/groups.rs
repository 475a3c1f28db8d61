//! Suites, policies and seeds: in the list, in comparisons, on a suite's page.

use crate::browser::browser;
use crate::support::{Site, append, lines, run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A seed of a policy in a suite.
fn seed(root: &Path, policy: &str, seed: u64, steps: u64) {
    let folder = run(root, &format!("first/runs/{policy}-s{seed}"), policy, steps);
    let config = fs::read_to_string(folder.join("config.toml")).unwrap();
    fs::write(folder.join("config.toml"), config.replace("seed = 1", &format!("seed = {seed}")))
        .unwrap();
    fs::create_dir_all(folder.join("model")).unwrap();
}

fn table() -> Value {
    json!({
        "baseline": "prenorm", "metric": "validation loss",
        "verdict": ["By validation loss against prenorm, over 3 seeds: nag is better.", "nag is better than prenorm: it is."],
        "columns": ["policy", "verdict", "a", "b", "c", "d", "e"],
        "rows": [["prenorm", "baseline", "", "", "", "", ""], ["nag", "better", "", "", "", "", "last"]],
        "figures": [
            { "name": "validation-loss", "title": "Loss", "caption": "", "x": {"label": "tokens"}, "y": {"label": "loss"},
              "marks": {"kind": "lines", "series": [{"name": "prenorm", "x": [1.0, 2.0], "y": [2.0, 1.0]},
                                                    {"name": "nag", "x": [1.0, 2.0], "y": [2.0, 0.5]}]} },
            { "name": "differences", "title": "Difference", "caption": "Below zero is better.",
              "x": {"label": "policy", "categories": ["nag"]}, "y": {"label": "difference", "unit": "nats"},
              "marks": {"kind": "bars", "series": [{"name": "difference", "values": [-0.35], "errors": [0.2]}]} },
        ],
    })
}

/// A suite of two policies with three seeds each, and a run beside it.
fn site() -> Site {
    Site::new(|root| {
        run(root, "alone", "mgr", 20);
        for policy in ["prenorm", "nag"] {
            (0..3).for_each(|number| seed(root, policy, number, 60));
        }
        fs::write(root.join("first/table.json"), table().to_string()).unwrap();
        fs::write(root.join("first/report.html"), "<script>document.title = 'ran'</script>")
            .unwrap();
    })
}

#[test]
fn a_suite_is_a_section_with_its_policies_as_lines() {
    let site = site();
    let page = site.get("/").body;
    assert_eq!(page.matches("<tr class=\"policy\"").count(), 2, "{page}");
    assert_eq!(page.matches("class=\"seed\"").count(), 6);
    assert!(page.contains("2 policies × 3 seeds, 6 runs done"), "{page}");
    assert!(page.contains("nag is better.") && page.contains("/suites/first/report"), "{page}");
    // The suite's folder is in its title and in no line.
    assert!(!page.contains("</i>first/runs/"), "{page}");
    assert!(page.contains("± 0.000</span>"), "{page}");
}

#[test]
fn policies_fold_out_are_filtered_by_tag_and_compared_as_means() {
    let Some(mut browser) = browser(1280) else { return };
    let site = site();
    let tagged = site.folder.path().join("first/runs/nag-s1/tags.txt");
    fs::write(tagged, "best\nbestiary\n").unwrap();
    browser.open(site.server.url());
    browser.until("document.getElementById('count').textContent === '7 of 7 runs'");
    let shown = "[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden && r.offsetParent).map(r => r.dataset.id ?? r.dataset.group ?? 'title').join()";
    browser.until(&format!("{shown} === 'title,first/runs/nag,first/runs/prenorm,title,alone' || {shown} === 'title,alone,title,first/runs/nag,first/runs/prenorm'"));
    browser.click("tr[data-group='first/runs/nag'] .fold");
    browser.until(&format!(
        "{shown}.includes('first/runs/nag-s0,first/runs/nag-s1,first/runs/nag-s2')"
    ));
    browser.click("tr[data-id='first/runs/nag-s1'] .tag");
    browser.until(&format!("{shown} === 'title,first/runs/nag,first/runs/nag-s1'"));
    browser.click("tr[data-id='first/runs/nag-s1'] .tag");
    browser.until("document.getElementById('count').textContent === '7 of 7 runs'");

    browser.click("tr[data-title='first'] input");
    browser.until("document.getElementById('compare').textContent === 'Compare 6'");
    browser.click("#compare");
    browser.until("location.pathname === '/compare'");
    browser.until("document.querySelectorAll('#train path.curve').length === 2");
    browser.until("document.querySelectorAll('#train path.band').length === 2");
    let names = "[...document.querySelectorAll('#train .legend span')].map(s => s.textContent).sort().join()";
    assert_eq!(browser.value(names), "nag (3 seeds),prenorm (3 seeds)");
    browser.value(
        "(() => { const s = document.getElementById('seeds'); s.value = 'all'; s.onchange(); })()",
    );
    browser.until("document.querySelectorAll('#train path.curve').length === 6");
    // Seeds of a policy share its colour, and no other has it.
    let colours = "(() => { const of = (name) => [...document.querySelectorAll('#train .legend button')].filter(b => b.textContent.startsWith(name)).map(b => getComputedStyle(b.querySelector('i')).color); \
        return [new Set(of('nag')).size, new Set(of('prenorm')).size, of('nag')[0] === of('prenorm')[0]]; })()";
    assert_eq!(browser.value(colours), json!([1, 1, false]));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn lines_of_policies_follow_their_runs_and_new_runs_appear() {
    let Some(mut browser) = browser(1280) else { return };
    let site = site();
    browser.open(site.server.url());
    let loss = "document.querySelector('tr[data-group=\"first/runs/nag\"] .c-train').dataset.v";
    browser.until(&format!("{loss} !== ''"));
    let before = browser.value(loss);
    append(&site.folder.path().join("first/runs/nag-s1"), &lines(61..=90));
    browser.until(&format!("{loss} !== {before}"));
    seed(site.folder.path(), "nag", 3, 60);
    browser
        .until("document.querySelector('tr[data-group=\"first/runs/nag\"]').dataset.count === '4'");
    browser.until("document.getElementById('count').textContent === '8 of 8 runs'");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_mean_of_curves_is_taken_where_all_of_them_are() {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::new(|_| {});
    browser.open(site.server.url());
    let mean = browser.value(
        "import('/assets/means.js').then(({ mean }) => [ \
           mean([{ x: [0, 10, 20], y: [0, 10, 20] }, { x: [5, 15], y: [1, 3] }, { x: [], y: [] }]), \
           mean([{ x: [1, 2], y: [null, 4] }, { x: [1, 2], y: [1, 2] }]), mean([])])",
    );
    assert_eq!(mean[0]["x"], json!([5, 10, 15]));
    assert_eq!(mean[0]["y"], json!([3, 6, 9]));
    assert_eq!(mean[0]["band"], json!([[1, 2, 3], [5, 10, 15]]));
    assert_eq!(
        (&mean[0]["count"], &mean[1]["y"], &mean[2]["count"]),
        (&json!(2), &json!([3]), &json!(0))
    );
}

#[test]
fn a_suites_page_begins_with_the_answer_and_its_picture() {
    let site = site();
    let page = site.get("/suites/first").body;
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in {page}"));
    assert!(page.contains("<h1 class=\"verdict\">nag is better.</h1>"), "{page}");
    assert!(
        place("<h1") < place("class=\"forest\"")
            && place("class=\"forest\"") < place("id=\"figures\"")
    );
    assert!(place("class=\"badge\"") < place("In sentences"), "{page}");
    assert!(page.contains("All 7 columns"), "{page}");
    // Six columns at once; the seventh is folded.
    assert!(place("<details class=\"more\"><summary>All 7") < place("last"), "{page}");
    let figures = site.json("/api/suites/first")["table"]["figures"].clone();
    let [prenorm, nag] = [0, 1].map(|i| figures[0]["marks"]["series"][i]["look"]["colour"].clone());
    assert!(prenorm.is_u64() && nag.is_u64() && prenorm != nag, "{figures}");
    assert!(page.contains(&format!("<i class=\"swatch k{nag} v0\"></i>nag")), "{page}");
}

#[test]
fn a_suites_page_draws_everything_but_the_differences_twice() {
    let Some(mut browser) = browser(390) else { return };
    let site = site();
    browser.open(&format!("{}suites/first", site.server.url()));
    browser.until("document.querySelectorAll('#figures path.curve').length === 2");
    assert_eq!(browser.value("document.querySelectorAll('#figures .chart').length"), 1);
    let width = browser.value("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(width <= 390, "{width} pixels wide");
    browser.click("tr[data-group='first/runs/nag'] .fold");
    browser.until("[...document.querySelectorAll('tr.seed')].filter(r => !r.hidden).length === 3");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_suite_that_runs_says_how_long_it_takes() {
    let site = Site::new(|root| {
        seed(root, "nag", 0, 60);
        fs::remove_dir(root.join("first/runs/nag-s0/model")).unwrap();
        let config = root.join("first/runs/nag-s0/config.toml");
        let text = fs::read_to_string(&config).unwrap().replace("steps = 60", "steps = 60000");
        fs::write(config, text).unwrap();
        fs::write(root.join("first/suite.json"), "{}").unwrap();
        fs::create_dir_all(root.join("first/settings")).unwrap();
        for name in ["nag-s0", "nag-s1"] {
            fs::write(root.join(format!("first/settings/{name}.toml")), "").unwrap();
        }
    });
    let lock = fs::File::create(site.folder.path().join("first/runs/nag-s0/lock")).unwrap();
    lock.lock().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let page = site.get("/").body;
    // 1600 tokens a step at about 31,000 tokens a second are 52 minutes a run.
    assert!(page.contains("0 of 2 runs done"), "{page}");
    let told = page.split("<span class=\"busy\">about ").nth(1).unwrap_or_else(|| panic!("{page}"));
    assert!(told.starts_with("1 h 4"), "{told}");
    let run = site.get("/runs/first%2Fruns%2Fnag-s0").body;
    assert!(run.contains("Time left") && run.contains("/suites/first"), "{run}");
}
