//! Reading a model's shape from whatever file describes one.

use crate::failure::Failure;
use hadal_compare::bench::Shape;
use hadal_model::{ModelConfig, read_config};
use hadal_residual::ResidualConfig;
use hadal_train::ModelSection;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// A model's whole config: `.toml`, `.json`, a directory with a `config.json`, or a `.gguf` file.
pub(crate) fn read_model(path: &Path) -> Result<ModelConfig, Failure> {
    if is_toml(path) {
        return parse(path, &text_of(path)?);
    }
    read_config(path).map_err(Failure::usage)
}

/// The same, or the settings of a run, of which only the model matters here.
pub(crate) fn read_shape(path: &Path) -> Result<Shape, Failure> {
    if is_toml(path) {
        let text = text_of(path)?;
        let table: toml::Table = parse(path, &text)?;
        if table.get("model").is_some_and(toml::Value::is_table) {
            let run: RunModel = parse(path, &text)?;
            return Ok(Shape::Run(Box::new(run.model), run.residual));
        }
    }
    read_model(path).map(|model| Shape::Whole(Box::new(model)))
}

/// The part of a run's settings that describes its model.
#[derive(Deserialize)]
struct RunModel {
    model: ModelSection,
    #[serde(default)]
    residual: ResidualConfig,
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

fn text_of(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| wrong(path, error.to_string()))
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, Failure> {
    toml::from_str(text).map_err(|error| {
        // The library would print the whole line, however long.
        let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        wrong(path, format!("line {line}: {}", error.message()))
    })
}

fn wrong(path: &Path, error: String) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}
