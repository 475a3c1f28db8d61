//! Settings in layers: a preset, a file, the command line, each on top of the one before.

use super::config::{RunConfig, RunConfigError};
use super::healing;
use super::model_section::ModelSection;
use super::preset::preset;
use hadal_model::ModelConfig;
use hadal_residual::{ResidualConfig, plain_words};
use std::path::Path;
use toml::{Table, Value};

/// Tables that mean one choice among several, so that half of one and half of another is nonsense.
const WHOLE: [&str; 2] = ["residual", "data"];
/// What can be learned from: prepared text, a built-in text, a task.
const SOURCES: [&str; 3] = ["train", "text", "generated"];

/// Settings in layers, later ones on top.
#[derive(Clone, Debug, Default)]
pub struct ConfigLayers {
    table: Table,
}

impl ConfigLayers {
    /// Starts from a preset.
    pub fn from_preset(name: &str) -> Result<Self, RunConfigError> {
        let text = preset(name)?.text;
        Self::default().with_toml(text, &format!("preset {name}"))
    }

    /// Starts from a model to go on from: rates of its own, its shape and its policy.
    pub fn for_model(from: &Path, model: &ModelConfig) -> Result<Self, RunConfigError> {
        Self::default().with_toml(&healing::below(model), "--from")?.with_model(from, model)
    }

    /// Fills in what a run that goes on from this model needs and nobody has said: the length of sequences, their
    /// number, warm-up, evaluations. Returns what should be known about that.
    pub fn fitted_to(self, model: &ModelConfig) -> Result<(Self, Vec<String>), RunConfigError> {
        healing::complete(self, model)
    }

    /// The settings so far, unchecked.
    pub fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// Puts a TOML text on top.
    pub fn with_toml(mut self, text: &str, origin: &str) -> Result<Self, RunConfigError> {
        let table: Table = toml::from_str(text).map_err(|error| RunConfigError::Malformed {
            origin: origin.into(),
            reason: plain_words(&error.to_string()),
        })?;
        let data = table.get("data");
        let named = |key: &&str| data.is_some_and(|data| data.get(key).is_some());
        if let Some(source) = SOURCES.into_iter().find(named) {
            self.forget_other_data(source);
        }
        merge(&mut self.table, table);
        Ok(self)
    }

    /// Naming one kind of data means not wanting the others that a preset brings. A task brings its own length.
    fn forget_other_data(&mut self, source: &str) {
        let to_task = source == "generated"
            && self.table.get("data").is_none_or(|data| data.get("generated").is_none());
        if to_task {
            self.forget("train", &["seq_len"]);
        }
        for other in SOURCES.into_iter().filter(|other| *other != source) {
            self.forget("data", &[other]);
        }
        if source != "train" {
            self.forget("data", &["validation"]);
        }
    }

    fn forget(&mut self, section: &str, keys: &[&str]) {
        if let Some(Value::Table(table)) = self.table.get_mut(section) {
            table.retain(|key, _| !keys.contains(&key));
        }
    }

