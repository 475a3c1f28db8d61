//! Live pages over a folder of runs: `hadal serve`.
//!
//! All contents are read from run folders, which `hadal train` writes and this crate never changes, except for a note
//! that a person with the token may leave. `.hadal-index.sqlite` only avoids reading unchanged runs again; it can be deleted at
//! any time.
//!
//! ```no_run
//! # fn main() -> Result<(), hadal_serve::ServeError> {
//! let server = hadal_serve::Server::bind(hadal_serve::Options::new("runs"))?;
//! println!("{}", server.url());
//! server.run()
//! # }
//! ```

mod api;
mod app;
mod assets;
mod catalogue;
mod events;
mod files;
mod guard;
mod limits;
mod listen;
mod machine;
mod note;
mod pages;
mod series;
mod server;
mod tail;
mod thin;

pub use limits::Limits;
pub use server::{DEFAULT_HOST, DEFAULT_PORT, Handle, Options, ServeError, Server};
