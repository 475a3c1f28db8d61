//! A chat with a model: turns, and the session that has read them.

use crate::decoder::Decoder;
use crate::generate::{GenerateError, Generated, Limits, StopReason, generate};
use crate::pass::{PassError, Variant};
use crate::sampling::Sampler;
use crate::session::Session;
use hadal_tokenizer::{
    ChatError, ChatTemplate, Message, Role, StopStrings, Tokenizer, TokenizerError,
};
use std::ops::ControlFlow;

/// What a model said.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its words, without a stop string.
    pub text: String,
    /// Its tokens and how long they took.
    pub generated: Generated,
    /// Whether a stop string ended it.
    pub stop_string: bool,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of it that the session had read before.
    pub reused: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// The turns cannot become tokens.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Its tokens cannot become text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model cannot answer.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

/// Turns of a chat. What the session has read of them is not read again.
pub struct Conversation<'a> {
    decoder: &'a Decoder,
    variant: Variant<'a>,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    system: Option<String>,
    turns: Vec<Message>,
    session: Session<'a>,
    /// The tokens in the session.
    read: Vec<u32>,
}

impl<'a> Conversation<'a> {
    /// A chat in which nothing was said yet.
    pub fn new(
        decoder: &'a Decoder,
        variant: Variant<'a>,
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
    ) -> Result<Self, PassError> {
        let session = Session::new(decoder, variant)?;
        let (system, turns, read) = (None, Vec::new(), Vec::new());
        Ok(Self { decoder, variant, tokenizer, template, system, turns, session, read })
    }

    /// What holds for the whole chat, from the next question on.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Forgets what was said; the system's text stays.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// What was said.
    pub fn turns(&self) -> &[Message] {
        &self.turns
    }

