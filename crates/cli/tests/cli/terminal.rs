//! How results look on a terminal, and that files hear nothing of it.

use crate::support::{command, run};

/// Without colours.
#[cfg(target_os = "linux")]
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// A terminal that does not say how wide it is has 80 columns.
#[test]
#[cfg(target_os = "linux")]
fn tables_fit_a_terminal_and_have_colours_there() {
    use crate::pipes::on_a_terminal;
    // Help is clap's to lay out, and it takes such a terminal for one of 100.
    for (arguments, width) in [("policies", 80), ("policies mgr", 80), ("", 80), ("--help", 100)] {
        let Some(seen) = on_a_terminal(arguments, false) else { return };
        let long: Vec<String> = seen
            .lines()
            .map(plain)
            .filter(|line| line.trim_end().chars().count() > width)
            .collect();
        assert!(long.is_empty(), "{arguments}: {long:#?}");
        assert!(seen.contains('\x1b'), "{arguments}: {seen}");
        let Some(without) = on_a_terminal(arguments, true) else { return };
        assert_eq!(plain(&seen), without, "{arguments}");
    }
    let Some(never) = on_a_terminal("policies --color never", false) else { return };
    assert!(!never.contains('\x1b'), "{never}");
}

#[test]
fn files_have_every_column_on_one_line_and_colours_only_if_asked() {
    let piped = run(&mut command("policies")).succeeded().stdout;
    let line = piped.lines().find(|line| line.starts_with("mgr:")).unwrap();
    assert!(line.len() > 80 && line.contains("gate=competitive"), "{line}");
    let asked = command("policies").args(["--color", "always"]).output().unwrap();
    assert!(asked.stdout.contains(&b'\x1b'));
    run(command("policies").args(["--color", "sometimes"])).refused(2, &["sometimes", "auto"]);
}
