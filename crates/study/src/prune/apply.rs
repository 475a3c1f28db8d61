//! The cut itself: a new directory beside the old one, and a record of what was done.

use super::error::{PruneError, unfit};
use super::file::{FileHash, Source, SourceKind, hash, write_json};
use super::map::Renumbering;
use super::plan::Plan;
use super::rest::{self, Rest};
use super::scores::Scores;
use super::{gguf, hugging_face, own};
use hadal_files::{Action, StagedDirectory, file_error};
use hadal_model::{Part, read_config};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The record of a cut.
pub(super) const MANIFEST: &str = "pruned.json";

/// The record of a cut, `pruned.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The model that was cut.
    pub source: Source,
    /// Its blocks.
    pub blocks: usize,
    /// What is gone, by original numbers.
    pub removed: Vec<Part>,
    /// Original numbers of the blocks that stayed; the first is now block 0.
    pub kept: Vec<usize>,
    /// Sub-layers that are still there but return zeros, by original numbers: files have no way to leave them out.
    pub silenced: Vec<Part>,
    /// Whether the cut computes the same to the bit as the whole model that leaves the parts out, or to rounding only.
    pub exact: bool,
    /// What the parts were worth, if there was a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// What was written.
    pub files: Vec<FileHash>,
    /// Files of the original that were not copied, because they hold the whole model.
    pub not_copied: Vec<String>,
    /// Links out of the original's directory, pipes and the like, which were not copied either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Programs that were copied along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<String>,
    /// What was typed.
    pub command: String,
    /// How to make it again.
    pub redo: String,
    /// How to undo it.
    pub undo: String,
}

/// Cuts parts out of a model and writes the rest to `out`, a directory that does not exist yet. The source is never
/// touched.
pub fn apply(
    path: &Path,
    remove: &[Part],
    plan: Option<&Plan>,
    out: &Path,
    command: &str,
) -> Result<Manifest, PruneError> {
    if out.exists() {
        return Err(PruneError::Exists { path: out.into() });
    }
    let source = Source::open(path)?;
    source.verify()?;
    if let Some(plan) = plan {
        source.same_as(&plan.source, "it was planned for")?;
    }
    let blocks = match source.kind {
        SourceKind::Gguf => gguf::blocks(&source.path)?,
        SourceKind::HuggingFace => hugging_face::blocks(&source.path)?,
        SourceKind::Hadal => read_config(&source.path)?.n_layers,
    };
    if let Some(plan) = plan.filter(|plan| plan.blocks != blocks) {
        let said = plan.blocks;
        return Err(unfit(
            &source.path,
            format!("it has {blocks} blocks, but the plan is for {said}"),
        ));
    }
    let map = Renumbering::new(blocks, remove)?;
    let staged = StagedDirectory::create(out)?;
    let (exact, rest) = write(&source, &map, staged.path())?;
    let removed = Part::of_sites(&Part::all_sites(remove));
    let redo = format!(
        "hadal prune apply {} --blocks {} --out {}",
        quoted(&source.path),
        Part::list(&removed),
        quoted(out)
    );
    // Also in the place of a copy of the whole model's.
    hadal_files::write_manifest(staged.path())?;
    let manifest = Manifest {
        blocks,
        removed,
        kept: map.kept().to_vec(),
        silenced: map.silent().to_vec(),
        exact,
        scores: plan.map(|plan| plan.scores.clone()),
        files: hashes(staged.path())?,
        not_copied: rest.weights,
        left_out: rest.left_out,
        code: rest.code,
        command: command.into(),
        redo,
        undo: format!("rm -r {}   # {} is untouched", quoted(out), quoted(&source.path)),
        source,
    };
    write_json(&staged.path().join(MANIFEST), &manifest)?;
    staged.finish()?;
    Ok(manifest)
}

/// Writes everything but the record. Returns whether it is exact, and what became of other files.
fn write(source: &Source, map: &Renumbering, staging: &Path) -> Result<(bool, Rest), PruneError> {
    let copy = || rest::copy(&source.path, staging, MANIFEST);
    match source.kind {
        SourceKind::Gguf => {
            let name = source.path.file_name().unwrap_or_default();
            gguf::cut(&source.path, map, &staging.join(name))?;
            Ok((true, Rest::default()))
        }
        SourceKind::HuggingFace => {
            hugging_face::cut(&source.path, map, staging)?;
            Ok((true, copy()?))
        }
        SourceKind::Hadal => {
            let exact = own::cut(&source.path, map, staging)?;
            Ok((exact, copy()?))
        }
    }
}

fn hashes(directory: &Path) -> Result<Vec<FileHash>, PruneError> {
    let entries = fs::read_dir(directory).map_err(file_error(Action::Read, directory))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| hash(path)).collect()
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted(Path::new("/a/b-c.gguf")), "/a/b-c.gguf");
        assert_eq!(quoted(Path::new("it's mine")), r"'it'\''s mine'");
    }
}
