//! Can it still count and copy? Choosing among given answers survives cuts that free generation does not, so both are
//! tested.

use super::error::PruneError;
use hadal_model::{
    Decoder, Limits, PassError, Sampler, Sampling, Session, Tokenizer, Tokens, Variant, generate,
};
use hadal_residual::StepMode;
use hadal_train::quality::losses;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// A prompt, its answer, and answers that are wrong.
struct Question {
    kind: &'static str,
    prompt: &'static str,
    answer: &'static str,
    wrong: [&'static str; 3],
}

const QUESTIONS: [Question; 12] = [
    sum("1 + 1 = 2\n2 + 2 = 4\n2 + 3 =", " 5", [" 4", " 6", " 9"]),
    sum("1 + 2 = 3\n3 + 3 = 6\n4 + 4 =", " 8", [" 7", " 9", " 2"]),
    sum("2 + 1 = 3\n5 + 2 = 7\n3 + 4 =", " 7", [" 8", " 5", " 1"]),
    sum("5 - 2 = 3\n6 - 1 = 5\n9 - 3 =", " 6", [" 5", " 7", " 3"]),
    sum("2 * 2 = 4\n3 * 2 = 6\n2 * 4 =", " 8", [" 6", " 9", " 4"]),
    sum("1, 2, 3, 4, 5, 6,", " 7", [" 8", " 5", " 1"]),
    copy("apple -> apple\nriver -> river\nstone ->", " stone", [" apple", " river", " cloud"]),
    copy("red -> red\nblue -> blue\ngreen ->", " green", [" red", " blue", " black"]),
    copy("The cat sat. The cat sat. The cat", " sat", [" ran", " ate", " dog"]),
    copy("one two three. one two three. one two", " three", [" one", " two", " four"]),
    copy("Her name was Lily. They called her", " Lily", [" Tom", " Anna", " Max"]),
    copy("a b c d e. a b c d e. a b c d", " e", [" a", " b", " c"]),
];

const fn sum(prompt: &'static str, answer: &'static str, wrong: [&'static str; 3]) -> Question {
    Question { kind: "arithmetic", prompt, answer, wrong }
}

const fn copy(prompt: &'static str, answer: &'static str, wrong: [&'static str; 3]) -> Question {
    Question { kind: "copy", prompt, answer, wrong }
}

/// Prompts whose continuations are shown.
const PROMPTS: [&str; 3] =
    ["Once upon a time", "The most important thing about", "She opened the door and"];
/// Length of a continuation.
const CONTINUATION: usize = 32;

/// How many questions of one kind a model answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// `arithmetic` or `copy`.
    pub kind: String,
    /// How many there are.
    pub questions: usize,
    /// How often the answer is likelier than all wrong ones: original, cut.
    pub likelier: [usize; 2],
    /// How often the model writes the answer: original, cut.
    pub written: [usize; 2],
}

/// A text as both models continue it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleText {
    /// How it begins.
    pub prompt: String,
    /// How the original continues.
    pub original: String,
    /// How the cut model continues.
    pub cut: String,
}

/// A model, and the mode in which it is asked.
pub(super) type Asked<'a> = (&'a Decoder, &'a StepMode);

/// Asks both models everything.
pub(super) fn probe(
    models: [Asked; 2],
    tokenizer: &Tokenizer,
) -> Result<Vec<ProbeResult>, PruneError> {
    let mut results: Vec<ProbeResult> = Vec::new();
    for question in &QUESTIONS {
        let kind = question.kind.to_owned();
        if results.last().is_none_or(|result| result.kind != kind) {
            results.push(ProbeResult { kind, questions: 0, likelier: [0; 2], written: [0; 2] });
        }
        let Some(result) = results.last_mut() else { continue };
        result.questions += 1;
        for (i, model) in models.into_iter().enumerate() {
            result.likelier[i] += usize::from(prefers(model, tokenizer, question)?);
            result.written[i] += usize::from(writes(model, tokenizer, question)?);
        }
    }
    Ok(results)
}

/// Whether the answer is likelier than every wrong one.
fn prefers(model: Asked, tokenizer: &Tokenizer, question: &Question) -> Result<bool, PruneError> {
    let right = likelihood(model, tokenizer, question.prompt, question.answer)?;
    for wrong in question.wrong {
        if likelihood(model, tokenizer, question.prompt, wrong)? >= right {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Mean log-probability of an answer's tokens: answers differ in length.
fn likelihood(
    model: Asked,
    tokenizer: &Tokenizer,
    prompt: &str,
    answer: &str,
) -> Result<f64, PruneError> {
    let ids = tokenizer.encode(&format!("{prompt}{answer}"))?;
    let before = tokenizer.encode(prompt)?;
    // A tokenizer may join the end of the prompt to the answer; what is common comes before.
    let common = before.iter().zip(&ids).take_while(|(a, b)| a == b).count();
    let first = common.clamp(1, ids.len().saturating_sub(1).max(1));
    let (input, target) = (Tokens::row(&ids[..ids.len() - 1]), Tokens::row(&ids[1..]));
    let logits = model.0.logits(&input, Variant::in_mode(model.1).pass())?;
    let losses = losses(logits, &target).map_err(PassError::from)?;
    let losses = &losses[first - 1..];
    Ok(-losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len().max(1) as f64)
}

/// Whether the answer is what the model writes when it may write anything.
fn writes(model: Asked, tokenizer: &Tokenizer, question: &Question) -> Result<bool, PruneError> {
    let room = tokenizer.encode(question.answer)?.len() + 1;
    let text = continued(model, tokenizer, question.prompt, room)?;
    Ok(text.trim_start().starts_with(question.answer.trim_start()))
}

/// The likeliest continuation, one token after another.
fn continued(
    model: Asked,
    tokenizer: &Tokenizer,
    prompt: &str,
    max_tokens: usize,
) -> Result<String, PruneError> {
    let ids = tokenizer.encode(prompt)?;
    let ends = tokenizer.ends();
    let limits = Limits { max_tokens, ends: &ends, vocabulary: tokenizer.vocab_size() };
    let mut sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() })?;
    let mut session = Session::new(model.0, Variant::in_mode(model.1))?;
    let carry_on = |_| ControlFlow::Continue(());
    let generated = generate(&mut session, &ids, &limits, &mut sampler, carry_on)?;
    // Whether a word begins with a space depends on what comes before it.
    let (whole, before) =
        (tokenizer.decode(&[ids.as_slice(), &generated.tokens].concat())?, tokenizer.decode(&ids)?);
    Ok(whole.strip_prefix(&before).map(str::to_owned).unwrap_or(whole))
}

/// Texts side by side.
pub(super) fn samples(
    models: [Asked; 2],
    tokenizer: &Tokenizer,
) -> Result<Vec<SampleText>, PruneError> {
    let sample = |prompt: &&str| {
        let text = |model| continued(model, tokenizer, prompt, CONTINUATION);
        let (original, cut) = (text(models[0])?, text(models[1])?);
        Ok(SampleText { prompt: (*prompt).into(), original, cut })
    };
    PROMPTS.iter().map(sample).collect()
}
