//! A suite: one budget, and policies times seeds.
//!
//! The file is that of a run (`[model]`, `[data]`, `[train]` and so on) without `seed` and
//! `[residual]`; in their place it has `seeds` and a list of `[[variant]]`. Variants can differ in their
//! residual stream alone, in what the recipe of its paper prescribes, in what attention takes of earlier depth, and in the
//! precision of products.

use super::error::CompareError;
use super::looks::{self, LooksSection};
use super::shape::{Match, Shaping, Widths};
use super::tune::{self, GridPoint, Tune};
use hadal_files::read_text;
use hadal_report::statistics::Rule;
use hadal_residual::{PolicyConfig, ResidualConfig, kinds_that, nearest, plain_words};
use hadal_train::{ConfigLayers, RunConfig};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;
use toml::{Table, Value};

/// Several policies under the same conditions.
#[derive(Clone, Debug)]
pub struct Suite {
    origin: String,
    settings: ConfigLayers,
    /// The variant that the others are compared with.
    pub baseline: String,
    /// Each decides initial values and the order of the data, for all variants alike.
    pub seeds: Vec<u64>,
    /// Numbers of blocks to go through; empty for the model's own alone.
    pub depths: Vec<usize>,
    /// Threads of every run. Another number may change the bits, so it belongs to the suite and not to
    /// the machine.
    pub threads: usize,
    /// What every run may spend.
    pub budget: Budget,
    /// What is compared.
    pub variants: Vec<Variant>,
    /// When seeds are looked at, if they are added until all is decided; `seeds` are then all that may be run.
    pub rule: Option<Rule>,
    /// What is chosen of the models' shapes.
    pub(super) shaping: Shaping,
    /// How each variant finds its own best settings first.
    pub tune: Option<Tune>,
    /// What was found, for a variant at one depth or at all.
    chosen: Vec<(String, Option<usize>, GridPoint)>,
}

/// What every run may spend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// The steps or tokens of `[train]`: the same data for all.
    Steps,
    /// As many FLOPs as the baseline needs for `[train]` at the model's own depth.
    BaselineFlops,
    /// This many FLOPs, forward and backward.
    Flops(f64),
    /// This many minutes of training steps, by a speed that is measured once.
    Minutes(f64),
}

/// One policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Its name in the table, and in the names of its runs.
    pub name: String,
    /// The policy.
    pub residual: ResidualConfig,
    /// Settings that its recipe prescribes, and what every variant may set, as `a.b=value`.
    recipe: Vec<String>,
}

/// Keys of a suite that no run has.
const HEAD: [&str; 12] = [
    "baseline",
    "seeds",
    "depths",
    "threads",
    "iso_flop",
    "budget",
    "preset",
    "match",
    "shape",
    "parameters",
    "looks",
    "tune",
];

#[derive(Deserialize)]
struct Head {
    baseline: Option<String>,
    #[serde(default = "three_seeds")]
    seeds: Vec<i64>,
    #[serde(default)]
    depths: Vec<usize>,
    #[serde(default = "one_thread")]
    threads: usize,
    #[serde(default)]
    iso_flop: bool,
    #[serde(default)]
    budget: BudgetSection,
    preset: Option<String>,
    #[serde(rename = "match")]
    matched: Option<Match>,
    shape: Option<Widths>,
    parameters: Option<f64>,
    looks: Option<LooksSection>,
    tune: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetSection {
    flops: Option<f64>,
    minutes: Option<f64>,
}

fn three_seeds() -> Vec<i64> {
    vec![0, 1, 2]
}

fn one_thread() -> usize {
    1
}

/// What a variant whose tokens can skip may set besides its residual: `skip_rate` for the run's `skip.rate`.
const SKIP_KEYS: [&str; 11] = [
    "rate",
    "per",
    "gate",
    "harden",
    "kv",
    "eta",
    "ema",
    "ramp",
    "protect",
    "guard_share",
    "guard_steps",
];

/// The run's setting that a variant's key stands for, if the key belongs to the policy's recipe.
pub(super) fn recipe_setting(residual: &dyn PolicyConfig, key: &str) -> Option<String> {
    if let Some(own) = residual.recipe().iter().find(|own| own.key == key) {
        return Some(own.setting.to_owned());
    }
    let skip = key.strip_prefix("skip_").filter(|skip| SKIP_KEYS.contains(skip))?;
    residual.can_skip().then(|| format!("skip.{skip}"))
}

/// What every variant may set besides its residual, and the run's setting that it stands for.
const SHARED: [(&str, &str); 3] = [
    ("precision", "train.precision"),
    ("depth_kv", "model.depth_kv"),
    ("value_residual", "model.value_residual"),
];

/// More would only ever be a mistyped number.
const MOST_THREADS: usize = 1024;

impl Suite {
    /// Policies on a task that needs depth, in about three minutes on two cores.
    pub const BUILT_IN: &str = include_str!("../../../configs/suites/first.toml");

