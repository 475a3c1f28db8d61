//! Texts that ship with the program, so that a first run needs no download.

use super::feed::FeedError;
use serde::{Deserialize, Serialize};

/// A text that ships with the program. Its tokens are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum BuiltIn {
    /// Mark Twain, A Connecticut Yankee in King Arthur's Court (1889).
    Yankee,
}

impl BuiltIn {
    const ALL: [Self; 1] = [Self::Yankee];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yankee => "yankee",
        }
    }

    pub(super) fn bytes(self) -> &'static [u8] {
        match self {
            Self::Yankee => include_bytes!("../assets/yankee.txt"),
        }
    }
}

impl TryFrom<String> for BuiltIn {
    type Error = FeedError;

    fn try_from(name: String) -> Result<Self, FeedError> {
        Self::ALL.into_iter().find(|text| text.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            FeedError::Unfit(format!(
                "unknown text `{name}`; built in: {known}. For a text of your own: `hadal data prepare {name} --out \
                 DIR`, then data.train=DIR"
            ))
        })
    }
}

impl From<BuiltIn> for &'static str {
    fn from(text: BuiltIn) -> Self {
        text.name()
    }
}
