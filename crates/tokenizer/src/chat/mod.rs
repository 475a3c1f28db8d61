//! Chats: turns of a conversation as the tokens that a model was trained to see.
//!
//! A model brings a template in Jinja, written for Python's, which joins the turns with tokens such as `<|im_start|>`.
//! Those of the template are special tokens. What people and models have written is text, even if it spells one: nobody
//! can forge a turn by typing it ([`ChatTemplate::encode`]).

mod apart;
mod error;
mod find;
mod guarded;
mod json;
mod render;
#[cfg(test)]
mod tests;
mod time;

pub use apart::{compute_template, compute_templates_with};
pub use error::ChatError;
pub use find::template_text;

use super::{Tokenizer, TokenizerError};
use render::Request;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Templates that can be chosen by name.
pub const NAMED_TEMPLATES: [&str; 1] = ["chatml"];

/// What many models were trained with, as OpenAI described it first.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
{{ message.content }}<|im_end|>\n{{ '' }}{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}";

/// Tokens that end a turn, in the templates of the families that we know.
const TURN_ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
];

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What holds for the whole chat.
    System,
    /// Whoever asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name that templates know.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// The special tokens that a template may name, such as `bos_token`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names {
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    pub(crate) pad: Option<String>,
    pub(crate) unk: Option<String>,
}

/// How a model formats a chat.
///
/// ```
/// use hadal_tokenizer::{ChatTemplate, Message, Role};
///
/// let template = ChatTemplate::named("chatml").unwrap();
/// let chat = [Message::new(Role::User, "What is the capital of France?")];
/// assert_eq!(
///     template.render(&chat)?,
///     "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
/// );
/// # Ok::<(), hadal_tokenizer::ChatError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// Where it comes from, for messages.
    path: PathBuf,
    text: String,
    names: Names,
}

impl ChatTemplate {
    /// The template of a model: `chat_template.jinja` or `tokenizer_config.json` of a directory, or that of a GGUF
    /// file. `None` if there is none.
    pub fn of_model(model: &Path) -> Result<Option<Self>, ChatError> {
        let Some((path, text)) = find::template(model)? else { return Ok(None) };
        Self::new(path, text).map(|template| Some(template.with_names(find::names(model))))
    }

    /// A template of [`NAMED_TEMPLATES`].
    pub fn named(name: &str) -> Option<Self> {
        (name == "chatml").then(|| Self {
            path: name.into(),
            text: CHATML.into(),
            names: Names::default(),
        })
    }

    /// Reads a template from a file, for a model, whose special tokens it may name.
    pub fn from_file(file: &Path, model: &Path) -> Result<Self, ChatError> {
        let text = hadal_files::read_text_at_most(file, find::LONGEST)?;
        Ok(Self::new(file.into(), text)?.with_names(find::names(model)))
    }

    /// A template, if it is one; `path` is its name in errors.
    pub fn new(path: PathBuf, text: String) -> Result<Self, ChatError> {
        let text = render::without_extensions(&text);
        let template = Self { path, text, names: Names::default() };
        template.compute(Names::default(), None)?;
        Ok(template)
    }

    fn with_names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// The chat as text, up to where the model's next turn begins. Special tokens and what spells them look alike here.
    pub fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let said = messages.iter().map(|message| message.content.clone());
        self.compute(self.names.clone(), Some(turns(messages, said)))
    }

    /// Wherever templates are computed.
    fn compute(
        &self,
        names: Names,
        turns: Option<Vec<(String, String)>>,
    ) -> Result<String, ChatError> {
        let request = Request { text: self.text.clone(), names, turns };
        apart::compute(&request).map_err(|trouble| trouble.of(&self.path))
    }

    /// The chat as tokens, up to where the model's next turn begins. Only the template's own special tokens are special.
    pub fn encode(
        &self,
        messages: &[Message],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, ChatError> {
        let names = self.names_with(tokenizer);
        let written: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
        let mut guard = guarded::Guard::new(&self.text, &written);
        let contents = written
            .iter()
            .map(|text| guard.disguise(text, tokenizer))
            .collect::<Result<Vec<_>, _>>()?;
        let said = contents.into_iter().map(std::borrow::Cow::into_owned);
        let rendered = self.compute(names, Some(turns(messages, said)))?;
        Ok(guard.encode(&rendered, tokenizer)?)
    }

    /// The tokens that end a turn: the tokenizer's ends, the template's, and those of well-known templates.
    pub fn ends(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut ends = tokenizer.ends();
        let eos = self.names.eos.as_deref().and_then(|name| tokenizer.special_id(name));
        let known = TURN_ENDS.iter().filter_map(|name| tokenizer.special_id(name));
        for id in eos.into_iter().chain(known) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        ends
    }

    /// Files of ours name tokens by id alone.
    fn names_with(&self, tokenizer: &Tokenizer) -> Names {
        let token = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
        let mut names = self.names.clone();
        names.bos = names.bos.or_else(|| token(tokenizer.begin()));
        names.eos = names.eos.or_else(|| token(tokenizer.ends().first().copied()));
        names
    }
}

/// Roles and what they say.
fn turns(messages: &[Message], said: impl Iterator<Item = String>) -> Vec<(String, String)> {
    messages.iter().map(|message| message.role.name().to_owned()).zip(said).collect()
}

impl From<TokenizerError> for ChatError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokenizer(error)
    }
}
