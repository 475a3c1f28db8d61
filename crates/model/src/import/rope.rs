//! How a Hugging Face `config.json` describes rotary positions: the older `rope_theta` with `rope_scaling`, and the
//! newer `rope_parameters`.

use super::Reason;
use super::json::{flag, number, optional_size, present};
use crate::rope_scaling::{RopeScaling, Yarn};
use serde_json::{Map, Value};

/// What a config states about positions.
#[derive(Debug, PartialEq)]
pub(super) struct Positions {
    pub(super) theta: f64,
    pub(super) scaling: Option<RopeScaling>,
    pub(super) max_seq_len: usize,
}

const DEFAULT_THETA: f64 = 10_000.0;

/// Keys that belong to each kind of scaling. Some models write `finetuned`, which no program reads.
const KNOWN: [&str; 16] = [
    "type",
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
];
const WITHOUT_EFFECT: [&str; 1] = ["finetuned"];

/// `longest` is the family's value where a config gives none.
pub(super) fn positions(json: &Value, longest: usize) -> Result<Positions, Reason> {
    let stated = optional_size(json, "max_position_embeddings")?.unwrap_or(longest);
    let (key, found) = match (present(json, "rope_parameters"), present(json, "rope_scaling")) {
        (Some(parameters), Some(scaling)) => {
            if !agree(parameters, scaling) {
                return Err(
                    "rope_parameters and rope_scaling say different things; remove one of them"
                        .into(),
                );
            }
            ("rope_parameters", parameters.clone())
        }
        (Some(parameters), None) => ("rope_parameters", parameters.clone()),
        (None, Some(scaling)) => ("rope_scaling", scaling.clone()),
        (None, None) => ("rope_parameters", Value::Object(Map::new())),
    };
    let Value::Object(keys) = &found else {
        return Err(format!("{key} is {found}, but it must be an object"));
    };
    let known = |name: &str| KNOWN.contains(&name) || WITHOUT_EFFECT.contains(&name);
    if let Some(unknown) = keys.keys().find(|name| !known(name)) {
        return Err(format!("{key} has {unknown}, which is not supported"));
    }
    for place in [json, &found] {
        let rotated = number(place, "partial_rotary_factor")?.unwrap_or(1.0);
        if rotated != 1.0 {
            return Err(format!(
                "partial_rotary_factor is {rotated}, but only heads that turn as a whole are supported"
            ));
        }
    }
    let theta = match number(&found, "rope_theta")? {
        Some(theta) => theta,
        None => number(json, "rope_theta")?.unwrap_or(DEFAULT_THETA),
    };
    let kind = present(&found, "rope_type").or(present(&found, "type"));
    let kind = kind.map_or(Ok("default"), |kind| {
        kind.as_str().ok_or_else(|| format!("{key} has rope_type {kind}, but it must be a text"))
    })?;
    let settings = Settings { json, found: &found, stated };
    let scaling = match kind {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: settings.factor()? }),
        "dynamic" => {
            Some(RopeScaling::Dynamic { factor: settings.factor()?, original_max_seq_len: stated })
        }
        "llama3" => Some(RopeScaling::Llama3 {
            factor: settings.factor()?,
            low_freq_factor: settings.required("low_freq_factor")?,
            high_freq_factor: settings.required("high_freq_factor")?,
            original_max_seq_len: settings.original()?,
        }),
        "yarn" => Some(RopeScaling::Yarn(settings.yarn()?)),
        "longrope" => Some(settings.divided()?),
        other => {
            return Err(format!(
                "{key} has rope_type {other}, but known are default, linear, dynamic, llama3, yarn and longrope"
            ));
        }
    };
    let max_seq_len = match &scaling {
        Some(RopeScaling::Dynamic { factor, original_max_seq_len }) => {
            stretched(*original_max_seq_len, *factor)
        }
        Some(RopeScaling::Yarn(yarn)) => {
            stated.max(stretched(yarn.original_max_seq_len, yarn.factor))
        }
        _ => stated,
    };
    Ok(Positions { theta, scaling, max_seq_len })
}

/// Whether the older key says only what the newer one says.
fn agree(parameters: &Value, scaling: &Value) -> bool {
    let keys = scaling.as_object().into_iter().flatten();
    keys.into_iter().all(|(key, value)| {
        let newer = if key == "type" { "rope_type" } else { key };
        parameters.get(newer) == Some(value)
    })
}

/// A config with a senseless factor is refused later, for the factor itself and not for what follows from it.
fn stretched(length: usize, factor: f64) -> usize {
    (length as f64 * factor.max(1.0)).round() as usize
}

struct Settings<'a> {
    json: &'a Value,
    found: &'a Value,
    stated: usize,
}

