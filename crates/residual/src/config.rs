//! Every policy's settings as one tagged value: `{"kind": "mgr", "streams": 4, ...}` in files,
//! `mgr:streams=4,gate=competitive` on a command line.

use crate::attnres::AttentionResidualsConfig;
use crate::deepnorm::DeepNormConfig;
use crate::denseformer::DenseFormerConfig;
use crate::fused::FusedDecode;
use crate::hc::HyperConnectionsConfig;
use crate::highway::HighwayConfig;
use crate::lns::LayerNormScalingConfig;
use crate::mgr::MultiGateConfig;
use crate::mhc::ManifoldHyperConnectionsConfig;
use crate::mhc_lite::ManifoldLiteConfig;
use crate::mixln::MixLnConfig;
use crate::nag::NormAgnosticConfig;
use crate::policy::{About, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig};
use crate::postnorm::PostNormConfig;
use crate::prenorm::PreNormConfig;
use crate::residual::{Residual, SubLayers};
use crate::siamese::SiameseNormConfig;
use crate::site::{Dimensions, Site};
use crate::skip::{SkippedKeys, Skipping, StepMode};
use crate::traversal::Traversal;
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;

/// Makes the config enum and the module enum from one list, so that a policy is added in one place
/// and cannot be forgotten in another.
macro_rules! policies {
    ($($variant:ident($config:ident) = $kind:literal,)*) => {
        /// The settings of any policy.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind")]
        pub enum ResidualConfig {
            $(#[doc = concat!("`", $kind, "`")] #[serde(rename = $kind)] $variant($config),)*
        }

        /// Any policy, ready to run.
        #[derive(Module, Debug)]
        pub enum AnyResidual {
            $(#[doc = concat!("`", $kind, "`")] $variant(<$config as PolicyConfig>::Policy),)*
        }

        impl ResidualConfig {
            /// Every kind with its default settings, in the order of the documentation.
            pub fn all() -> Vec<Self> {
                vec![$(Self::$variant($config::default()),)*]
            }

            /// The module.
            pub fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> AnyResidual {
                match self {
                    $(Self::$variant(config) => AnyResidual::$variant(config.init(dimensions, weights)),)*
                }
            }

            /// What the policy is.
            pub fn about(&self) -> About {
                match self { $(Self::$variant(_) => <$config as PolicyConfig>::ABOUT,)* }
            }

            /// Refuses settings that make no model at all.
            pub fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
                match self { $(Self::$variant(config) => config.check(dimensions),)* }
            }

            /// Refuses settings whose initial values do not exist.
            pub fn check_start(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
                match self { $(Self::$variant(config) => config.check_start(dimensions),)* }
            }

            /// Initial standard deviation of a branch's matrix.
            pub fn branch_std(&self, dimensions: &Dimensions, matrix: Matrix) -> f64 {
                match self { $(Self::$variant(config) => config.branch_std(dimensions, matrix),)* }
            }

            /// Forward work and memory per token.
            pub fn cost(&self, dimensions: &Dimensions) -> Cost {
                match self { $(Self::$variant(config) => config.cost(dimensions),)* }
            }

            /// When tokens skip, if the settings say so.
            pub fn skipping(&self) -> Option<Skipping> {
                match self { $(Self::$variant(config) => config.skipping(),)* }
            }

            /// Changes when tokens skip.
            pub fn set_skipping(&mut self, skipping: Option<Skipping>) -> Result<(), InvalidPolicy> {
                match self { $(Self::$variant(config) => config.set_skipping(skipping),)* }
            }

            /// Sub-layers from the embedding on that no token can skip, whatever the threshold.
            pub fn always_run(&self) -> usize {
                match self { $(Self::$variant(config) => config.always_run(),)* }
            }

            /// What becomes of the keys of tokens that skip.
            pub fn skipped_keys(&self) -> SkippedKeys {
                match self { $(Self::$variant(config) => config.skipped_keys(),)* }
            }

            /// Tokens of a sequence of `time` that run a block by design, whatever a threshold says.
            pub fn running(&self, block: usize, time: usize) -> usize {
                match self { $(Self::$variant(config) => config.running(block, time),)* }
            }

            /// FLOPs for each token of deciding who runs the sub-layer.
            pub fn deciding(&self, site: Site, width: u64) -> u64 {
                match self { $(Self::$variant(config) => config.deciding(site, width),)* }
            }

            /// How far the gates are open before training.
            pub fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
                match self { $(Self::$variant(config) => config.initial_gates(dimensions),)* }
            }
        }

        impl AnyResidual {
            /// From the embedding to the head's input, past every sub-layer.
            ///
            /// # Shapes
            /// - `embedding` and output: `[B, T, d]`
            pub fn traverse(
                &self,
                embedding: Tensor<3>,
                layers: &mut dyn SubLayers,
                traversal: &mut Traversal,
            ) -> Tensor<3> {
                match self { $(Self::$variant(policy) => policy.traverse(embedding, layers, traversal),)* }
            }

            /// The policy for one token at a time past these sub-layers, without tensors, if it has such a form.
            pub fn decode(&self, present: &[Site], mode: &StepMode) -> Option<FusedDecode> {
                match self { $(Self::$variant(policy) => policy.decode(present, mode),)* }
            }

            /// Sets when tokens skip; [`ResidualConfig::set_skipping`] says whether they can.
            pub fn set_skipping(&mut self, skipping: Option<Skipping>) {
                match self { $(Self::$variant(policy) => policy.set_skipping(skipping),)* }
            }

            /// Why the site cannot be absent, if it cannot.
            pub fn required_because(&self, site: Site) -> Option<&'static str> {
                match self { $(Self::$variant(policy) => policy.required_because(site),)* }
            }
        }
    };
}

