//! Everything that hadal reads from files, given hostile bytes.
//!
//! A [`Target`] accepts any bytes without panicking, without hanging, and without more memory than a bound that follows
//! from their number. Ordinary tests replay the committed seeds and mutations of them; `tests/campaign/fuzz` lets
//! libFuzzer look for more.

mod folder;
mod memory;
mod mutate;
#[cfg(test)]
mod replay;
mod scratch;
mod targets;

pub use mutate::mutate;
pub use targets::{TARGETS, Target, helped};

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Gives it bytes.
    ///
    /// # Panics
    /// If it takes more memory than [`Target::memory`] allows.
    pub fn run(&self, bytes: &[u8]) {
        let peak = memory::peak(|| (self.accept)(bytes));
        let bound = (self.memory)(bytes.len());
        assert!(
            peak <= bound,
            "{} took {peak} bytes of memory for {} bytes of input; {bound} are allowed",
            self.name,
            bytes.len()
        );
    }
}