    /// Asks, passing the answer to `listen` as it is written. A question without an answer is forgotten; an answer that
    /// the listener has cut short stays as far as it goes.
    pub fn ask(
        &mut self,
        question: &str,
        max_tokens: usize,
        stops: StopStrings,
        sampler: &mut Sampler,
        listen: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ConversationError> {
        self.turns.push(Message::new(Role::User, question));
        let answer = self.answer(max_tokens, stops, sampler, listen);
        match &answer {
            Ok(answer) => self.turns.push(Message::new(Role::Assistant, &*answer.text)),
            Err(_) => drop(self.turns.pop()),
        }
        answer
    }

    /// The tokens that the model would read with this question.
    pub fn prompt(&self, question: &str) -> Result<Vec<u32>, ChatError> {
        let mut turns = self.turns.clone();
        turns.push(Message::new(Role::User, question));
        self.encode(&turns)
    }

    fn encode(&self, turns: &[Message]) -> Result<Vec<u32>, ChatError> {
        let system = self.system.iter().map(|text| Message::new(Role::System, text));
        let messages: Vec<Message> = system.chain(turns.iter().cloned()).collect();
        self.template.encode(&messages, self.tokenizer)
    }

    fn answer(
        &mut self,
        max_tokens: usize,
        mut stops: StopStrings,
        sampler: &mut Sampler,
        mut listen: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ConversationError> {
        let ids = self.encode(&self.turns)?;
        let reused = self.reuse(&ids)?;
        let ends = self.template.ends(self.tokenizer);
        let vocabulary = self.tokenizer.vocab_size();
        let limits = Limits { max_tokens, ends: &ends, vocabulary };

        let mut text = String::new();
        let mut trouble = None;
        let mut stream = self.tokenizer.stream();
        let generated = generate(&mut self.session, &ids[reused..], &limits, sampler, |token| {
            let piece = match stream.push(token) {
                Ok(piece) => stops.push(&piece.unwrap_or_default()),
                Err(error) => {
                    trouble = Some(error);
                    return ControlFlow::Break(());
                }
            };
            text += &piece;
            let heard = listen(&piece);
            if stops.reached() { ControlFlow::Break(()) } else { heard }
        });
        if let Some(error) = trouble {
            return Err(error.into());
        }
        let generated = generated?;
        // The rest of a character, and what was no stop string after all.
        let rest = stops.push(&stream.finish()) + &stops.finish();
        text += &rest;
        let _ = listen(&rest);
        self.read.clone_from(&ids);
        self.read.extend(&generated.tokens);
        self.read.truncate(self.session.len());
        let stop_string = stops.reached();
        Ok(Answer { text, generated, stop_string, prompt: ids.len(), reused })
    }

    /// How many of these tokens the session has read. If it has read others, or all of them, it begins anew.
    fn reuse(&mut self, ids: &[u32]) -> Result<usize, GenerateError> {
        if !self.read.is_empty() && ids.len() > self.read.len() && ids.starts_with(&self.read) {
            return Ok(std::mem::take(&mut self.read).len());
        }
        self.read.clear();
        self.session = Session::new(self.decoder, self.variant)?;
        Ok(0)
    }
}

impl Answer {
    /// Why it ended, in a word for scripts.
    pub fn stop(&self) -> &'static str {
        match self.generated.stop {
            _ if self.stop_string => "stop_string",
            StopReason::End => "end",
            StopReason::MaxTokens => "max_tokens",
            StopReason::ContextFull => "context_full",
            StopReason::Stopped => "stopped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Sampling;
    use crate::{Checkpoint, Device, load};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn stories() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K")
    }

    fn model() -> (Checkpoint, Tokenizer) {
        let checkpoint = load(&stories(), &Device::flex()).unwrap();
        (checkpoint, Tokenizer::of_model(&stories()).unwrap().unwrap())
    }

    /// Every turn ends with a special token, so tokens of turns never join.
    fn template() -> ChatTemplate {
        let text = "{% for m in messages %}{{ '<s>' if m.role != 'assistant' }}{{ m.content }}{% endfor %}";
        ChatTemplate::new("t".into(), text.into()).unwrap()
    }

    fn sampler() -> Sampler {
        Sampler::new(Sampling::default()).unwrap()
    }

    fn go_on(_: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn what_was_read_is_not_read_again_and_answers_are_the_same() {
        let ((checkpoint, tokenizer), template) = (model(), template());
        let new = || {
            let variant = Variant::default();
            Conversation::new(&checkpoint.decoder, variant, &tokenizer, &template).unwrap()
        };
        let questions = ["Once upon a time", "One day", "Lily said"];
        let mut kept = new();
        let mut reused = 0;
        for (nth, question) in questions.iter().enumerate() {
            let mut anew = new();
            anew.turns = kept.turns.clone();
            let ours =
                kept.ask(question, 20, StopStrings::default(), &mut sampler(), go_on).unwrap();
            let theirs =
                anew.ask(question, 20, StopStrings::default(), &mut sampler(), go_on).unwrap();
            assert_eq!(ours.text, theirs.text);
            assert_eq!(theirs.reused, 0);
            assert_eq!(kept.turns().len(), 2 * nth + 2);
            reused += ours.reused;
        }
        assert!(reused > 20, "{reused} tokens were reused");
        // Another beginning: nothing can be reused.
        kept.set_system(Some("Be brief".into()));
        let other = kept.ask("Hi", 3, StopStrings::default(), &mut sampler(), go_on).unwrap();
        assert_eq!(other.reused, 0);
        kept.reset();
        assert!(kept.turns().is_empty());
    }

    #[test]
    fn an_answer_that_is_cut_short_stays_and_the_chat_goes_on() {
        let ((checkpoint, tokenizer), template) = (model(), template());
        let variant = Variant::default();
        let mut chat =
            Conversation::new(&checkpoint.decoder, variant, &tokenizer, &template).unwrap();
        let mut heard = String::new();
        let stop = |piece: &str| {
            heard += piece;
            if heard.len() > 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let answer = chat.ask("Once", 200, StopStrings::default(), &mut sampler(), stop).unwrap();
        assert_eq!(answer.stop(), "stopped");
        assert_eq!(answer.text, heard);
        assert!(answer.generated.tokens.len() < 20);
        assert_eq!(chat.turns()[1].content, heard);
        let next = chat.ask("One day", 5, StopStrings::default(), &mut sampler(), go_on).unwrap();
        assert_eq!((next.stop(), next.generated.tokens.len()), ("max_tokens", 5));
    }

    #[test]
    fn a_stop_string_ends_an_answer_and_is_not_in_it() {
        let ((checkpoint, tokenizer), template) = (model(), template());
        let variant = Variant::default();
        let mut chat =
            Conversation::new(&checkpoint.decoder, variant, &tokenizer, &template).unwrap();
        let stops = StopStrings::new(vec!["named Lily".into()]);
        let mut heard = String::new();
        let listen = |piece: &str| {
            heard += piece;
            ControlFlow::Continue(())
        };
        let answer = chat.ask("Once upon a time", 100, stops, &mut sampler(), listen).unwrap();
        assert_eq!(answer.stop(), "stop_string");
        assert!(answer.text.ends_with("a little girl "), "{}", answer.text);
        assert_eq!(heard, answer.text);
    }

    #[test]
    fn a_prompt_that_is_stopped_while_it_is_read_is_forgotten_and_the_chat_goes_on() {
        let ((checkpoint, tokenizer), template) = (model(), template());
        let stop = AtomicBool::new(false);
        let new = || {
            let variant = Variant { stop: Some(&stop), ..Variant::default() };
            Conversation::new(&checkpoint.decoder, variant, &tokenizer, &template).unwrap()
        };
        let ask = |chat: &mut Conversation, question: &str| {
            chat.ask(question, 20, StopStrings::default(), &mut sampler(), go_on)
        };
        let (mut chat, mut other) = (new(), new());
        let first = ask(&mut chat, "Once upon a time").unwrap();
        stop.store(true, Ordering::Relaxed);
        let outcome = ask(&mut chat, "One day");
        assert!(matches!(outcome, Err(ConversationError::Generate(GenerateError::Stopped))));
        assert_eq!(chat.turns().len(), 2);
        stop.store(false, Ordering::Relaxed);
        // As if nothing had happened.
        assert_eq!(ask(&mut other, "Once upon a time").unwrap().text, first.text);
        let (next, expected) = (ask(&mut chat, "Lily").unwrap(), ask(&mut other, "Lily").unwrap());
        assert_eq!((next.text, next.prompt), (expected.text, expected.prompt));
        assert_eq!(next.reused, 0);
    }

    #[test]
    fn a_question_without_an_answer_is_forgotten() {
        let ((checkpoint, tokenizer), template) = (model(), template());
        let variant = Variant::default();
        let mut chat =
            Conversation::new(&checkpoint.decoder, variant, &tokenizer, &template).unwrap();
        let long = "word ".repeat(2000);
        let outcome = chat.ask(&long, 5, StopStrings::default(), &mut sampler(), go_on);
        assert!(matches!(outcome, Err(ConversationError::Generate(GenerateError::TooLong(_)))));
        assert!(chat.turns().is_empty());
        chat.ask("Once", 5, StopStrings::default(), &mut sampler(), go_on).unwrap();
    }
}
