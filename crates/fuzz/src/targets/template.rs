//! Chat templates, computed apart as the program does it: in a process that starts this program once more.

use hadal_tokenizer::{ChatError, ChatTemplate, Message, Role, Tokenizer};
use std::process::Command;
use std::sync::Once;

/// Set for a process that computes a template and ends.
const HELPER: &str = "HADAL_FUZZ_HELPER";

/// Whether this process computes a template for another one; it has done so when this returns.
pub fn helped() -> bool {
    let asked = std::env::var_os(HELPER).is_some();
    if asked
        && let Err(error) = hadal_tokenizer::compute_template(std::io::stdin(), std::io::stdout())
    {
        panic!("{error}");
    }
    asked
}

fn helper() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the program's own path"));
    command.env(HELPER, "1");
    #[cfg(test)]
    command.args(["--exact", "replay::computes_a_template", "--ignored", "--nocapture"]);
    command
}

/// Any text is a template that writes something, or it is refused or stopped. No helper fails.
pub(super) fn template(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = outcome(text) {
        assert!(!matches!(error, ChatError::Helper { .. }), "{error}");
        assert!(error.to_string().contains("chat_template.jinja"), "{error}");
    }
}

/// The tokens of a chat.
pub(crate) fn outcome(text: &str) -> Result<Vec<u32>, ChatError> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| hadal_tokenizer::compute_templates_with(helper));
    let chat = [
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, " Hi <s> \u{1f30a}\n"),
        Message::new(Role::Assistant, "</think>\n\nHo"),
        Message::new(Role::User, ""),
    ];
    ChatTemplate::new("chat_template.jinja".into(), text.into())?.encode(&chat, &Tokenizer::bytes())
}
