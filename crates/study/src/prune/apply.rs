//! The cut itself: a new directory beside the old one, and a record of what was done.

use super::error::{PruneError, unfit};
use super::file::{FileHash, Source, SourceKind, hash, write_json};
use super::halves::MeasuredOn;
use super::map::Renumbering;
use super::plan::Plan;
use super::rest;
use super::scores::Scores;
use super::{gguf, hugging_face, own};
use crate::words::quoted;
use hadal_files::{Action, StagedDirectory, create_directory, file_error};
use hadal_model::{Part, read_config};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The record of a cut.
const MANIFEST: &str = "pruned.json";

/// Where the record of a cut is: in its directory, or beside its file.
pub(super) fn record_of(cut: &Path) -> PathBuf {
    if is_file(cut) { cut.with_extension(MANIFEST) } else { cut.join(MANIFEST) }
}

/// Whether a cut is a GGUF file, rather than a directory.
pub(super) fn is_file(cut: &Path) -> bool {
    cut.extension().is_some_and(|extension| extension == "gguf") && !cut.is_dir()
}

/// How a cut is undone.
pub(super) fn undo(cut: &Path) -> String {
    match is_file(cut) {
        true => format!("rm {} {}", quoted(cut), quoted(&record_of(cut))),
        false => format!("rm -r {}", quoted(cut)),
    }
}

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
    /// Whether nothing is known of its family, so that only what its files say of blocks was corrected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub structure_only: bool,
    /// What people should know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the parts were worth, if there was a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// What the plan was measured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<MeasuredOn>,
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

/// Cuts parts out of a model and writes the rest to `out`, which does not exist yet: a directory, or a GGUF file if it is
/// named so and was cut from one. The source is never touched.
pub fn apply(
    path: &Path,
    remove: &[Part],
    plan: Option<&Plan>,
    out: &Path,
    command: &str,
) -> Result<Manifest, PruneError> {
    cut(path, remove, plan, false, out, command)
}

/// The same for a family of which nothing is known: what its files say of blocks is corrected, what is not understood is
/// refused. If a class derives more from a block's number, the cut computes something else.
pub fn apply_structure_only(
    path: &Path,
    remove: &[Part],
    out: &Path,
    command: &str,
) -> Result<Manifest, PruneError> {
    cut(path, remove, None, true, out, command)
}

fn cut(
    path: &Path,
    remove: &[Part],
    plan: Option<&Plan>,
    structure_only: bool,
    out: &Path,
    command: &str,
) -> Result<Manifest, PruneError> {
    for path in [out, &record_of(out)] {
        if path.exists() {
            return Err(PruneError::Exists { path: path.into() });
        }
    }
    let kind = Source::kind_of(path)?;
    if is_file(out) && kind != SourceKind::Gguf {
        return Err(unfit(out, DIRECTORY));
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
    let removed = Part::of_sites(&Part::all_sites(remove));
    let redo = format!(
        "hadal prune apply {} --blocks {}{} --out {}",
        quoted(&source.path),
        Part::list(&removed),
        if structure_only { " --structure-only" } else { "" },
        quoted(out)
    );
    let mut manifest = Manifest {
        blocks,
        removed,
        kept: map.kept().to_vec(),
        silenced: map.silent().to_vec(),
        exact: true,
        structure_only,
        notes: Vec::new(),
        scores: plan.map(|plan| plan.scores.clone()),
        data: plan.and_then(|plan| plan.data.clone()),
        files: Vec::new(),
        not_copied: Vec::new(),
        left_out: Vec::new(),
        code: Vec::new(),
        command: command.into(),
        redo,
        undo: format!("{}   # {} is untouched", undo(out), quoted(&source.path)),
        source,
    };
    match is_file(out) {
        true => write_file(&mut manifest, &map, out)?,
        false => write_directory(&mut manifest, &map, out)?,
    }
    Ok(manifest)
}

/// What to do with a directory that should become a file.
const DIRECTORY: &str = "a cut of a directory is a directory, and this is the name of a file; cut with --out smaller, then \
     write the file with `hadal export smaller --format gguf --out model.gguf`";

/// Writes a GGUF file, and its record beside it.
fn write_file(manifest: &mut Manifest, map: &Renumbering, out: &Path) -> Result<(), PruneError> {
    if let Some(above) = out.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_directory(above)?;
    }
    manifest.notes = gguf::cut(&manifest.source.path, map, manifest.structure_only, out)?;
    manifest.files = vec![hash(out)?];
    write_json(&record_of(out), manifest)
}

/// Writes a directory with its record: all of it or nothing.
fn write_directory(
    manifest: &mut Manifest,
    map: &Renumbering,
    out: &Path,
) -> Result<(), PruneError> {
    let staged = StagedDirectory::create(out)?;
    write(manifest, map, staged.path())?;
    // Also in the place of a copy of the whole model's.
    hadal_files::write_manifest(staged.path())?;
    manifest.files = hashes(staged.path())?;
    write_json(&staged.path().join(MANIFEST), manifest)?;
    Ok(staged.finish()?)
}

/// Writes everything but the record, which learns whether it is exact, and what became of other files.
fn write(manifest: &mut Manifest, map: &Renumbering, staging: &Path) -> Result<(), PruneError> {
    let (path, unknown) = (manifest.source.path.clone(), manifest.structure_only);
    match manifest.source.kind {
        SourceKind::Gguf => {
            let name = path.file_name().unwrap_or_default();
            manifest.notes = gguf::cut(&path, map, unknown, &staging.join(name))?;
            return Ok(());
        }
        SourceKind::HuggingFace => {
            manifest.notes = hugging_face::cut(&path, map, unknown, staging)?;
        }
        SourceKind::Hadal => manifest.exact = own::cut(&path, map, staging)?,
    }
    let rest = rest::copy(&path, staging, MANIFEST)?;
    manifest.not_copied = rest.weights;
    manifest.left_out = rest.left_out;
    manifest.code = rest.code;
    Ok(())
}

/// The files of a directory.
pub(super) fn hashes(directory: &Path) -> Result<Vec<FileHash>, PruneError> {
    let entries = fs::read_dir(directory).map_err(file_error(Action::Read, directory))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| hash(path)).collect()
}
