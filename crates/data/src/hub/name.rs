//! `owner/name[@revision][:part]`.

use std::fmt;

/// The name of a repository, and of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepositoryName {
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) revision: Option<String>,
    /// A file or folder.
    pub(crate) part: Option<String>,
}

impl RepositoryName {
    /// `None` if it cannot be a repository.
    pub(crate) fn parse(input: &str) -> Option<Self> {
        let split = |text: &str, mark: char| match text.split_once(mark) {
            Some((before, behind)) => (before.to_owned(), Some(behind.to_owned())),
            None => (text.to_owned(), None),
        };
        let (id, part) = split(input, ':');
        let (id, revision) = split(&id, '@');
        let (owner, name) = id.split_once('/')?;
        let word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let given = |text: &Option<String>| text.as_ref().is_none_or(|text| !text.is_empty());
        let sound = word(owner) && word(name) && given(&revision) && given(&part);
        sound.then(|| Self { owner: owner.into(), name: name.into(), revision, part })
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(part) = &self.part {
            write!(f, ":{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories_are_told_from_other_names() {
        for name in ["Qwen/Qwen3-0.6B", "a/b.c@v1", "a/b:c/d.gguf", "a/b@main:x"] {
            assert_eq!(RepositoryName::parse(name).unwrap().to_string(), name);
        }
        for other in ["plain", "a/b/c", "/a", "a/", "../b", "a/b:", "a/b@", "a b/c", ""] {
            assert_eq!(RepositoryName::parse(other), None, "{other}");
        }
    }
}
