//! Words that people put on a run to find it again, `tags.txt` in its folder.

use crate::files;
use hadal_files::{Action, FileError, file_error, write_whole};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Tags of a run, and characters of a tag.
const MOST: usize = 12;
const LONGEST: usize = 32;
/// The file's name.
pub(crate) const FILE: &str = "tags.txt";

/// The tags, in the order in which they were given. What cannot be a tag is left out.
pub(crate) fn read(run: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = files::open(run, FILE) {
        // What cannot be read to its end is shown as far as it can.
        let _ = file.take(files::NOTE).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let words = text.split_whitespace().map(|word| word.trim_start_matches('#').to_owned());
    let mut tags: Vec<String> = words.filter(|word| is_tag(word)).take(MOST).collect();
    let mut seen = std::collections::BTreeSet::new();
    tags.retain(|tag| seen.insert(tag.clone()));
    tags
}

/// Letters, digits and what joins them.
fn is_tag(word: &str) -> bool {
    let count = word.chars().count();
    (1..=LONGEST).contains(&count)
        && word.chars().all(|c| c.is_alphanumeric() || "-_.=+".contains(c))
}

/// Tags as people write them, or why they are none.
pub(crate) fn parse(text: &str) -> Result<Vec<String>, String> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let tags: Vec<String> = words.map(|word| word.trim_start_matches('#').to_owned()).collect();
    match tags.iter().find(|tag| !is_tag(tag)) {
        Some(odd) => Err(format!(
            "{odd:?} is no tag: tags have up to {LONGEST} letters, digits and any of - _ . = +"
        )),
        None if tags.len() > MOST => Err(format!("a run has at most {MOST} tags")),
        None => Ok(tags),
    }
}

/// Replaces the tags; without any, the file is removed.
pub(crate) fn write(run: &Path, tags: &[String]) -> Result<(), FileError> {
    let place = run.join(FILE);
    if tags.is_empty() {
        return match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file_error(Action::Remove, &place)(error))
            }
            _ => Ok(()),
        };
    }
    write_whole(&place, format!("{}\n", tags.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_words_and_nothing_else() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(read(run.path()), Vec::<String>::new());
        let tags = parse(" #best, lr=3e-4\nüben best ").unwrap();
        write(run.path(), &tags).unwrap();
        assert_eq!(read(run.path()), ["best", "lr=3e-4", "üben"]);
        for odd in ["<b>", "a\"b", &"x".repeat(33), "a/b", "a\u{202e}b"] {
            assert!(parse(odd).is_err(), "{odd}");
        }
        assert!(parse(&"a ".repeat(13)).is_err());
        fs::write(run.path().join(FILE), "<script> fine \0\u{ff}").unwrap();
        assert_eq!(read(run.path()), ["fine"]);
        write(run.path(), &[]).unwrap();
        assert!(!run.path().join(FILE).exists());
        write(run.path(), &[]).unwrap();
    }
}
