//! What somebody outside knows about a diagnosis while it runs.

use super::Kind;

/// Is told how a diagnosis goes on, and may end it.
pub trait Observer {
    /// A pass is done.
    fn passed(&mut self, _done: usize, _all: usize) {}

    /// These diagnostics are done.
    fn finished(&mut self, _kinds: &[Kind]) {}

    /// Something that is worth a line.
    fn note(&mut self, _text: &str) {}

    /// Whether to stop after this pass.
    fn stops(&self) -> bool {
        false
    }
}

/// Nobody.
impl Observer for () {}
