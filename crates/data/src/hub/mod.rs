//! Hugging Face: names of repositories, models, and what helps when a request fails. Datasets are in `data`.

mod explain;
mod model;
mod name;

pub(crate) use explain::{RepositoryKind, explain};
pub use model::{HubError, ModelName, fetch_model};
pub(crate) use name::RepositoryName;
