//! Text on its way to standard output.

use crate::failure::Failure;
use crate::standard::{stdout, stdout_is_lost};
use hadal_model::{StopStrings, TextStream, Tokenizer};
use std::io::{self, Write};
use std::ops::ControlFlow;

/// Collects the text and, if it is visible, prints it as soon as it is whole.
pub(super) struct Printer<'a> {
    stream: TextStream<'a>,
    stops: StopStrings,
    /// The end of the prompt, if the stream still holds it back.
    prompt_end: String,
    text: String,
    failure: Option<Failure>,
    visible: bool,
}

impl<'a> Printer<'a> {
    /// Continues after a prompt, which is not printed again: whether a word begins with a space depends on what comes
    /// before it.
    pub(super) fn after(
        prompt: &[u32],
        tokenizer: &'a Tokenizer,
        stops: StopStrings,
        visible: bool,
    ) -> Result<Self, Failure> {
        let mut stream = tokenizer.stream();
        for &id in prompt {
            stream.push(id).map_err(Failure::failed)?;
        }
        let prompt_end = stream.held().into_owned();
        Ok(Self { stream, stops, prompt_end, text: String::new(), failure: None, visible })
    }

    /// What is new in a piece of text.
    fn fresh(&mut self, piece: String) -> String {
        let prompt_end = std::mem::take(&mut self.prompt_end);
        if piece.is_empty() {
            self.prompt_end = prompt_end;
            return piece;
        }
        piece.strip_prefix(&prompt_end).map(str::to_owned).unwrap_or(piece)
    }

    /// Takes a token, and says whether anybody wants more.
    pub(super) fn token(&mut self, token: u32) -> ControlFlow<()> {
        let piece = self.stream.push(token).map_err(Failure::failed);
        match piece.and_then(|piece| self.show(piece.unwrap_or_default())) {
            // Nobody reads on, or nobody can.
            Ok(()) if stdout_is_lost() || self.stops.reached() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failure = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn show(&mut self, piece: String) -> Result<(), Failure> {
        let piece = self.fresh(piece);
        let piece = self.stops.push(&piece);
        self.print(&piece)
    }

    fn print(&mut self, piece: &str) -> Result<(), Failure> {
        self.text += piece;
        if self.visible {
            print_now(piece)?;
        }
        Ok(())
    }

    /// The whole text, and whether a stop string ended it.
    pub(super) fn finish(mut self) -> Result<(String, bool), Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let held = self.stream.held().into_owned();
        self.show(held)?;
        let rest = self.stops.finish();
        self.print(&rest)?;
        if self.visible {
            print_now("\n")?;
        }
        Ok((self.text, self.stops.reached()))
    }
}

/// Prints without waiting for the end of a line.
pub(crate) fn print_now(text: &str) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}
