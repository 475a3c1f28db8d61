//! Which tokenizer a model's text goes through, and whether it can be the right one.

use crate::failure::Failure;
use crate::model_file::generated_task;
use crate::output::{grouped, warn};
use hadal_model::{Checkpoint, Tokenizer};
use std::path::Path;

/// Vocabularies are padded to a multiple of something, at most this.
const PADDING: usize = 1024;
/// The most that a byte model's vocabulary has: the bytes, an end token, and padding. With fewer tokens than bytes, those
/// that are missing are refused when they come.
const BYTES: usize = 512;

/// The tokenizer that was named, or else the model's own, with the ends that the model's files state.
pub(crate) fn tokenizer_of(
    model: &Path,
    named: Option<&Path>,
    checkpoint: &Checkpoint,
) -> Result<Tokenizer, Failure> {
    let vocab_size = checkpoint.decoder.config().vocab_size;
    refuse_task(model, vocab_size)?;
    let own = || Tokenizer::of_model(model).map_err(Failure::failed);
    let tokenizer = match named {
        Some(name) if name == Path::new("bytes") => {
            check_bytes(model, vocab_size, own()?.as_ref())?;
            Tokenizer::bytes()
        }
        Some(file) => {
            let tokenizer = Tokenizer::from_file(file).map_err(Failure::failed)?;
            if tokenizer.vocab_size().next_multiple_of(PADDING) < vocab_size {
                warn(&format!(
                    "{} has {} tokens and {} {}: unless they belong together, the text means nothing",
                    file.display(),
                    grouped(tokenizer.vocab_size() as i128),
                    model.display(),
                    grouped(vocab_size as i128),
                ));
            }
            tokenizer
        }
        None => match own()? {
            Some(tokenizer) => tokenizer,
            // Exactly the bytes, with or without an end token: it can be nothing else.
            None if (256..=257).contains(&vocab_size) => Tokenizer::bytes(),
            None => {
                return Err(Failure::failed(format!(
                    "{} is missing; copy the model's tokenizer there, or name one with --tokenizer \
                     FILE, or --tokenizer bytes for a byte model",
                    model.join("tokenizer.json").display()
                )));
            }
        },
    };
    // A byte model may have no room for the end token that would also begin a text.
    let begin = checkpoint.begin.or(tokenizer.begin());
    let tokenizer = tokenizer.with_begin(begin.filter(|&id| (id as usize) < vocab_size));
    Ok(if checkpoint.ends.is_empty() {
        tokenizer
    } else {
        tokenizer.with_ends(checkpoint.ends.clone())
    })
}

/// Refuses a model that was trained on a generated task: it has no text.
pub(crate) fn refuse_task(model: &Path, vocab_size: usize) -> Result<(), Failure> {
    let Some(task) = generated_task(model) else { return Ok(()) };
    Err(Failure::failed(format!(
        "{} was trained on the generated task {task}: its {vocab_size} tokens are symbols of that task, so it has no \
         text to read or write; look into it with `hadal diagnose`, or train one on text (`hadal data prepare`)",
        model.display()
    )))
}

/// Refuses bytes for a model that reads something else.
fn check_bytes(model: &Path, vocabulary: usize, own: Option<&Tokenizer>) -> Result<(), Failure> {
    let remedy = match own {
        None if vocabulary <= BYTES => return Ok(()),
        Some(own) => {
            format!("it has a tokenizer of its own ({}): leave --tokenizer out", own.kind())
        }
        None => "name its tokenizer with --tokenizer FILE".into(),
    };
    Err(Failure::usage(format!(
        "--tokenizer bytes does not fit {}, which has a vocabulary of {} tokens; {remedy}",
        model.display(),
        grouped(vocabulary as i128)
    )))
}
