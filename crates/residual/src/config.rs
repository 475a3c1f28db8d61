//! Every policy's settings as one tagged value: `{"kind": "mgr", "streams": 4, ...}` in files,
//! `mgr:streams=4,gate=competitive` on a command line.

use crate::ResidualConfig;
use crate::nearest::unknown;
use crate::plain_words::{plain_words, plain_words_of};
use crate::policy::Released;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;

/// Makes the config enum and the module enum from one list, so that a policy is added in one place
/// and cannot be forgotten in another.
macro_rules! policies {
    ($($variant:ident($config:ty) = $kind:literal,)*) => {
        /// The settings of any policy.
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "kind", remote = "Self")]
        pub enum ResidualConfig {
            $(#[doc = concat!("`", $kind, "`")] #[serde(rename = $kind)] $variant($config),)*
        }

        /// Any policy, ready to run.
        #[derive(burn::module::Module, Debug)]
        pub enum AnyResidual {
            $(#[doc = concat!("`", $kind, "`")] $variant(<$config as $crate::PolicyConfig>::Policy),)*
        }

        impl ResidualConfig {
            /// Every kind with its default settings, in the order of the documentation.
            pub fn all() -> Vec<Self> {
                vec![$(Self::$variant(<$config>::default()),)*]
            }

            /// The module.
            pub fn init(
                &self,
                dimensions: &$crate::Dimensions,
                weights: &mut $crate::Weights,
            ) -> AnyResidual {
                match self {
                    $(Self::$variant(config) => AnyResidual::$variant(config.init(dimensions, weights)),)*
                }
            }
        }

        /// Questions about a policy are answered by its settings.
        impl std::ops::Deref for ResidualConfig {
            type Target = dyn $crate::PolicyConfig;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$variant(config) => config,)* }
            }
        }

        impl std::ops::DerefMut for ResidualConfig {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$variant(config) => config,)* }
            }
        }

        impl AnyResidual {
            /// Runs from the embedding to the head's input, past every sub-layer.
            ///
            /// # Shapes
            /// - `embedding` and output: `[B, T, d]`
            pub fn traverse(
                &self,
                embedding: burn::tensor::Tensor<3>,
                layers: &mut dyn $crate::SubLayers,
                traversal: &mut $crate::Traversal,
            ) -> burn::tensor::Tensor<3> {
                match self {
                    $(Self::$variant(policy) => {
                        $crate::Residual::traverse(policy, embedding, layers, traversal)
                    })*
                }
            }

            /// The policy for one token at a time past these sub-layers, without tensors, if it has such a form.
            pub fn decode(
                &self,
                present: &[$crate::Site],
                mode: &$crate::StepMode,
            ) -> Option<$crate::FusedDecode> {
                match self { $(Self::$variant(policy) => $crate::Residual::decode(policy, present, mode),)* }
            }

            /// What the fused form past so many sub-layers holds of each token; `None` without one. No parameter is made
            /// for it.
            pub fn footprint(&self, sites: usize, memory: $crate::Memory) -> Option<$crate::Footprint> {
                match self { $(Self::$variant(policy) => $crate::Residual::footprint(policy, sites, memory),)* }
            }

            /// Sets when tokens skip; the settings say whether they can.
            pub fn set_skipping(&mut self, skipping: Option<$crate::Skipping>) {
                match self { $(Self::$variant(policy) => $crate::Residual::set_skipping(policy, skipping),)* }
            }

            /// Why the site cannot be absent, if it cannot.
            pub fn required_because(&self, site: $crate::Site) -> Option<&'static str> {
                match self { $(Self::$variant(policy) => $crate::Residual::required_because(policy, site),)* }
            }
        }
    };
}
pub(crate) use policies;

