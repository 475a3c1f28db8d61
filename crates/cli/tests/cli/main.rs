//! The command line as its users meet it: every test starts the real binary.

mod bench;
mod chat;
mod convert;
mod data;
mod diagnose;
mod faults;
mod formats;
mod generate;
mod hostile;
mod hub;
mod import;
mod inspect;
mod integrity;
mod memory;
mod new;
mod parity;
mod perplexity;
mod pipes;
mod plan;
mod policies;
mod prune;
mod python;
mod ranks;
mod report;
mod runs;
mod serve;
mod skip;
mod support;
mod terminal;
#[cfg(unix)]
mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{command, run};

const COMMANDS: [&str; 22] = [
    "plan",
    "runs",
    "chat",
    "perplexity",
    "policies",
    "parity",
    "inspect",
    "generate",
    "bench",
    "completions",
    "compare",
    "diagnose",
    "report",
    "serve",
    "skip",
    "import",
    "prune",
    "convert",
    "export",
    "verify",
    "new",
    "man",
];

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(command("completions").arg(shell)).succeeded().stdout;
        for name in COMMANDS {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    run(command("completions").arg("abacus")).refused(2, &["abacus", "bash", "zsh", "fish"]);
}

#[test]
fn help_and_version_are_answers_and_a_bare_hadal_shows_where_to_begin() {
    for name in COMMANDS {
        let help = run(command(name).arg("--help")).succeeded();
        assert!(help.stdout.contains("Usage: hadal"), "{}", help.stdout);
        assert_eq!(help.stderr, "");
    }
    let version = run(&mut command("--version")).succeeded().stdout;
    assert!(version.starts_with(concat!("hadal ", env!("CARGO_PKG_VERSION"), " (")), "{version}");
    assert!(version.contains("commit") && version.trim().ends_with(" kernels)"), "{version}");
    assert_eq!(run(&mut command("-V")).succeeded().stdout, version);
    let portable = run(command("--version").env("HADAL_PORTABLE", "1")).succeeded().stdout;
    assert!(portable.contains("portable kernels"), "{portable}");
    let portable = run(command("--version").env("HADAL_SIMD", "portable")).succeeded().stdout;
    assert!(portable.contains("portable kernels"), "{portable}");
    run(command("--version").env("HADAL_SIMD", "sse")).refused(2, &["HADAL_SIMD=sse", "avx512"]);
    let bare = run(&mut Command::new(env!("CARGO_BIN_EXE_hadal"))).succeeded();
    assert_eq!(bare.stderr, "");
    assert_eq!(bare.stdout.lines().filter(|line| line.starts_with("  hadal ")).count(), 5);
    assert!(bare.stdout.contains("hadal --help"), "{}", bare.stdout);
    let help = run(&mut command("--help")).succeeded().stdout;
    assert!(help.contains("Look into a model:\n  diagnose"), "{help}");
    run(&mut command("inspekt")).refused(2, &["inspekt", "inspect"]);
}

#[test]
fn the_files_that_help_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut seen = 0;
    for name in COMMANDS {
        let help = run(command(name).arg("--help")).succeeded().stdout;
        let is_ours =
            |word: &&str| ["tests/", "examples/", "configs/"].iter().any(|p| word.starts_with(p));
        for path in help.split_whitespace().filter(is_ours) {
            assert!(root.join(path.trim_end_matches('*')).exists(), "{name} --help names {path}");
            seen += 1;
        }
    }
    assert!(seen > 0, "there are no examples to try");
}

// Every run in these tests checks that nothing is coloured off a terminal.

#[test]
fn no_color_beats_a_forced_colour() {
    let forced = |command: &mut Command| command.env("CLICOLOR_FORCE", "1").output().unwrap();
    let coloured = forced(command("parity").arg("--help")).stdout;
    assert!(coloured.contains(&b'\x1b'), "there is nothing to switch off");
    let plain = forced(command("parity").arg("--help").env("NO_COLOR", "1")).stdout;
    assert!(!plain.is_empty() && !plain.contains(&b'\x1b'));
}

/// A skipped test must be able to fail where everything should be there: `hadal_files::testing::skip` is the only way.
#[test]
fn no_test_is_skipped_in_its_own_way() {
    fn visit(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let own = concat!("\"skip", "ped: ");
                if fs::read_to_string(&path).unwrap().contains(own) {
                    found.push(path);
                }
            }
        }
    }
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    assert!(matches!(&found[..], [only] if only.ends_with("files/src/testing.rs")), "{found:?}");
}

#[test]
fn exit_codes_are_written_down() {
    let help = run(&mut command("--help")).succeeded().stdout;
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = fs::read_to_string(page).unwrap();
    for code in ["0", "1", "2", "3", "101", "128 + n"] {
        assert!(help.contains(&format!("{code} ")), "no {code} in {help}");
        assert!(page.contains(&format!("| {code} |")), "no {code} in docs/cli.md");
    }
}