    /// Reads a suite from a file.
    pub fn read(path: &Path) -> Result<Self, CompareError> {
        let text = read_text(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a suite that comes from `origin`.
    pub fn parse(text: &str, origin: &str) -> Result<Self, CompareError> {
        let malformed = |reason: toml::de::Error| CompareError::Malformed {
            origin: origin.into(),
            reason: plain_words(&reason.to_string()),
        };
        let mut table: Table = toml::from_str(text).map_err(malformed)?;
        let variants = table.remove("variant");
        let mut head = Table::new();
        for key in HEAD {
            if let Some(value) = table.remove(key) {
                head.insert(key.into(), value);
            }
        }
        let until_decided = looks::until_decided(&mut head, origin)?;
        let mut head: Head = head.try_into().map_err(malformed)?;
        let rule = looks::rule(until_decided, head.looks.take(), origin)?;
        if let Some(rule) = &rule {
            head.seeds = rule.seeds().into_iter().map(|seed| seed as i64).collect();
        }
        let refuse = |field: &str, problem: String| refused(origin, field, problem);
        for (key, instead) in [("residual", "[[variant]]"), ("seed", "seeds = [0, 1, 2]")] {
            if table.contains_key(key) {
                return Err(refuse(key, format!("belongs to one run; write {instead}")));
            }
        }
        for key in table.keys() {
            // Sections of a run are the run's to check.
            if let Some(meant) = nearest(key, HEAD.into_iter().chain(["variant"])) {
                return Err(refuse(key, format!("is unknown; did you mean {meant}?")));
            }
        }
        let budget = budget(&head, &mut table, origin)?;
        let settings = settings(head.preset.as_deref(), &table, origin)?;
        let variants = variants.unwrap_or_else(|| Value::Array(Vec::new()));
        let Value::Array(variants) = variants else {
            return Err(refuse("variant", "is a list; write [[variant]]".into()));
        };
        let mut variants = variants;
        let grids: Vec<Option<Value>> =
            variants.iter_mut().map(|value| value.as_table_mut()?.remove("tune")).collect();
        let variants: Vec<Variant> =
            variants.into_iter().map(|value| variant(value, origin)).collect::<Result<_, _>>()?;
        let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
        if let Some(twice) = duplicate(&names) {
            return Err(refuse("variant", format!("`{twice}` is there twice; rename one")));
        }
        let Some(first) = names.first() else {
            return Err(refuse(
                "variant",
                "is missing; write a [[variant]] for each policy".into(),
            ));
        };
        let baseline = head.baseline.unwrap_or_else(|| (*first).to_owned());
        if !names.contains(&baseline.as_str()) {
            let known = names.join(", ");
            return Err(refuse(
                "baseline",
                format!("`{baseline}` is no variant; there are {known}"),
            ));
        }
        if head.seeds.is_empty() {
            return Err(refuse("seeds", "is empty; write at least one, better three".into()));
        }
        if let Some(negative) = head.seeds.iter().find(|&&seed| seed < 0) {
            return Err(refuse("seeds", format!("holds {negative}; a seed is zero or positive")));
        }
        if let Some(twice) = duplicate(&head.seeds) {
            return Err(refuse("seeds", format!("holds {twice} twice, which would count as two")));
        }
        if let Some(twice) = duplicate(&head.depths) {
            return Err(refuse("depths", format!("holds {twice} twice; remove one")));
        }
        if !(1..=MOST_THREADS).contains(&head.threads) {
            let problem = format!("is {}; write 1 to {MOST_THREADS}", head.threads);
            return Err(refuse("threads", problem));
        }
        let shaping =
            Shaping::of((head.matched, head.shape, head.parameters), &head.depths, origin)?;
        let seeds: Vec<u64> = head.seeds.iter().map(|&seed| seed as u64).collect();
        let depths = head.depths;
        let around =
            tune::Around { origin, variants: &variants, seeds: &seeds, depths: &depths, budget };
        let tune = tune::parse(head.tune, grids, &around)?;
        Ok(Self {
            origin: origin.into(),
            settings,
            rule,
            shaping,
            baseline,
            seeds,
            depths,
            threads: head.threads,
            budget,
            variants,
            tune,
            chosen: Vec::new(),
        })
    }

    /// The suite with settings that a variant has found, at one depth or at all.
    pub(super) fn with_choice(
        mut self,
        variant: &str,
        depth: Option<usize>,
        point: GridPoint,
    ) -> Self {
        self.chosen.push((variant.into(), depth, point));
        self
    }

    /// The suite as it was before anything was found.
    pub(super) fn untuned(&self) -> Self {
        Self { chosen: Vec::new(), ..self.clone() }
    }

    fn chosen(&self, variant: &Variant, depth: Option<usize>) -> GridPoint {
        let is_mine = |(name, at, _): &&(String, Option<usize>, GridPoint)| {
            *name == variant.name && (at.is_none() || *at == depth)
        };
        self.chosen.iter().find(is_mine).map(|(_, _, point)| point.clone()).unwrap_or_default()
    }

    /// Changes one setting of all runs, `a.b=value`.
    pub fn with_setting(mut self, setting: &str) -> Result<Self, CompareError> {
        let key = setting.split(['=', '.']).next().unwrap_or_default().trim();
        if key == "residual" || key == "seed" || key == "variant" || HEAD.contains(&key) {
            let problem = "is the suite's; change its file".into();
            return Err(refused(setting, key, problem));
        }
        self.shaping.forget();
        self.settings = self
            .settings
            .with_setting(setting)
            .map_err(|reason| CompareError::Settings { origin: self.origin.clone(), reason })?;
        Ok(self)
    }

    /// Where it comes from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The settings of one run, with the steps of `[train]` and the shape of `[model]`.
    pub(super) fn unshaped(
        &self,
        variant: &Variant,
        depth: Option<usize>,
        seed: u64,
    ) -> Result<RunConfig, CompareError> {
        let chosen = self.chosen(variant, depth);
        let depth = depth.map(|depth| format!("model.n_layers={depth}"));
        let layers = self.settings.clone().with_seed(seed).with_residual(&variant.residual);
        let found: Vec<String> = chosen.settings().collect();
        let settings = variant.recipe.iter().chain(&depth).chain(&found);
        let layers = settings.fold(layers, |layers, setting| layers?.with_setting(setting));
        let mut config = layers.and_then(ConfigLayers::finish).map_err(self.wrong())?;
        chosen.scale_rates(&mut config);
        Ok(config)
    }

    fn wrong(&self) -> impl Fn(hadal_train::RunConfigError) -> CompareError {
        let origin = self.origin.clone();
        move |reason| CompareError::Settings { origin: origin.clone(), reason }
    }
}

pub(super) fn refused(origin: &str, field: &str, problem: String) -> CompareError {
    CompareError::Refused { origin: origin.into(), field: field.into(), problem }
}

pub(super) fn duplicate<T: Ord>(values: &[T]) -> Option<&T> {
    let mut seen = BTreeSet::new();
    values.iter().find(|value| !seen.insert(*value))
}

/// There must be one budget. If steps follow from it, `[train]` gets a placeholder for them.
fn budget(head: &Head, table: &mut Table, origin: &str) -> Result<Budget, CompareError> {
    let refuse = |field: &str, problem: String| Err(refused(origin, field, problem));
    let (budget, field, amount) = match (head.budget.flops, head.budget.minutes) {
        (None, None) => {
            let budget = if head.iso_flop { Budget::BaselineFlops } else { Budget::Steps };
            return Ok(budget);
        }
        (Some(flops), None) => (Budget::Flops(flops), "budget.flops", flops),
        (None, Some(minutes)) => (Budget::Minutes(minutes), "budget.minutes", minutes),
        (Some(_), Some(_)) => {
            return refuse("budget", "holds flops and minutes; write one of them".into());
        }
    };
    if !(amount > 0.0 && amount.is_finite()) {
        return refuse(field, format!("is {amount}; write a positive number"));
    }
    if head.iso_flop && matches!(budget, Budget::Minutes(_)) {
        return refuse("iso_flop", "contradicts budget.minutes; leave out one of them".into());
    }
    let train = table.entry("train").or_insert_with(|| Value::Table(Table::new()));
    if let Some(train) = train.as_table_mut() {
        for key in ["steps", "tokens"] {
            if train.contains_key(key) {
                let problem = format!("contradicts {field}; leave out one of them");
                return refuse(&format!("train.{key}"), problem);
            }
        }
        train.insert("steps".into(), Value::Integer(1));
    }
    Ok(budget)
}

fn settings(
    preset: Option<&str>,
    table: &Table,
    origin: &str,
) -> Result<ConfigLayers, CompareError> {
    let wrong = |reason| CompareError::Settings { origin: origin.into(), reason };
    let below = match preset {
        Some(name) => ConfigLayers::from_preset(name).map_err(wrong)?,
        None => ConfigLayers::default(),
    };
    below.with_toml(&table.to_string(), origin).map_err(wrong)
}

fn variant(value: Value, origin: &str) -> Result<Variant, CompareError> {
    let refuse = |field: &str, problem: String| Err(refused(origin, field, problem));
    let Value::Table(mut table) = value else {
        return refuse("variant", "is no table; write [[variant]]".into());
    };
    let own = ["name", "residual"].into_iter().chain(SHARED.map(|(key, _)| key));
    for key in table.keys().filter(|key| !own.clone().any(|own| own == key.as_str())) {
        if let Some(meant) = nearest(key, own.clone()) {
            return refuse(key, format!("of a variant is unknown; did you mean {meant}?"));
        }
    }
    let residual = match table.remove("residual") {
        Some(Value::String(text)) => text.parse().map_err(|error| format!("{error}")),
        Some(value) => {
            value.try_into().map_err(|error: toml::de::Error| plain_words(&error.to_string()))
        }
        None => {
            Err("is missing; write residual = \"KIND:KEY=VALUE\", such as mgr:streams=4".into())
        }
    };
    let residual: ResidualConfig = match residual {
        Ok(residual) => residual,
        Err(problem) => return refuse("variant.residual", problem),
    };
    let kind = residual.about().kind;
    let name = match table.remove("name") {
        Some(Value::String(name)) => name,
        Some(other) => return refuse("variant.name", format!("is {other}; write a text")),
        None => kind.to_owned(),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || !name.chars().all(fits) || name.len() > 64 {
        let problem = format!(
            "is `{name}`; it names folders, so write up to 64 letters, digits, and any of - _ . + behind the first"
        );
        return refuse("variant.name", problem);
    }
    let shared = SHARED.iter().filter_map(|(key, setting)| Some((setting, table.remove(*key)?)));
    let mut recipe: Vec<_> = shared.map(|(setting, value)| format!("{setting}={value}")).collect();
    for (key, value) in table {
        if let Some(setting) = recipe_setting(&*residual, &key) {
            recipe.push(format!("{setting}={value}"));
            continue;
        }
        let of = kinds_that(|policy| recipe_setting(policy, &key).is_some());
        if !of.is_empty() {
            let of = of.join(", ");
            let problem = format!("is of the recipe of {of}, but `{name}` is {kind}; remove it");
            return refuse(&key, problem);
        }
        let recipe = residual.recipe().iter().map(|own| own.key.to_owned());
        let skip =
            SKIP_KEYS.iter().filter(|_| residual.can_skip()).map(|key| format!("skip_{key}"));
        let own: Vec<String> = recipe.chain(skip).collect();
        if let Some(meant) = nearest(&key, own.iter().map(String::as_str)) {
            let problem = format!("of variant `{name}` is unknown; did you mean {meant}?");
            return refuse(&key, problem);
        }
        let problem = format!(
            "of variant `{name}` is refused: variants differ in residual alone (and in precision, depth_kv and \
             value_residual, and in what its recipe prescribes: {}); write it above all variants, for all of them",
            recipes()
        );
        return refuse(&key, problem);
    }
    Ok(Variant { name, residual, recipe })
}

/// What variants may set besides their residual, in words.
fn recipes() -> String {
    let own = ResidualConfig::all().into_iter().filter(|policy| !policy.recipe().is_empty());
    let own = own.map(|policy| {
        let keys: Vec<_> = policy.recipe().iter().map(|own| own.key).collect();
        format!("{} in {}", policy.about().kind, keys.join(" and "))
    });
    let skipping = kinds_that(|policy| policy.can_skip()).join(" and ");
    own.chain([format!("{skipping} in skip_rate and the like")]).collect::<Vec<_>>().join(", ")
}
