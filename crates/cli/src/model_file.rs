//! Reading a model's shape from whatever file describes one.

use crate::failure::Failure;
use hadal_compare::bench::Shape;
use hadal_model::{ModelConfig, Stored, model_at, read_config};
use hadal_residual::ResidualConfig;
use hadal_train::{ModelSection, RunConfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// A model's shape, and what should be said about it.
pub(crate) struct Described {
    pub(crate) config: ModelConfig,
    /// Whether there are weights, so that no initial values are needed.
    pub(crate) trained: bool,
    /// What is assumed.
    pub(crate) notes: Vec<String>,
}

/// Vocabulary of settings that leave it to data that is not there: the bytes and an end token.
const BYTES: usize = 257;
/// Context of settings that leave it to data that is not there.
const CONTEXT: usize = 1024;

/// The model of a config (`.toml` or `.json`), a run's or a suite's settings, a run's folder, a model's directory or a
/// `.gguf` file.
pub(crate) fn describe(path: &Path) -> Result<Described, Failure> {
    let settings = path.join("config.toml");
    let whole = path.join("config.json").exists() || model_at(path) != path;
    let unfinished = settings.is_file() && !whole;
    let file = if unfinished { &settings } else { path };
    if is_toml(file) {
        let text = text_of(file)?;
        let table: toml::Table = parse(file, &text)?;
        if !table.get("model").is_some_and(toml::Value::is_table) {
            return Ok(Described::settings(parse(file, &text)?));
        }
        let mut described = of_settings(file, &text, table)?;
        if unfinished {
            described.notes.push("the run has no finished model yet".into());
        }
        return Ok(described);
    }
    let config = read_config(path).map_err(Failure::usage)?;
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(Described::settings(config));
    }
    let trouble = Stored::of(path).err().map(|error| format!("no weights can be read: {error}"));
    Ok(Described { config, trained: trouble.is_none(), notes: trouble.into_iter().collect() })
}

impl Described {
    fn settings(config: ModelConfig) -> Self {
        Self { config, trained: false, notes: Vec::new() }
    }
}

/// The model of the settings of a run or a suite, as text.
pub(crate) fn describe_settings(origin: &Path, text: &str) -> Result<Described, Failure> {
    of_settings(origin, text, parse(origin, text)?)
}

/// The model that a run or a suite would train. Vocabulary and context follow from the data.
fn of_settings(path: &Path, text: &str, mut table: toml::Table) -> Result<Described, Failure> {
    let run: RunModel = parse(path, text)?;
    let mut notes = Vec::new();
    if table.contains_key("variant") {
        notes.push(format!("a suite, counted with {}; --residual takes another", run.residual));
    }
    // What a suite says beyond one run is left out.
    let kept = ["train", "model", "residual", "data"];
    table.retain(|key, _| kept.contains(&key));
    let origin = path.display().to_string();
    let told = table.contains_key("data").then(|| toml::to_string(&table).ok()).flatten();
    let feed = told.and_then(|text| RunConfig::parse(&text, &origin).ok()?.open_feed().ok());
    let (vocabulary, length) = match (&feed, run.train.seq_len) {
        (Some(feed), _) => (feed.vocab_size(), feed.seq_len()),
        (None, length) => {
            let length = length.unwrap_or(CONTEXT);
            if run.model.vocab_size.is_none() {
                notes.push(format!(
                    "the data decides the vocabulary; counted with the {BYTES} tokens of bytes"
                ));
            }
            (BYTES, length)
        }
    };
    let config = run.model.resolve(&run.residual, vocabulary, length);
    Ok(Described { config, trained: false, notes })
}

/// A model's whole config: `.toml`, `.json`, a directory with a `config.json`, or a `.gguf` file.
fn read_model(path: &Path) -> Result<ModelConfig, Failure> {
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

/// The generated task that a run's model was trained on, if it was: such a model has no text.
pub(crate) fn generated_task(model: &Path) -> Option<String> {
    let above = model.parent().filter(|_| model.ends_with("model"));
    let settings = [Some(model), above].into_iter().flatten().map(|run| run.join("config.toml"));
    settings.filter(|file| file.is_file()).find_map(|file| {
        let table: toml::Table = toml::from_str(&hadal_files::read_text(&file).ok()?).ok()?;
        let task = table.get("data")?.get("generated")?.get("task")?;
        task.as_str().map(str::to_owned)
    })
}

/// The part of a run's settings that describes its model.
#[derive(Deserialize)]
struct RunModel {
    model: ModelSection,
    #[serde(default)]
    residual: ResidualConfig,
    #[serde(default)]
    train: RunLength,
}

/// The part of `[train]` that a model may follow.
#[derive(Default, Deserialize)]
struct RunLength {
    seq_len: Option<usize>,
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
