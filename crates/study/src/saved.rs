//! A model's files in a directory that is still being filled.

use hadal_files::{Action, file_error, point};
use hadal_model::{CheckpointError, Decoder, save};
use std::fs;
use std::path::Path;

/// Saves a model into a directory that is staged. Saving replaces a directory by another one, and a staged one must stay
/// the same: its lock says that it is alive. So the files are moved out of one of their own.
pub(crate) fn save_into(decoder: &Decoder, staging: &Path) -> Result<(), CheckpointError> {
    let apart = staging.join("model");
    save(decoder, &apart)?;
    for entry in fs::read_dir(&apart).map_err(file_error(Action::Read, &apart))? {
        let entry = entry.map_err(file_error(Action::Read, &apart))?;
        let place = staging.join(entry.file_name());
        point(Action::Rename, &place)?;
        fs::rename(entry.path(), &place).map_err(file_error(Action::Rename, &place))?;
    }
    Ok(fs::remove_dir(&apart).map_err(file_error(Action::Remove, &apart))?)
}
