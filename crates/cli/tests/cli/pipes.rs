//! Standard output and error that nobody reads, that are full, or that are terminals.

use crate::support::{WEIGHTS, command, copy_of, edit_tensors, golden, run, stories};
use hadal_files::testing::skip;
use std::fs::{self, File};
use std::io::PipeWriter;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn closed_pipe() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

/// `hadal ... | head`, when `head` has already gone.
pub(crate) fn into_closed_pipe(command: &mut Command) -> &mut Command {
    command.stdout(closed_pipe())
}

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    for arguments in [&["policies"][..], &["policies", "--json"], &["completions", "bash"]] {
        let quiet = run(into_closed_pipe(command(arguments[0]).args(&arguments[1..])));
        assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{arguments:?}");
    }
    for name in ["parity", "inspect"] {
        for json in [&[][..], &["--json"]] {
            let quiet =
                run(into_closed_pipe(command(name).arg(golden("mgr-competitive")).args(json)));
            assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{name}");
        }
    }
}

/// What a command finds is not only in what it prints.
#[test]
fn a_closed_pipe_does_not_change_the_verdict() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(WEIGHTS), |weights| {
        weights.get_mut("layers.0.mlp.up.weight").unwrap().set(5, |value| value + 1.0);
    });
    for json in [&[][..], &["--json"]] {
        let several = [golden("prenorm"), copy.path().to_owned()];
        let differs = run(into_closed_pipe(command("parity").args(several).args(json)));
        assert_eq!((differs.code, differs.stderr.as_str()), (1, ""));
    }
}

#[test]
fn files_are_written_although_nobody_reads_the_messages() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let stories = stories();
    let stories = stories.to_str().unwrap();
    fs::write(at("text.txt"), "Once upon a time there was a girl. ".repeat(200)).unwrap();
    let (text, cut) = (at("text.txt"), at("cut"));
    let (text, cut) = (text.to_str().unwrap(), cut.to_str().unwrap());
    let jobs: [(&[&str], &str, &str); 6] = [
        (&["import", stories], "imported", "config.json"),
        (&["export", stories, "--format", "hf"], "exported", "config.json"),
        (&["prune", "apply", stories, "--blocks", "2"], "cut", "pruned.json"),
        (
            &["prune", "plan", stories, "--data", text, "--blocks", "1", "--batches", "1"],
            "plan.json",
            "",
        ),
        (&["data", "prepare", text], "prepared", "manifest.json"),
        (
            &["diagnose", cut, "--data", text, "--batches", "1", "--only", "removal"],
            "figures",
            "about/summary.json",
        ),
    ];
    for (arguments, out, file) in jobs {
        let mut job = command(arguments[0]);
        job.args(&arguments[1..]).arg("--out").arg(at(out));
        let output = job.stdout(closed_pipe()).stderr(closed_pipe()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(at(out).join(file).exists() || at(out).is_file(), "{arguments:?}");
    }
}

#[test]
fn nobody_needs_to_read_the_messages() {
    let mut generate = command("generate");
    generate.arg(stories()).args(["--prompt", "Once upon a time", "-n", "20"]);
    let whole = run(&mut generate).succeeded().stdout;
    let deaf = run(generate.stderr(closed_pipe()));
    assert_eq!((deaf.code, deaf.stdout), (0, whole));
    // An error that nobody hears is still an error.
    assert_eq!(run(command("inspect").arg("nowhere").stderr(closed_pipe())).code, 2);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_failure_and_not_a_silence() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("imported");
    let full = || File::create("/dev/full").unwrap();
    for arguments in [&["policies"][..], &["policies", "--json"], &["completions", "zsh"]] {
        run(command(arguments[0]).args(&arguments[1..]).stdout(full()))
            .refused(1, &["cannot write the output", "No space left"]);
    }
    let import = run(command("import").arg(stories()).arg("--out").arg(&out).stdout(full()));
    assert_eq!(import.code, 1);
    assert!(
        import.stderr.ends_with("No space left on device (os error 28)\n"),
        "{}",
        import.stderr
    );
    assert!(out.join("config.json").exists());
}

/// `script` gives its command a terminal.
#[cfg(target_os = "linux")]
pub(crate) fn on_a_terminal(arguments: &str, no_color: bool) -> Option<String> {
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{} {arguments}", env!("CARGO_BIN_EXE_hadal")), "/dev/null"]);
    command.stdin(std::process::Stdio::null()).env("TERM", "xterm-256color");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    if no_color {
        command.env("NO_COLOR", "1");
    }
    let said = command.output().ok().map(|output| String::from_utf8(output.stdout).unwrap());
    if said.is_none() {
        skip("script", "there is no `script` here to make a terminal");
    }
    said
}

#[test]
#[cfg(target_os = "linux")]
fn an_error_is_red_on_a_terminal_unless_no_color_is_set() {
    let Some(coloured) = on_a_terminal("inspect nowhere", false) else { return };
    let Some(plain) = on_a_terminal("inspect nowhere", true) else { return };
    assert!(coloured.contains("\x1b[1;31merror\x1b[0m: cannot read nowhere"), "{coloured:?}");
    assert!(plain.contains("error: cannot read nowhere") && !plain.contains('\x1b'), "{plain:?}");
}

/// A terminal would obey it: a title, and red text.
const SPELL: &str = "\x1b]0;mine\x07 and \u{9b}31mred";
const SHOWN: &str = "\\u{1b}]0;mine\\u{7} and \\u{9b}31mred";

#[test]
fn names_in_files_do_not_reach_the_terminal() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(WEIGHTS), |weights| {
        let tensor = weights["norm.weight"].clone();
        weights.insert(SPELL.into(), tensor);
    });
    for (name, more) in [("parity", &[][..]), ("generate", &["--prompt=x"])] {
        let said = run(command(name).arg(copy.path()).args(more));
        said.failed(&[SHOWN]);
        assert!(!said.stderr.contains(['\x1b', '\u{9b}', '\x07']), "{:?}", said.stderr);
    }
    let missing = run(command("inspect").arg(Path::new(SPELL)));
    missing.refused(2, &[SHOWN]);
}

#[test]
#[cfg(target_os = "linux")]
fn text_of_files_is_shown_on_a_terminal_and_left_alone_elsewhere() {
    let folder = TempDir::new().unwrap();
    let (text, data) = (folder.path().join("text.txt"), folder.path().join("data"));
    fs::write(&text, format!("A line\twith {SPELL}\nand another")).unwrap();
    run(command("data").arg("prepare").arg(&text).arg("--out").arg(&data)).succeeded();
    let peek = format!("data peek {}", data.display());
    let Some(seen) = on_a_terminal(&peek, false) else { return };
    assert!(seen.contains(&format!("A line\twith {SHOWN}")), "{seen:?}");
    let piped = command("data").arg("peek").arg(&data).output().unwrap().stdout;
    assert!(String::from_utf8(piped).unwrap().contains(&format!("A line\twith {SPELL}\nand")));
}
