//! `hadal serve`: what it says when it starts.

use crate::support::command;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The first line on stdout and the first lines on stderr of a server, which is then ended.
fn started(command: &mut Command) -> (String, Vec<String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = vec![lines.next().unwrap_or_default()];
    // The last line of a start begins so.
    while !said.last().unwrap().starts_with(['(', 'o']) {
        said.push(lines.next().expect("no last line"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (url.trim().to_owned(), said)
}

#[test]
fn the_start_says_how_a_phone_can_look() {
    let folder = TempDir::new().unwrap();
    let serve = || {
        let mut serve = command("serve");
        serve.arg(folder.path()).args(["--port", "0"]).env_remove("HADAL_TOKEN");
        serve
    };
    let (url, said) = started(&mut serve());
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with('/'), "{url}");
    assert!(said.last().unwrap().contains("--allow-remote"), "{said:?}");

    let (url, said) = started(serve().args(["--allow-remote", "--token", "seven"]));
    assert!(url.starts_with("http://localhost:") && url.ends_with("/?token=seven"), "{url}");
    let phone = said.iter().find(|line| line.starts_with("phone")).unwrap();
    assert!(phone.ends_with("/?token=seven") && !phone.contains("localhost"), "{phone}");
}

#[test]
fn the_help_says_how_a_phone_can_look() {
    let help = crate::support::run(command("serve").arg("--help")).succeeded().stdout;
    assert!(help.contains("hadal serve --allow-remote") && help.contains("phone"), "{help}");
}
