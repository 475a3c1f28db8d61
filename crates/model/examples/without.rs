//! Which block matters least? The loss of a text without each of them:
//!
//! ```text
//! cargo run --release --example without [MODEL]
//! ```

use hadal_model::{Device, Part, Pass, Tokenizer, Tokens, load};
use std::error::Error;
use std::io::{Write, stdout};
use std::path::PathBuf;

const TEXT: &str =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map_or("tests/models/stories260K".into(), PathBuf::from);
    let model = load(&path, &Device::flex())?;
    let tokenizer = Tokenizer::of_model(&path)?.ok_or("the model has no tokenizer")?;
    let ids = tokenizer.encode(TEXT)?;
    let (inputs, targets) = (Tokens::row(&ids[..ids.len() - 1]), Tokens::row(&ids[1..]));
    let scored = vec![true; targets.ids().len()];
    let loss = |absent: &[Part]| -> Result<f32, Box<dyn Error>> {
        let absent = Part::all_sites(absent);
        let pass = Pass { absent: &absent, ..Pass::default() };
        Ok(model.decoder.loss(&inputs, &targets, &scored, pass)?.into_scalar())
    };

    let whole = loss(&[])?;
    writeln!(stdout(), "whole model: {whole:.3} nats")?;
    for block in 0..model.decoder.config().n_layers {
        let change = loss(&[Part::Block(block)])? - whole;
        writeln!(stdout(), "without block {block}: {change:+.3}")?;
    }
    Ok(())
}