    /// Puts a TOML file on top.
    pub fn with_file(self, path: &Path) -> Result<Self, RunConfigError> {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| RunConfigError::Malformed {
            origin: origin.clone(),
            reason: error.to_string(),
        })?;
        self.with_toml(&text, &origin)
    }

    /// Chooses a policy.
    pub fn with_residual(mut self, residual: &ResidualConfig) -> Result<Self, RunConfigError> {
        let value = Value::try_from(residual).map_err(|error| RunConfigError::Malformed {
            origin: residual.to_string(),
            reason: error.to_string(),
        })?;
        self.table.insert("residual".into(), value);
        Ok(self)
    }

    /// Goes on from a model: its shape and policy are put on top, in place of others.
    pub fn with_model(mut self, from: &Path, model: &ModelConfig) -> Result<Self, RunConfigError> {
        let malformed = |error: toml::ser::Error| RunConfigError::Malformed {
            origin: from.display().to_string(),
            reason: error.to_string(),
        };
        let section = Value::try_from(ModelSection::from(model)).map_err(malformed)?;
        let place = std::path::absolute(from).unwrap_or_else(|_| from.into());
        self.table.insert("from".into(), Value::String(place.display().to_string()));
        self.table.insert("model".into(), section);
        self.with_residual(&model.residual)
    }

    /// Chooses the seed.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.table.insert("seed".into(), Value::Integer(seed as i64));
        self
    }

    /// Puts `a.b=value` on top. The value is TOML, or else taken as text.
    pub fn with_setting(mut self, setting: &str) -> Result<Self, RunConfigError> {
        let wrong = || RunConfigError::NotASetting { setting: setting.into() };
        let (path, text) = setting.split_once('=').ok_or_else(wrong)?;
        let value = toml::from_str::<Table>(&format!("value = {text}"))
            .ok()
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| Value::String(text.into()));
        let mut keys: Vec<&str> = path.split('.').map(str::trim).collect();
        let last = keys.pop().filter(|key| !key.is_empty()).ok_or_else(wrong)?;
        let data = path.strip_prefix("data.").and_then(|rest| rest.split('.').next());
        if let Some(source) = data.filter(|source| SOURCES.contains(source)) {
            self.forget_other_data(source);
        }
        // The settings of one task mean nothing to another.
        if path == "data.generated.task" {
            self.forget("data", &["generated"]);
        }
        let mut table = &mut self.table;
        for key in keys {
            let entry = table.entry(key).or_insert_with(|| Value::Table(Table::new()));
            table = entry.as_table_mut().ok_or_else(wrong)?;
        }
        table.insert(last.into(), value);
        Ok(self)
    }

    /// The settings, checked.
    pub fn finish(self) -> Result<RunConfig, RunConfigError> {
        let mut config: RunConfig = self.table.try_into().map_err(|error| wrong(&error))?;
        config.check()?;
        // A run can then be resumed from anywhere.
        for path in [&mut config.data.train, &mut config.data.validation].into_iter().flatten() {
            *path = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        }
        Ok(config)
    }
}

/// Names the setting first, as it would be written on a command line.
fn wrong(error: &toml::de::Error) -> RunConfigError {
    let said = error.to_string();
    let (said, place) = said.trim_end().rsplit_once("\nin `").unwrap_or((said.trim_end(), ""));
    let origin = place.strip_suffix('`').unwrap_or("settings").to_owned();
    RunConfigError::Malformed { origin, reason: plain_words(said) }
}

