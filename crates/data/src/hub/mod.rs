//! Hugging Face over plain HTTPS: names of repositories, models, and what helps when a request fails. Datasets are in
//! `data`.

mod cache;
mod download;
mod error;
mod explain;
mod http;
mod kind;
mod model;
mod name;
mod repository;
mod settings;
#[cfg(test)]
mod tests;

pub(crate) use error::RequestError;
pub(crate) use explain::explain;
pub(crate) use kind::RepositoryKind;
pub use model::{HubError, ModelName, fetch_model};
pub(crate) use name::RepositoryName;
pub(crate) use repository::Repository;
pub(crate) use settings::Settings;