impl Serialize for ResidualConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ResidualConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_fields(Map::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Reads settings; what is wrong is said in words and by its key.
fn from_fields(mut fields: Map<String, Value>) -> Result<ResidualConfig, String> {
    respell(&mut fields);
    expand(&mut fields)?;
    if let Some(Value::String(kind)) = fields.get("kind") {
        check_kind(kind).map_err(|error| error.to_string())?;
    }
    let read = |fields| ResidualConfig::deserialize(Value::Object(fields));
    read(fields.clone()).map_err(|error| {
        // The one that is wrong when it stands alone.
        let alone = |key: &String| {
            let one = fields.iter().filter(|(other, _)| *other == "kind" || *other == key);
            read(one.map(|(key, value)| (key.clone(), value.clone())).collect()).err()
        };
        let others = || fields.keys().filter(|key| *key != "kind");
        match others().find_map(|key| Some((key, alone(key)?))) {
            Some((key, error)) => plain_words_of(key, &error.to_string()),
            None => plain_words(&error.to_string()),
        }
    })
}

/// Mixture-of-Depths was a setting of prenorm before it became a kind of its own; files and commands of that time
/// stay readable.
fn respell(fields: &mut Map<String, Value>) {
    if fields.get("kind").is_some_and(|kind| kind == "prenorm") && fields.contains_key("capacity") {
        fields.insert("kind".into(), "mod".into());
    }
}

/// Replaces the name of a released model by its policy and settings; what is said besides goes before.
fn expand(fields: &mut Map<String, Value>) -> Result<(), String> {
    let Some(Value::String(name)) = fields.get("kind") else { return Ok(()) };
    let Some((kind, released)) = released().into_iter().find(|(_, found)| found.name == name)
    else {
        return Ok(());
    };
    let settings = settings(kind, released.settings).map_err(|error| error.to_string())?;
    for (key, value) in settings {
        fields.entry(key).or_insert(value);
    }
    fields.insert("kind".into(), kind.into());
    Ok(())
}

/// Every released model that has a name of its own, with the kind of its stream.
fn released() -> Vec<(&'static str, Released)> {
    let of = |config: ResidualConfig| {
        config.released().iter().map(move |released| (config.about().kind, *released))
    };
    ResidualConfig::all().into_iter().flat_map(of).collect()
}

/// Why a short form names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ShortFormError {
    /// No such kind.
    #[error("{}", unknown("residual policy", kind, &kinds()))]
    UnknownKind { kind: String },
    /// A setting is not `key=value`.
    #[error("`{setting}` is not a setting; write `kind:key=value,key=value`")]
    NotASetting { setting: String },
    /// A key appears twice.
    #[error("`{key}` is set twice")]
    Twice { key: String },
    /// The kind does not take these settings.
    #[error("{text}: {reason}")]
    BadSettings { text: String, reason: String },
}

/// Every kind, then the names of released models.
fn kinds() -> Vec<&'static str> {
    let kinds = ResidualConfig::all().into_iter().map(|config| config.about().kind);
    kinds.chain(released().into_iter().map(|(_, released)| released.name)).collect()
}

fn check_kind(kind: &str) -> Result<(), ShortFormError> {
    match kinds().contains(&kind) {
        true => Ok(()),
        false => Err(ShortFormError::UnknownKind { kind: kind.into() }),
    }
}

impl FromStr for ResidualConfig {
    type Err = ShortFormError;

    fn from_str(text: &str) -> Result<Self, ShortFormError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        check_kind(kind)?;
        let fields = settings(kind, rest)?;
        from_fields(fields)
            .map_err(|reason| ShortFormError::BadSettings { text: text.into(), reason })
    }
}

/// The fields that a kind and its settings, `key=value,key=value`, stand for.
fn settings(kind: &str, settings: &str) -> Result<Map<String, Value>, ShortFormError> {
    let mut fields = Map::new();
    fields.insert("kind".into(), kind.into());
    for setting in split_settings(settings).into_iter().filter(|s| !s.is_empty()) {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| ShortFormError::NotASetting { setting: setting.into() })?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        if fields.insert(key.trim().into(), value).is_some() {
            return Err(ShortFormError::Twice { key: key.into() });
        }
    }
    Ok(fields)
}