policies! {
    PreNorm(PreNormConfig) = "prenorm",
    PostNorm(PostNormConfig) = "postnorm",
    LayerNormScaling(LayerNormScalingConfig) = "lns",
    DeepNorm(DeepNormConfig) = "deepnorm",
    MixLn(MixLnConfig) = "mixln",
    Highway(HighwayConfig) = "highway",
    DenseFormer(DenseFormerConfig) = "denseformer",
    SiameseNorm(SiameseNormConfig) = "siamese",
    HyperConnections(HyperConnectionsConfig) = "hc",
    ManifoldHyperConnections(ManifoldHyperConnectionsConfig) = "mhc",
    ManifoldLite(ManifoldLiteConfig) = "mhc_lite",
    AttentionResiduals(AttentionResidualsConfig) = "attnres",
    MultiGate(MultiGateConfig) = "mgr",
    NormAgnostic(NormAgnosticConfig) = "nag",
}

impl Default for ResidualConfig {
    fn default() -> Self {
        Self::PreNorm(PreNormConfig::default())
    }
}

/// Why a short form names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShortFormError {
    /// No such kind.
    #[error("unknown residual policy `{kind}`; known are {}", kinds())]
    UnknownKind {
        /// What was written.
        kind: String,
    },
    /// A setting is not `key=value`.
    #[error("`{setting}` is not a setting; write `kind:key=value,key=value`")]
    NotASetting {
        /// What was written.
        setting: String,
    },
    /// A key appears twice.
    #[error("`{key}` is set twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// The kind does not take these settings.
    #[error("{text}: {reason}")]
    BadSettings {
        /// What was written.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn kinds() -> String {
    let kinds: Vec<_> = ResidualConfig::all().iter().map(|c| c.about().kind).collect();
    kinds.join(", ")
}

impl FromStr for ResidualConfig {
    type Err = ShortFormError;

    fn from_str(text: &str) -> Result<Self, ShortFormError> {
        let (kind, settings) = text.split_once(':').unwrap_or((text, ""));
        if !Self::all().iter().any(|config| config.about().kind == kind) {
            return Err(ShortFormError::UnknownKind { kind: kind.into() });
        }
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
        serde_json::from_value(Value::Object(fields)).map_err(|error| ShortFormError::BadSettings {
            text: text.into(),
            reason: error.to_string(),
        })
    }
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

/// Splits at commas that stand between settings, not in a list or a table.
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
        assert_eq!(echo("prenorm:capacity=0.125,every=2"), "prenorm:capacity=0.125");
        let all_blocks = "prenorm:capacity=1.0,every=1";
        assert_eq!(echo(all_blocks), all_blocks);
    }

    #[test]
    fn bad_short_forms_say_what_is_wrong() {
        let wrong = |text: &str| text.parse::<ResidualConfig>().unwrap_err().to_string();
        assert!(wrong("prenrom").contains("known are prenorm, postnorm, lns"));
        assert!(wrong("PRENORM").contains("unknown residual policy"));
        assert!(wrong("mgr:streams").contains("not a setting"));
        assert!(wrong("mgr:steams=4").contains("unknown field `steams`"));
        assert!(wrong("mgr:streams=many").contains("expected usize"));
        assert!(wrong("mgr:streams=4,streams=5").contains("twice"));
        assert!(wrong("mgr:kind=hc").contains("twice"));
        assert!(wrong("mgr:gate=open").contains("unknown variant `open`"));
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
