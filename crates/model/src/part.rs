//! Parts of a model by name: `17` is a block, `attn:20` an attention, `mlp:7` an MLP.

use hadal_residual::{Site, SubLayerKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A part of a model that can be left out. Blocks are counted from 0.
///
/// ```
/// use hadal_model::Part;
///
/// let part: Part = "attn:20".parse()?;
/// assert_eq!(part, Part::Attention(20));
/// assert_eq!(Part::Block(3).sites().len(), 2); // its attention and its MLP
/// assert_eq!(Part::list(&Part::of_sites(&Part::Block(3).sites())), "3");
/// assert!("block 3".parse::<Part>().is_err());
/// # Ok::<(), hadal_model::PartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Part {
    /// A whole block.
    Block(usize),
    /// The attention of a block.
    Attention(usize),
    /// The MLP of a block.
    Mlp(usize),
}

/// The text names no part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a part of a model; write a block such as 17, an attention such as attn:20 or an MLP such as mlp:7"
)]
pub struct PartError {
    /// The text.
    pub text: String,
}

impl Part {
    /// The block that it is, or that it belongs to.
    pub fn block(self) -> usize {
        match self {
            Self::Block(block) | Self::Attention(block) | Self::Mlp(block) => block,
        }
    }

    /// Its sub-layers.
    pub fn sites(self) -> Vec<Site> {
        let site = |half| Site::new(2 * self.block() + half);
        match self {
            Self::Block(_) => vec![site(0), site(1)],
            Self::Attention(_) => vec![site(0)],
            Self::Mlp(_) => vec![site(1)],
        }
    }

    /// The sub-layers of several parts, each once, in order.
    pub fn all_sites(parts: &[Self]) -> Vec<Site> {
        parts.iter().flat_map(|part| part.sites()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The fewest parts that make up these sub-layers, in order: both halves of a block are a block.
    pub fn of_sites(sites: &[Site]) -> Vec<Self> {
        let sites: BTreeSet<Site> = sites.iter().copied().collect();
        let blocks: BTreeSet<usize> = sites.iter().map(|site| site.block()).collect();
        let has = |block: usize, half: usize| sites.contains(&Site::new(2 * block + half));
        let part = |block: usize| match (has(block, 0), has(block, 1)) {
            (true, true) => Self::Block(block),
            (true, false) => Self::Attention(block),
            _ => Self::Mlp(block),
        };
        blocks.into_iter().map(part).collect()
    }

    /// The spelling on a command line: `17,attn:20`.
    pub fn list(parts: &[Self]) -> String {
        parts.iter().map(Self::to_string).collect::<Vec<_>>().join(",")
    }
}

impl From<Site> for Part {
    fn from(site: Site) -> Self {
        match site.kind() {
            SubLayerKind::Attention => Self::Attention(site.block()),
            SubLayerKind::Mlp => Self::Mlp(site.block()),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(block) => write!(f, "{block}"),
            Self::Attention(block) => write!(f, "attn:{block}"),
            Self::Mlp(block) => write!(f, "mlp:{block}"),
        }
    }
}

impl FromStr for Part {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let wrong = || PartError { text: text.into() };
        let (kind, number): (fn(usize) -> Self, &str) = match text.trim().split_once(':') {
            None => (Self::Block, text),
            Some(("attn", number)) => (Self::Attention, number),
            Some(("mlp", number)) => (Self::Mlp, number),
            Some(_) => return Err(wrong()),
        };
        let number = number.trim();
        // `+3` would parse as a number, but it is never meant.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        // Far beyond any model, but its sub-layers can still be counted.
        let block = number.parse().ok().filter(|&block: &usize| block < usize::MAX / 4);
        block.map(kind).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Part {
    type Error = PartError;

    fn try_from(text: String) -> Result<Self, PartError> {
        text.parse()
    }
}

impl From<Part> for String {
    fn from(part: Part) -> Self {
        part.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_they_are_written() {
        for text in ["17", "attn:20", "mlp:7", "0"] {
            assert_eq!(text.parse::<Part>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "x",
            "-1",
            "+1",
            "attn",
            "attn:",
            "mlp:x",
            "block:3",
            "1-3",
            "99999999999999999999",
        ] {
            let error = text.parse::<Part>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn both_halves_of_a_block_are_the_block() {
        let parts = [Part::Mlp(3), Part::Attention(1), Part::Block(2), Part::Attention(3)];
        let sites = Part::all_sites(&parts);
        assert_eq!(sites.iter().map(|site| site.index).collect::<Vec<_>>(), [2, 4, 5, 6, 7]);
        assert_eq!(Part::of_sites(&sites), [Part::Attention(1), Part::Block(2), Part::Block(3)]);
        assert_eq!(Part::list(&Part::of_sites(&sites)), "attn:1,2,3");
    }
}
