//! Commands in README.md and the docs: they parse, and what they write is ignored by git. `tools/readme-commands` runs
//! them.

use crate::Cli;
use clap::Parser;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that `.gitignore` names, for whatever commands write.
const IGNORED: [&str; 5] = ["runs/", "data/", "models/", "out/", "target/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README.md and every page of the docs.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = (fs::read_dir(root().join("docs")).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    pages.insert(0, root().join("README.md"));
    pages
}

/// The lines of all sh blocks, and whether they run: a comment before a block can say that they do not.
fn lines(page: &str) -> Vec<(String, bool)> {
    let (mut found, mut inside, mut runs) = (Vec::new(), false, true);
    for line in page.replace("\\\n", " ").lines().map(str::trim) {
        match line {
            "```sh" => inside = true,
            "```" if inside => (inside, runs) = (false, true),
            line if inside => found.push((line.to_owned(), runs)),
            "" => {}
            line => runs = !line.starts_with("<!-- not run: "),
        }
    }
    found
}

/// Words as a shell splits them; what joins commands and redirects is a word of its own, and comments are gone.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c @ ('|' | '>' | ';' | '&'), None) => {
                words.extend(word.take());
                words.push(c.into());
            }
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The calls of hadal in a line, with its name first.
fn calls(line: &str) -> Vec<Vec<String>> {
    let mut words = words(line);
    // Where output goes is no command.
    while let Some(at) = words.iter().position(|word| word == ">") {
        words.drain(at..(at + 2).min(words.len()));
    }
    let commands = words.split(|word| ["|", ";", "&"].contains(&word.as_str()));
    commands.filter_map(call).collect()
}

/// One command, if it is hadal: `cargo run .. --bin hadal -- WORDS`, `mpirun .. hadal WORDS`, or
/// `VARIABLE=VALUE .. hadal WORDS`.
fn call(words: &[String]) -> Option<Vec<String>> {
    let is = |place: usize, word: &str| words.get(place).is_some_and(|other| other == word);
    let start = if is(0, "cargo") {
        let ours = is(1, "run") && words.iter().any(|word| word == "hadal");
        words.iter().position(|word| ours && word == "--")?
    } else if is(0, "mpirun") || is(0, "srun") {
        words.iter().position(|word| word == "hadal")?
    } else {
        let start = words.iter().position(|word| !word.contains('='))?;
        (is(start, "hadal") || words[start].ends_with("/hadal")).then_some(start)?
    };
    Some(std::iter::once("hadal".to_owned()).chain(words[start + 1..].iter().cloned()).collect())
}

/// What a line writes: after `>`, and the values of options that name outputs.
fn outputs(line: &str) -> Vec<String> {
    let words = words(line);
    let is_output = |word: &str| ["--out", "-o", "--output", "--figures", ">"].contains(&word);
    let written = words.windows(2).filter(|pair| is_output(&pair[0])).map(|pair| pair[1].clone());
    written.filter(|path| path != "&" && !path.starts_with("/dev/")).collect()
}

#[test]
fn the_commands_of_the_docs_parse() {
    let mut seen = 0;
    for page in pages() {
        for (line, _) in lines(&fs::read_to_string(&page).unwrap()) {
            for call in calls(&line) {
                let parsed = Cli::try_parse_from(&call).map(drop);
                assert!(parsed.is_ok(), "{}: {line}\n{}", page.display(), parsed.unwrap_err());
                seen += 1;
            }
        }
    }
    assert!(seen > 25, "only {seen} commands were found");
}

#[test]
fn the_commands_of_the_docs_write_into_ignored_folders() {
    let ignored = fs::read_to_string(root().join(".gitignore")).unwrap();
    for folder in IGNORED {
        let line = format!("/{}", folder.trim_end_matches('/'));
        assert!(ignored.lines().any(|other| other == line), "{line} is not ignored");
    }
    let mut seen = 0;
    for page in pages() {
        for (line, runs) in lines(&fs::read_to_string(&page).unwrap()) {
            for output in outputs(&line).iter().filter(|_| runs) {
                let is_ignored = IGNORED.iter().any(|folder| output.starts_with(folder));
                assert!(is_ignored, "{}: `{output}` of: {line}", page.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 8, "only {seen} outputs were found");
}

#[test]
fn commands_are_found_as_a_shell_finds_them() {
    let call = |line| calls(line).into_iter().map(|words| words.join("+")).collect::<Vec<_>>();
    assert_eq!(
        call("hadal generate a --prompt 'b # c' > d.txt # e"),
        ["hadal+generate+a+--prompt+b # c"]
    );
    assert_eq!(
        call("echo hadal | hadal chat m && HADAL_TOKEN=x hadal serve"),
        ["hadal+chat+m", "hadal+serve"]
    );
    assert_eq!(call("cargo run --release --bin hadal -- compare"), ["hadal+compare"]);
    assert_eq!(call("mpirun -n 2 hadal train x --seed 3"), ["hadal+train+x+--seed+3"]);
    assert!(call("cargo test -- hadal; ls").is_empty() && call("# hadal train").is_empty());
    assert_eq!(
        call("hadal completions bash > ~/there/hadal; ./hadal x"),
        ["hadal+completions+bash", "hadal+x"]
    );
    assert_eq!(outputs("hadal x --out a > b; hadal y --figures 'c d'"), ["a", "b", "c d"]);
    let page = "```sh\na\n```\n<!-- not run: why -->\n\n```sh\nb \\\n c\n```\ntext\n```sh\nd\n```\n```text\ne\n```\n";
    let lines: Vec<(String, bool)> = lines(page);
    let expected = [("a", true), ("b   c", false), ("d", true)];
    assert_eq!(lines, expected.map(|(line, runs)| (line.to_owned(), runs)));
}
