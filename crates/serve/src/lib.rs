//! Live pages over a folder of runs: `hadal serve`.
//!
//! All contents are read from run folders, which `hadal train` writes and this crate never changes, except for a note
//! and tags that a person with the token may leave. `.hadal-index.sqlite` only avoids reading unchanged runs again; it can be deleted at
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
mod csv;
mod documents;
mod events;
mod files;
mod group;
mod guard;
mod limits;
mod listen;
mod listing;
mod looks;
mod machine;
mod marks;
mod note;
mod pages;
mod series;
mod server;
mod tags;
mod tail;
mod thin;

pub use csv::write_csv;
pub use limits::Limits;
pub use listing::{Listed, list};
pub use server::{ALL_HOSTS, DEFAULT_HOST, DEFAULT_PORT, Handle, Options, ServeError, Server};
