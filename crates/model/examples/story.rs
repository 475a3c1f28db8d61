//! Continues a text:
//!
//! ```text
//! cargo run --release --example story ['Once upon a time' [SEED]]
//! ```

use hadal_model::{Device, Limits, Sampler, Sampling, Session, Tokenizer, Variant, generate, load};
use std::error::Error;
use std::io::{Write, stdout};
use std::ops::ControlFlow;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let prompt = words.next().unwrap_or_else(|| "Once upon a time".into());
    let seed = words.next().map_or(Ok(0), |word| word.parse())?;

    let path = Path::new("tests/models/stories260K");
    let model = load(path, &Device::flex())?;
    let tokenizer = Tokenizer::of_model(path)?.ok_or("the model has no tokenizer")?;
    let limits = Limits { max_tokens: 100, ends: &model.ends, vocabulary: tokenizer.vocab_size() };
    let mut sampler = Sampler::new(Sampling { temperature: 0.8, seed, ..Sampling::default() })?;

    let mut ids: Vec<u32> = model.begin.into_iter().collect();
    ids.extend(tokenizer.encode(&prompt)?.into_iter().filter(|&id| Some(id) != model.begin));
    let mut session = Session::new(&model.decoder, Variant::default())?;
    let text = generate(&mut session, &ids, &limits, &mut sampler, |_| ControlFlow::Continue(()))?;
    ids.extend(&text.tokens);
    writeln!(stdout(), "{}", tokenizer.decode(&ids)?)?;
    writeln!(stdout(), "[{} tokens, {:?}]", text.tokens.len(), text.stop)?;
    Ok(())
}
