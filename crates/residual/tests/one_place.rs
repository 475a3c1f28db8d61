//! Nothing outside this crate decides by the name of a policy.

use hadal_residual::ResidualConfig;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of formats, not decisions: the key of a JSON object, and the baseline of runs that are only files.
const FORMATS: [(&str, &str); 2] =
    [("cli/src/commands/inspect.rs", "prenorm"), ("report/src/page/verdict.rs", "prenorm")];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && !name.starts_with("test") {
            found.push(path);
        }
    }
}

/// The code before the tests, without comment lines.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(3).position(|next| {
        let is_tests = |line: &&str| line.contains("mod ") && line.ends_with('{');
        next[0].starts_with("#[cfg(") && next[0].contains("test") && next[1..].iter().any(is_tests)
    });
    let code = &lines[..tests.unwrap_or(lines.len())];
    code.iter()
        .filter(|line| !line.trim_start().starts_with("//"))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Places in the code that decide by a policy: a variant of the config, or a string that is a kind, alone or with
/// settings.
fn decisions(code: &str, kinds: &[&str]) -> Vec<String> {
    let variants = code.split("ResidualConfig::").skip(1).filter_map(|rest| {
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
        name.starts_with(char::is_uppercase).then(|| format!("ResidualConfig::{name}"))
    });
    let strings = code.split('"').filter(|text| {
        kinds.iter().any(|kind| {
            text.strip_prefix(kind).is_some_and(|rest| {
                rest.is_empty() || rest.strip_prefix(':').is_some_and(|rest| rest.contains('='))
            })
        })
    });
    variants.chain(strings.map(str::to_owned)).collect()
}

#[test]
fn no_other_crate_names_a_policy() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let all = ResidualConfig::all();
    let kinds: Vec<&str> = all.iter().map(|policy| policy.about().kind).collect();
    let mut wrong = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(crates).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.starts_with(crates.join("residual")) || !source.is_dir() {
            continue;
        }
        let mut found = Vec::new();
        sources(&source, &mut found);
        for path in found {
            files += 1;
            let name = path.strip_prefix(crates).unwrap().to_string_lossy().into_owned();
            for decision in decisions(&code(&fs::read_to_string(&path).unwrap()), &kinds) {
                if !FORMATS.contains(&(name.as_str(), decision.as_str())) {
                    wrong.push(format!("{name}: {decision}"));
                }
            }
        }
    }
    assert!(files > 200, "only {files} files were read");
    assert!(
        wrong.is_empty(),
        "ask the policy through `PolicyConfig` instead:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_decision_would_be_seen() {
    let kinds = ["nag", "mod"];
    assert_eq!(decisions("matches!(r, ResidualConfig::NormAgnostic(_))", &kinds).len(), 1);
    assert_eq!(decisions(r#"kind == "nag" || p == "mod:every=2""#, &kinds).len(), 2);
    assert!(decisions(r#"ResidualConfig::default(); "nag-gain""#, &kinds).is_empty());
    assert_eq!(code("a\n// \"nag\"\n#[cfg(test)]\nmod tests {\n\"nag\"\n}"), "a\n");
}