/// The short form with every setting written out, in the order of the documentation.
impl fmt::Display for ResidualConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings are numbers, booleans and plain words, so their JSON reads like the short form
        // once its quotes and braces are gone. (A `Value` would sort the keys.)
        let json = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(self.about().kind)?;
        let settings = split_settings(&json[1..json.len() - 1]).into_iter().skip(1);
        for (i, (key, value)) in settings.filter_map(|s| s.split_once(':')).enumerate() {
            let key = key.trim_matches('"');
            let value = value.trim_matches('"');
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

/// Splits at commas between settings, not in a list or a table.
fn split_settings(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_read_back_as_they_are_written() {
        for config in ResidualConfig::all() {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
    }

    #[test]
    fn omitted_settings_are_the_papers_and_are_echoed() {
        let echo = |text: &str| text.parse::<ResidualConfig>().unwrap().to_string();
        assert_eq!(echo("mgr"), "mgr:streams=4,gate=competitive");
        assert_eq!(echo("mgr:gate=independent"), "mgr:streams=4,gate=independent");
        assert_eq!(echo("hc:streams=2"), "hc:streams=2,dynamic=true");
        assert_eq!(echo("nag:skip_threshold=0.25"), "nag:directions=32,skip_threshold=0.25");
        let by_site = "nag:directions=32,skip_threshold=[0.25,0.5],skip_shrink=1.0,skip_kv=drop";
        assert_eq!(echo(by_site), by_site);
        let by_kind =
            "mgr:streams=4,gate=competitive,skip_threshold={\"attention\":0.1,\"mlp\":0.2}";
        assert_eq!(echo(by_kind), by_kind);
        assert_eq!(echo("prenorm"), "prenorm");
        assert_eq!(echo("mod:every=4"), "mod:capacity=0.125,every=4");
    }

    #[test]
    fn mixture_of_depths_is_read_in_its_old_spelling() {
        let echo = |text: &str| text.parse::<ResidualConfig>().unwrap().to_string();
        assert_eq!(echo("prenorm:capacity=0.25"), "mod:capacity=0.25,every=2");
        let old = r#"{"kind": "prenorm", "capacity": 1.0, "every": 1}"#;
        let read: ResidualConfig = serde_json::from_str(old).unwrap();
        assert_eq!(read, "mod:capacity=1.0,every=1".parse().unwrap());
    }

    #[test]
    fn the_name_of_a_released_model_stands_for_its_policy_and_settings() {
        let echo = |text: &str| text.parse::<ResidualConfig>().unwrap().to_string();
        assert_eq!(echo("kimi_k3"), "attnres:blocks=0,block_size=24");
        assert_eq!(echo("kimi_k3:block_size=4,heads=2"), "attnres:blocks=0,block_size=4,heads=2");
        let read: ResidualConfig = serde_json::from_str(r#"{"kind": "gemma3"}"#).unwrap();
        assert_eq!(read.to_string(), "sandwich");
        assert_eq!(echo("olmo2"), "outnorm");
        assert_eq!(echo("gemma4"), "sandwich:block_scale=true");
        assert_eq!(echo("beam"), "sandwich:scaled=true");
        assert_eq!(
            echo("muse_spark:embed_norm=true"),
            "sandwich:gate_temperature=0.3,embed_norm=true"
        );
        assert_eq!(echo("nanochat"), "lambdas:backout=true");
        assert_eq!(echo("keel:alpha=2.5"), "keel:alpha=2.5");
        assert_eq!(echo("keel"), "keel");
    }

    #[test]
    fn released_models_are_what_their_code_says() {
        for (name, settings) in [
            ("deepseek_v4", "mhc:streams=4,sinkhorn_iters=20,readout=gated,epsilon=1e-6"),
            (
                "deepseek_v4_1_flash",
                "mhc:streams=4,sinkhorn_iters=20,single_pass=true,epsilon=1e-6",
            ),
            ("glm5_flash", "mhc:streams=4,sinkhorn_iters=20,readout=mean,epsilon=1e-6"),
            (
                "hy4",
                "mhc:streams=4,identity=true,readout=gated,epsilon=1e-6,post_epsilon=1e-6,post_multiplier=2.0",
            ),
            // A rank of 320 in a width of 2560.
            ("qwen3_8_next", "gr:streams=4"),
            ("kimi_k3", "attnres:block_size=24"),
        ] {
            let parse = |text: &str| text.parse::<ResidualConfig>().unwrap();
            assert_eq!(parse(name), parse(settings), "{name}");
        }
    }

    #[test]
    fn every_released_name_is_readable_and_unlike_every_kind() {
        let mut names = kinds();
        for name in &names {
            let read = name.parse::<ResidualConfig>().unwrap();
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn bad_short_forms_say_what_is_wrong() {
        let wrong = |text: &str| text.parse::<ResidualConfig>().unwrap_err().to_string();
        assert!(wrong("prenrom").contains("did you mean prenorm? (known are prenorm, postnorm, "));
        assert!(wrong("resnet").contains("unknown residual policy `resnet`; known are prenorm"));
        assert!(wrong("PRENORM").contains("did you mean prenorm?"));
        assert!(wrong("mgr:streams").contains("not a setting"));
        assert!(wrong("mgr:steams=4").contains("unknown field `steams`; did you mean streams?"));
        let whole = "streams is \"many\"; write a whole number, zero or more";
        assert_eq!(wrong("mgr:gate=competitive,streams=many").split_once(": ").unwrap().1, whole);
        assert!(wrong("hc:dynamic=maybe").ends_with("dynamic is \"maybe\"; write true or false"));
        assert!(wrong("nag:skip_threshold=x").contains("a threshold is a number, a list"));
        assert!(wrong("mgr:streams=4,streams=5").contains("twice"));
        assert!(wrong("mgr:kind=hc").contains("twice"));
        assert!(
            wrong("mgr:gate=open")
                .contains("unknown gate `open`; known are independent, competitive")
        );
    }

    #[test]
    fn files_are_told_the_same() {
        let wrong =
            |text: &str| serde_json::from_str::<ResidualConfig>(text).unwrap_err().to_string();
        assert!(wrong(r#"{"kind": "NAG"}"#).contains("did you mean nag?"));
        assert!(
            wrong(r#"{"kind": "mgr", "streams": -1}"#).contains("streams is -1; write a whole")
        );
        assert!(wrong(r#"{"streams": 4}"#).contains("missing field `kind`"));
    }

    #[test]
    fn kinds_in_files_are_those_of_the_documentation() {
        for config in ResidualConfig::all() {
            let value = serde_json::to_value(&config).unwrap();
            assert_eq!(value["kind"], config.about().kind);
        }
    }

    #[test]
    fn unknown_fields_are_errors() {
        for config in ResidualConfig::all() {
            let mut value = serde_json::to_value(&config).unwrap();
            value["surprise"] = 1.into();
            let error = serde_json::from_value::<ResidualConfig>(value).unwrap_err();
            assert!(error.to_string().contains("unknown field `surprise`"), "{error}");
        }
    }
}
