//! Pictures for the docs, of runs that were really made:
//! `RUNS=folder PICTURES=docs/figures cargo test --release -p hadal-serve --test serve pictures -- --ignored`.

use crate::chromium::Browser;
use hadal_serve::{Options, Server};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

fn picture(browser: &mut Browser, name: &str, scheme: &str) {
    let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
    browser.call("Emulation.setEmulatedMedia", features);
    std::thread::sleep(Duration::from_millis(1500));
    let bytes = browser.call("Page.captureScreenshot", json!({ "format": "png" }));
    let folder = PathBuf::from(std::env::var_os("PICTURES").expect("PICTURES names a folder"));
    fs::write(folder.join(name), base64(bytes["data"].as_str().unwrap())).unwrap();
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().filter_map(|byte| DIGITS.iter().position(|&digit| digit == byte)) {
        bits = (bits << 6) | u32::try_from(digit).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).unwrap());
        }
    }
    bytes
}

#[test]
#[ignore = "writes pictures of the runs that RUNS names"]
fn pictures_of_the_pages_are_taken() {
    let runs = PathBuf::from(std::env::var_os("RUNS").expect("RUNS names a folder of runs"));
    let server = Server::bind(Options { port: 0, ..Options::new(runs) }).unwrap().spawn();
    let mut browser = Browser::start(1200, 780).unwrap();
    browser.open(server.url());
    browser.until("document.querySelectorAll('#runs tbody tr').length > 1");
    let links = "[...document.querySelectorAll('tbody tr[data-id]')].map(r => r.dataset.id)";
    let ids = browser.value(links);
    picture(&mut browser, "serve-list.png", "light");
    picture(&mut browser, "serve-list-dark.png", "dark");
    let mut query = String::new();
    for id in ids.as_array().unwrap().iter().take(6) {
        query += &format!("run={}&", id.as_str().unwrap().replace('/', "%2F"));
    }
    browser.open(&format!("{}compare?{}", server.url(), query.trim_end_matches('&')));
    browser.until("document.querySelectorAll('#train path.curve').length > 1");
    picture(&mut browser, "serve-compare-dark.png", "dark");
    picture(&mut browser, "serve-compare.png", "light");
    let shown = std::env::var("SHOWN").unwrap_or(ids[0].as_str().unwrap().to_owned());
    browser.open(&format!("{}runs/{}", server.url(), shown.replace('/', "%2F")));
    browser.until("document.querySelectorAll('#loss path.curve').length > 1");
    picture(&mut browser, "serve-run-dark.png", "dark");
    picture(&mut browser, "serve-run.png", "light");
    drop(browser);
    let mut browser = Browser::start(390, 780).unwrap();
    browser.open(server.url());
    picture(&mut browser, "serve-phone.png", "light");
}
