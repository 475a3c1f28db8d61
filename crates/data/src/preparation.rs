//! The command that makes a text ready for training, for messages that ask for it.

use std::fmt;
use std::path::{Path, PathBuf};

/// `hadal data prepare TEXT --tokenizer MODEL --out DIR`, with names that can be typed as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preparation {
    text: PathBuf,
    out: PathBuf,
    tokenizer: Option<PathBuf>,
}

impl Preparation {
    /// Of this text, into a directory beside it.
    pub fn of(text: &Path) -> Self {
        let text = from_here(text);
        let name = text.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let out = match name.split_once('.') {
            Some((stem, _)) if !stem.is_empty() => stem.to_owned(),
            // The directory cannot have the name of the file.
            _ => format!("{}-data", name.trim_start_matches('.')),
        };
        Self { out: text.with_file_name(out), text, tokenizer: None }
    }

    /// Of some text, for a model.
    pub fn for_model(model: &Path) -> Self {
        let any = Self { text: "TEXT".into(), out: "DIR".into(), tokenizer: None };
        any.with_tokenizer(model)
    }

    /// With the tokenizer of a file or of a model.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: &Path) -> Self {
        Self { tokenizer: Some(from_here(tokenizer)), ..self }
    }

    /// The directory that it writes.
    pub fn out(&self) -> &Path {
        &self.out
    }
}

impl fmt::Display for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hadal data prepare {}", self.text.display())?;
        if let Some(tokenizer) = &self.tokenizer {
            write!(f, " --tokenizer {}", tokenizer.display())?;
        }
        write!(f, " --out {}", self.out.display())
    }
}

/// The path as one would type it in the current directory.
fn from_here(path: &Path) -> PathBuf {
    let inside = std::env::current_dir().ok();
    let inside = inside.and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned));
    inside.filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_beside_the_text_and_never_the_text_itself() {
        let said = |text: &str| Preparation::of(Path::new(text)).to_string();
        assert_eq!(said("book.txt"), "hadal data prepare book.txt --out book");
        assert_eq!(said("a/b.jsonl.gz"), "hadal data prepare a/b.jsonl.gz --out a/b");
        assert_eq!(said("book"), "hadal data prepare book --out book-data");
        assert_eq!(said(".hidden"), "hadal data prepare .hidden --out hidden-data");
        let here = std::env::current_dir().unwrap();
        assert_eq!(said(&here.join("c.txt").display().to_string()), said("c.txt"));
        let model = Preparation::for_model(Path::new("cut")).to_string();
        assert_eq!(model, "hadal data prepare TEXT --tokenizer cut --out DIR");
    }
}
