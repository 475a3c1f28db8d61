//! The scripts in `tools/`: what they accept, and what they must notice.

use crate::support::run;
use hadal_files::testing::skip;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn tool(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools").join(name)
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

fn check(binary: &Path) -> crate::support::Run {
    run(Command::new(tool("release"))
        .arg("--check")
        .arg("--binary")
        .arg(binary)
        .stdin(Stdio::null()))
}

#[test]
fn a_release_has_a_page_and_completions_for_every_command() {
    let hadal = Path::new(env!("CARGO_BIN_EXE_hadal"));
    let checked = check(hadal).succeeded().stdout;
    assert!(checked.contains("manual pages, completions for bash, zsh and fish"), "{checked}");

    // A binary whose help lists a command more than it has pages for.
    let directory = TempDir::new().unwrap();
    let more = directory.path().join("hadal");
    let script = "#!/bin/sh\n'HADAL' \"$@\" |\nif [ \"$*\" = --help ]; then sed '/^Usage:/a\\  abacus  Count'; else cat; fi\n";
    executable(&more, &script.replace("HADAL", &hadal.display().to_string()));
    let noticed = check(&more);
    assert_eq!(noticed.code, 1, "{}", noticed.stdout);
    assert!(noticed.stderr.contains("no manual page hadal-abacus.1"), "{}", noticed.stderr);
    assert_eq!(check(&directory.path().join("absent")).code, 1);
}

/// Packed as it is: what the archive is called follows from what the binary needs.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn an_archive_says_what_its_binary_needs() {
    let directory = TempDir::new().unwrap();
    let mut release = Command::new(tool("release"));
    release.arg("--binary").arg(env!("CARGO_BIN_EXE_hadal")).arg("--out").arg(directory.path());
    let said = run(release.stdin(Stdio::null())).succeeded().stdout;
    let is_static = cfg!(target_feature = "crt-static");
    let (needs, name) = match is_static {
        true => ("it is static: it needs no library", "-static.tar.gz"),
        false => ("it needs these libraries: ", "-gnu-glibc2."),
    };
    assert!(said.contains(needs) && said.contains(name), "{said}");
    let mut names: Vec<String> = (fs::read_dir(directory.path()).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let [archive, sum] = &names[..] else { panic!("{names:?}") };
    assert!(archive.contains(name) && *sum == format!("{archive}.sha256"), "{names:?}");
    let listed = Command::new("tar").arg("-tzf").arg(directory.path().join(archive)).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    for file in ["/hadal\n", "/man/man1/hadal-prune-plan.1\n", "/INSTALL.md\n", "/LICENSE-MIT\n"] {
        assert!(listed.contains(file), "no {file:?} in {listed}");
    }
}

const PAGE: &str = "\
```sh
hadal one > runs/one
```
<!-- not run: needs a GPU -->
```sh
false
```
```sh
hadal two
false && true
false
```
```text
false
```
<!-- run with: MINE=yours false=true; first: hadal one > runs/first -->

```sh
hadal MINE NOT-MINE | grep -qx 'yours NOT-M.NE' && grep -qx one runs/first
false
```
```sh
hadal three > left.txt   # a comment
mkdir -p runs && hadal four > runs/four
```
";

/// A repository with one page, whose commands are tried.
fn repository(page: &str) -> Option<TempDir> {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    for folder in ["tools", "docs", "runs"] {
        fs::create_dir(at(folder)).unwrap();
    }
    let script = fs::read_to_string(tool("readme-commands")).unwrap();
    executable(&at("tools/readme-commands"), &script);
    executable(&at("hadal"), "#!/bin/sh\necho \"$@\"\n");
    fs::write(at("README.md"), page).unwrap();
    fs::write(at("runs/.gitignore"), "*\n!.gitignore\n").unwrap();
    let git = |arguments: &[&str]| {
        let settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let mut git = Command::new("git");
        git.args(settings).args(arguments).current_dir(directory.path());
        git.output().is_ok_and(|output| output.status.success())
    };
    (git(&["init", "-q"]) && git(&["add", "-A"]) && git(&["commit", "-qm", "a"]))
        .then_some(directory)
}

#[test]
fn commands_of_pages_that_fail_or_leave_something_are_noticed() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return skip("python3", "it runs tools/readme-commands");
    }
    let tried = |page: &str| {
        let repository = repository(page)?;
        let script = repository.path().join("tools/readme-commands");
        let mut command = Command::new(script);
        command.arg("--binary").arg(repository.path().join("hadal")).stdin(Stdio::null());
        Some(run(&mut command))
    };
    let Some(noticed) = tried(PAGE) else { return skip("git", "a repository to clone") };
    let text = &noticed.stdout;
    assert_eq!(noticed.code, 1, "{text}{}", noticed.stderr);
    assert!(text.contains("ok    README.md:2"), "{text}");
    assert!(text.contains("README.md:6 not run: needs a GPU"), "{text}");
    assert!(text.contains("WRONG README.md:9") && text.contains("FAILED: false"), "{text}");
    assert!(
        text.contains("ok    README.md:19")
            && text.contains("WRONG README.md:23")
            && text.contains("leaves left.txt"),
        "{text}"
    );
    assert!(!text.contains("leaves runs"), "{text}");
    assert!(text.contains("4 blocks ran, 1 did not; 2 are wrong"), "{text}");
    tried("```sh\nhadal one\n```\n").unwrap().succeeded();
}