impl Settings<'_> {
    fn required(&self, key: &str) -> Result<f64, Reason> {
        number(self.found, key)?.ok_or_else(|| format!("its RoPE scaling has no {key}"))
    }

    fn factor(&self) -> Result<f64, Reason> {
        self.required("factor")
    }

    /// Length of the first training; some models give it outside.
    fn original(&self) -> Result<usize, Reason> {
        const KEY: &str = "original_max_position_embeddings";
        let outside = optional_size(self.json, KEY)?;
        Ok(outside.or(optional_size(self.found, KEY)?).unwrap_or(self.stated))
    }

    /// LongRoPE changes its factors with the length of a text; we support it only where they stay the same.
    fn divided(&self) -> Result<RopeScaling, Reason> {
        let factors = |key: &str| -> Result<Vec<f32>, Reason> {
            serde_json::from_value(self.found[key].clone())
                .map_err(|_| format!("{key} of longrope must be a list of numbers"))
        };
        let divisors = factors("short_factor")?;
        if divisors != factors("long_factor")? || self.required("attention_factor")? != 1.0 {
            return Err("longrope is supported only where short_factor is long_factor and attention_factor is 1".into());
        }
        Ok(RopeScaling::Divided { divisors })
    }

    fn yarn(&self) -> Result<Yarn, Reason> {
        let original = self.original()?;
        let factor = match number(self.found, "factor")? {
            Some(factor) => factor,
            None => self.stated as f64 / original.max(1) as f64,
        };
        let weights = [number(self.found, "mscale")?, number(self.found, "mscale_all_dim")?];
        let given = |weight: &Option<f64>| weight.filter(|weight| *weight != 0.0);
        let attention_factor = match number(self.found, "attention_factor")? {
            Some(attention_factor) => attention_factor,
            None => match (given(&weights[0]), given(&weights[1])) {
                (Some(above), Some(below)) => {
                    Yarn::magnitude(factor, above) / Yarn::magnitude(factor, below)
                }
                _ => Yarn::suggested_attention_factor(factor),
            },
        };
        let turns = |key: &str, default: f64| -> Result<f64, Reason> {
            Ok(number(self.found, key)?.filter(|turns| *turns != 0.0).unwrap_or(default))
        };
        let truncate = match present(self.found, "truncate") {
            None => true,
            Some(_) => flag(self.found, "truncate")?,
        };
        Ok(Yarn {
            factor,
            original_max_seq_len: original,
            beta_fast: turns("beta_fast", 32.0)?,
            beta_slow: turns("beta_slow", 1.0)?,
            attention_factor: attention_factor as f32,
            truncate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: Value) -> Result<Positions, Reason> {
        positions(&json, 2048)
    }

    #[test]
    fn older_and_newer_keys_say_the_same() {
        let scaling = json!({"type": "linear", "factor": 2.0});
        let older =
            json!({"rope_theta": 500.0, "rope_scaling": scaling, "max_position_embeddings": 64});
        let scaling = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0});
        let newer = json!({"rope_parameters": scaling, "max_position_embeddings": 64});
        let older = read(older).unwrap();
        assert_eq!(older, read(newer).unwrap());
        assert_eq!((older.theta, older.max_seq_len), (500.0, 64));
        assert_eq!(older.scaling, Some(RopeScaling::Linear { factor: 2.0 }));
        let both = json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0},
            "rope_scaling": {"rope_type": "linear", "factor": 2.0}});
        assert_eq!(read(both.clone()).unwrap().scaling, Some(RopeScaling::Linear { factor: 2.0 }));
        let mut differ = both;
        differ["rope_scaling"]["factor"] = 3.0.into();
        assert!(read(differ).unwrap_err().contains("say different things"));
        let nothing = Positions { theta: 10_000.0, scaling: None, max_seq_len: 2048 };
        assert_eq!(read(json!({"rope_scaling": null})), Ok(nothing));
    }

    #[test]
    fn yarn_fills_in_what_is_not_said() {
        let scaling = json!({"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 32768});
        let found =
            read(json!({"rope_scaling": scaling, "max_position_embeddings": 40960})).unwrap();
        assert_eq!(found.max_seq_len, 131_072);
        let Some(RopeScaling::Yarn(yarn)) = found.scaling else { panic!("no yarn") };
        assert_eq!((yarn.beta_fast, yarn.beta_slow, yarn.truncate), (32.0, 1.0, true));
        assert!((yarn.attention_factor - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let refused = |scaling: Value| read(json!({"rope_scaling": scaling})).unwrap_err();
        assert!(refused(json!({"type": "longrope"})).contains("short_factor"));
        let long = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0],
            "attention_factor": 1.0});
        assert!(refused(long).contains("only where short_factor is long_factor"));
        assert!(
            refused(json!({"type": "default", "mrope_section": [1]})).contains("mrope_section")
        );
        assert!(refused(json!({"type": "linear"})).contains("no factor"));
        assert!(refused(json!({"type": "linear", "factor": "2"})).contains("not a number"));
        assert!(refused(json!({"type": 3})).contains("must be a text"));
        assert!(refused(json!([])).contains("must be an object"));
        let partial = read(json!({"partial_rotary_factor": 0.5})).unwrap_err();
        assert!(partial.contains("partial_rotary_factor is 0.5"));
        let nested = json!({"full_attention": {"rope_theta": 1.0}});
        assert!(read(json!({"rope_parameters": nested})).unwrap_err().contains("full_attention"));
    }
}