fn merge(below: &mut Table, above: Table) {
    for (key, value) in above {
        let whole = WHOLE.contains(&key.as_str());
        match (below.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) if !whole => merge(old, new),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainSection;

    fn nano() -> ConfigLayers {
        ConfigLayers::from_preset("nano").unwrap()
    }

    #[test]
    fn resolved_settings_read_back_the_same() {
        let config = nano().finish().unwrap();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(RunConfig::parse(&text, "test").unwrap(), config);
    }

    #[test]
    fn settings_reach_any_depth() {
        let config = nano()
            .with_setting("train.steps=7")
            .and_then(|layers| layers.with_setting("optimizer.muon.lr=0.5"))
            .and_then(|layers| layers.with_setting("sample.prompt=once upon"))
            .and_then(ConfigLayers::finish)
            .unwrap();
        assert_eq!(config.train.steps, Some(7));
        assert_eq!(config.optimizer.muon.lr, 0.5);
        assert_eq!(config.sample.prompt, "once upon");
    }

    #[test]
    fn unknown_keys_are_errors() {
        let wrong = |setting: &str| {
            nano().with_setting(setting).and_then(ConfigLayers::finish).unwrap_err().to_string()
        };
        assert!(
            wrong("train.stpes=7").starts_with("train: unknown field `stpes`; did you mean steps?")
        );
        assert!(
            wrong("tarin.steps=7")
                .starts_with("settings: unknown field `tarin`; did you mean train?")
        );
        assert!(wrong("optimizer.muon.learning_rate=7").contains("unknown field"));
        assert!(wrong("nothing").contains("not a setting"));
        assert!(wrong("train.tokens=7").contains("not both"));
        assert!(wrong("optimizer.adamw.lr=-1").contains("optimizer.adamw.lr is -1"));
    }

    #[test]
    fn wrong_values_are_told_in_words() {
        let wrong = |setting: &str| {
            nano().with_setting(setting).and_then(ConfigLayers::finish).unwrap_err().to_string()
        };
        for (setting, said) in [
            (
                "train.steps=abc",
                "train.steps: \"abc\" does not fit; write a whole number, zero or more",
            ),
            ("train.steps=-3", "train.steps: -3 does not fit; write a whole number, zero or more"),
            (
                "optimizer.adamw.lr=fast",
                "optimizer.adamw.lr: \"fast\" does not fit; write a number",
            ),
            ("optimizer.adamw.betas=3", "optimizer.adamw.betas: 3 does not fit; write a list of 2"),
            ("optimizer.adamw.betas=[1,2,3]", "optimizer.adamw.betas: 3 entries are too many"),
            ("model.qk_norm=3", "model.qk_norm: 3 does not fit; write true or false"),
            ("model.mlp=3", "model.mlp: this does not fit; write a name"),
            (
                "model.mlp=relu",
                "model.mlp: unknown value `relu`; did you mean relu2? (known are relu2, swiglu)",
            ),
            ("data.train=3", "data.train: 3 does not fit; write a path"),
            ("data.generated.task=3", "data.generated.task: 3 does not fit; write a name"),
            ("train=3", "train: 3 does not fit; write a table"),
        ] {
            assert_eq!(wrong(setting), said);
        }
        let file = RunConfig::parse("[train]\nsteps = \"x\"\nbatch = 2\n", "a.toml").unwrap_err();
        let said = "a.toml: train.steps: \"x\" does not fit; write a whole number, zero or more";
        assert_eq!(file.to_string(), said);
    }

    #[test]
    fn another_policy_or_data_replaces_the_old_one_whole() {
        let config = nano()
            .with_toml("[residual]\nkind = \"nag\"\n", "test")
            .and_then(|layers| layers.with_setting("data.train=somewhere"))
            .and_then(ConfigLayers::finish)
            .unwrap();
        assert_eq!(config.residual, "nag".parse().unwrap());
        assert!(config.data.train.is_some_and(|path| path.ends_with("somewhere")));
        assert_eq!(config.data.generated, None);
    }

    #[test]
    fn each_kind_of_data_replaces_the_others() {
        let of = |settings: &[&str]| {
            let layers = settings.iter().try_fold(nano(), |layers, one| layers.with_setting(one));
            layers.and_then(ConfigLayers::finish).unwrap().data
        };
        let data = of(&["data.train=a", "data.validation=b", "data.text=yankee"]);
        assert_eq!((data.train, data.validation, data.generated), (None, None, None));
        assert_eq!(data.text.map(|text| text.name()), Some("yankee"));
        assert!(of(&["data.text=yankee", "data.train=a"]).text.is_none());
        assert!(of(&["data.text=yankee", "data.generated.task=mano"]).text.is_none());
    }

    #[test]
    fn another_task_starts_from_its_own_settings() {
        let config = nano()
            .with_setting("data.generated.task=mano")
            .and_then(|layers| layers.with_setting("data.generated.modulus=11"))
            .and_then(ConfigLayers::finish)
            .unwrap();
        let Some(task) = config.data.generated else { panic!("the task is gone") };
        assert_eq!((task.name(), task.check()), ("mano", Ok(())));
    }

    #[test]
    fn tokens_are_rounded_up_to_steps() {
        let mut config = nano().finish().unwrap();
        config.train = TrainSection {
            steps: None,
            tokens: Some(1001),
            batch: 2,
            accumulate: 5,
            ..config.train
        };
        assert_eq!(config.steps(10), 11);
    }
}
