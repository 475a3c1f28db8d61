//! A suite on a terminal: what is known so far is shown while it runs.

use crate::compare::{THREE, written};
use crate::support::temporary;
use hadal_files::testing::skip;
use std::process::{Command, Stdio};

/// `script` gives its command a terminal, of 80 columns if nobody says how wide it is.
#[test]
fn a_suite_on_a_terminal_shows_pairs_early_and_the_answer_first() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let line = format!(
        "{} compare {} --out {} --jobs 1",
        env!("CARGO_BIN_EXE_hadal"),
        suite.display(),
        directory.path().join("out").display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
    command.env("HADAL_CACHE", "/dev/null/cache").env("TERM", "xterm-256color");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    let Ok(output) = command.output() else {
        return skip("script", "there is no `script` here to make a terminal");
    };
    let seen = String::from_utf8_lossy(&output.stdout);
    let pair = seen.find("difference to prenorm so far").expect(&seen);
    let last = seen.find("5 of 6 runs").expect(&seen);
    assert!(pair < last, "the first pair comes before the last run: {seen}");
    let answer = seen.find("o difference").expect(&seen);
    let table = seen.rfind("95 % interval").expect(&seen);
    assert!(last < answer && answer < table, "{seen}");
    assert!(seen[answer..].contains("columns; --all-columns"), "{seen}");
}
