//! Models and datasets: the same protocol, other folders.

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepositoryKind {
    Dataset,
    Model,
}

impl RepositoryKind {
    /// Its name in API paths and in the cache.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Dataset => "datasets",
            Self::Model => "models",
        }
    }

    /// The part before its name in the address of a page or file.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Dataset => "datasets/",
            Self::Model => "",
        }
    }
}
