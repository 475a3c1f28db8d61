//! `[tune]` and `[variant.tune]` as they are written.

use super::grid::{Axis, GridPoint, LR_SCALE, number, text};
use crate::error::CompareError;
use crate::suite::{Budget, Variant, duplicate, recipe_setting, refused};
use hadal_residual::{nearest, plain_words};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// How a suite is tuned.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// Seeds of tuning runs; the table uses none of them.
    pub seeds: Vec<u64>,
    /// Steps of a tuning run (of the last round's) as a share of a final run's.
    pub share: f64,
    /// Rounds; each has `1 / keep` times the steps of the one before.
    pub rounds: usize,
    /// Share of the points that go on to the next round.
    pub keep: f64,
    /// What is chosen for.
    pub per: Per,
    /// The depth at which all depths' choice is made.
    pub depth: Option<usize>,
    /// What each variant is tuned over, in the order of the suite.
    pub(crate) grids: Vec<Vec<Axis>>,
}

/// What one choice holds for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// A variant, at all depths.
    #[default]
    Variant,
    /// A variant at one depth.
    Cell,
}

/// What `[tune]` says besides its grid.
#[derive(Deserialize)]
struct Head {
    #[serde(default = "far_seeds")]
    seeds: Vec<i64>,
    #[serde(default = "whole")]
    share: f64,
    #[serde(default = "one_round")]
    rounds: usize,
    #[serde(default = "half")]
    keep: f64,
    #[serde(default)]
    per: Per,
    depth: Option<usize>,
}

/// Far from what people call their seeds, so that more of these can be added later.
fn far_seeds() -> Vec<i64> {
    vec![1000, 1001]
}

fn whole() -> f64 {
    1.0
}

fn one_round() -> usize {
    1
}

fn half() -> f64 {
    0.5
}

const HEAD: [&str; 6] = ["seeds", "share", "rounds", "keep", "per", "depth"];
/// Sections of a run that decide how it learns, and nothing that is compared.
const OPEN: [&str; 3] = ["optimizer", "schedule", "skip"];
/// Keys of `[train]` that do, too.
const OPEN_TRAIN: [&str; 2] = ["nag_alpha_warmup", "precision"];
/// Those that change what a step costs: fair only where steps follow from FLOPs.
const COST: [&str; 2] = ["batch", "accumulate"];
/// More points than anybody trains are a mistyped grid.
const MOST_POINTS: usize = 1000;
/// More rounds would begin with a thousandth of the steps.
const MOST_ROUNDS: usize = 10;

/// What a suite says, as far as a grid has to fit it.
pub(crate) struct Around<'a> {
    pub(crate) origin: &'a str,
    pub(crate) variants: &'a [Variant],
    pub(crate) seeds: &'a [u64],
    pub(crate) depths: &'a [usize],
    pub(crate) budget: Budget,
}

/// `[tune]`, and `[variant.tune]` of each variant; `None` if there is neither.
pub(crate) fn parse(
    shared: Option<Value>,
    own: Vec<Option<Value>>,
    around: &Around<'_>,
) -> Result<Option<Tune>, CompareError> {
    if shared.is_none() && own.iter().all(Option::is_none) {
        return Ok(None);
    }
    let refuse = |field: &str, problem: String| refused(around.origin, field, problem);
    let mut table = match shared {
        Some(Value::Table(table)) => table,
        Some(other) => return Err(refuse("tune", format!("is {other}; write [tune]"))),
        None => Table::new(),
    };
    let mut head = Table::new();
    for key in HEAD {
        if let Some(value) = table.remove(key) {
            head.insert(key.into(), value);
        }
    }
    let said_seeds = head.contains_key("seeds");
    let head: Head = head.try_into().map_err(|error: toml::de::Error| {
        let said = error.to_string();
        let (said, place) = said.trim_end().rsplit_once("\nin `").unwrap_or((said.trim_end(), ""));
        let (origin, place) = (around.origin.into(), place.trim_end_matches('`'));
        CompareError::Malformed { origin, reason: format!("tune.{place}: {}", plain_words(said)) }
    })?;
    let mut axes = Vec::new();
    flatten("tune", "", table, &mut axes, around)?;
    for axis in &axes {
        check(axis, "tune", around)?;
    }
    let mut grids = Vec::new();
    for (variant, own) in around.variants.iter().zip(own) {
        grids.push(merged(&axes, variant, own, around)?);
    }
    if grids.iter().all(Vec::is_empty) {
        let problem = "has no grid; write lists of values, such as lr_scale = [0.25, 0.5, 1, 2, 4]";
        return Err(refuse("tune", problem.into()));
    }
    for (variant, grid) in around.variants.iter().zip(&grids) {
        let points = grid.iter().fold(1_usize, |all, axis| all.saturating_mul(axis.values.len()));
        if points > MOST_POINTS {
            let problem = format!("of `{}` has {points} points; write fewer values", variant.name);
            return Err(refuse("tune", problem));
        }
    }
    if head.seeds.is_empty() {
        return Err(refuse("tune.seeds", "is empty; write at least one, better two".into()));
    }
    if let Some(negative) = head.seeds.iter().find(|&&seed| seed < 0) {
        let problem = format!("holds {negative}; a seed is zero or positive");
        return Err(refuse("tune.seeds", problem));
    }
    if let Some(twice) = duplicate(&head.seeds) {
        return Err(refuse("tune.seeds", format!("holds {twice} twice; remove one")));
    }
    let seeds: Vec<u64> = head.seeds.iter().map(|&seed| seed as u64).collect();
    if let Some(both) = seeds.iter().find(|seed| around.seeds.contains(seed)) {
        let default = if said_seeds { "" } else { " by default" };
        let problem = format!(
            "holds {both}{default}, and so does seeds: a choice by luck on a seed would be in the table; write others"
        );
        return Err(refuse("tune.seeds", problem));
    }
    for (field, share) in [("tune.share", head.share), ("tune.keep", head.keep)] {
        if !(share > 0.0 && share <= 1.0) {
            return Err(refuse(field, format!("is {share}; write a share above 0 and up to 1")));
        }
    }
    if !(1..=MOST_ROUNDS).contains(&head.rounds) {
        let problem = format!("is {}; write 1 to {MOST_ROUNDS}", head.rounds);
        return Err(refuse("tune.rounds", problem));
    }
    if head.rounds > 1 && head.keep == 1.0 {
        let problem = "is 1, so that every round would be the same; write 0.5".into();
        return Err(refuse("tune.keep", problem));
    }
    let depth = depth(&head, around)?;
    let Head { share, rounds, keep, per, .. } = head;
    Ok(Some(Tune { seeds, share, rounds, keep, per, depth, grids }))
}

/// Where the choice for all depths is made: in their middle, unless it is said.
fn depth(head: &Head, around: &Around<'_>) -> Result<Option<usize>, CompareError> {
    let refuse = |problem: String| Err(refused(around.origin, "tune.depth", problem));
    let mut depths = around.depths.to_vec();
    depths.sort_unstable();
    match (head.depth, head.per) {
        (Some(depth), _) if depths.is_empty() => {
            refuse(format!("is {depth}, but the suite has no depths; remove it"))
        }
        (Some(depth), Per::Cell) => {
            refuse(format!("is {depth}, but per = \"cell\" tunes at every depth; remove one"))
        }
        (Some(depth), Per::Variant) if !depths.contains(&depth) => {
            let known: Vec<String> = depths.iter().map(ToString::to_string).collect();
            refuse(format!("is {depth}; depths holds {}", known.join(", ")))
        }
        (Some(depth), Per::Variant) => Ok(Some(depth)),
        (None, Per::Variant) => Ok(depths.get(depths.len().saturating_sub(1) / 2).copied()),
        (None, Per::Cell) => Ok(None),
    }
}

/// The shared grid with the variant's own keys in their places.
fn merged(
    shared: &[Axis],
    variant: &Variant,
    own: Option<Value>,
    around: &Around<'_>,
) -> Result<Vec<Axis>, CompareError> {
    let mut axes = shared.to_vec();
    let Some(own) = own else { return Ok(axes) };
    let within = format!("variant.tune of `{}`", variant.name);
    let refuse = |problem: String| Err(refused(around.origin, &within, problem));
    let Value::Table(own) = own else {
        return refuse("is no table; write [variant.tune]".into());
    };
    if own.is_empty() {
        return refuse("is empty; write a list of values, such as lr_scale = [1, 2, 4]".into());
    }
    if let Some(head) = own.keys().find(|key| HEAD.contains(&key.as_str())) {
        return refuse(format!(
            "holds {head}, which is the same for all variants; write it in [tune]"
        ));
    }
    let mut mine = Vec::new();
    flatten(&within, "", own, &mut mine, around)?;
    for mut axis in mine {
        // What a recipe prescribes has a short name in a variant.
        if let Some(setting) = recipe_setting(&*variant.residual, &axis.key) {
            axis.key = setting;
        }
        check(&axis, &within, around)?;
        match axes.iter_mut().find(|other| other.key == axis.key) {
            Some(other) => *other = axis,
            None => axes.push(axis),
        }
    }
    Ok(axes)
}

/// Lists of values by their whole keys.
fn flatten(
    within: &str,
    above: &str,
    table: Table,
    axes: &mut Vec<Axis>,
    around: &Around<'_>,
) -> Result<(), CompareError> {
    for (key, value) in table {
        let key = if above.is_empty() { key } else { format!("{above}.{key}") };
        match value {
            Value::Table(table) => flatten(within, &key, table, axes, around)?,
            Value::Array(values) => axes.push(Axis { key, values }),
            other => {
                let known = HEAD.into_iter().chain([LR_SCALE]).chain(OPEN);
                let problem = match nearest(&key, known) {
                    Some(meant) if meant != key => {
                        format!("holds {key}, which is unknown; did you mean {meant}?")
                    }
                    _ => format!("holds {key} = {other}; write a list of values to try"),
                };
                return Err(refused(around.origin, within, problem));
            }
        }
    }
    Ok(())
}

/// A key that may differ between variants, with values that differ.
fn check(axis: &Axis, within: &str, around: &Around<'_>) -> Result<(), CompareError> {
    let Axis { key, values } = axis;
    let refuse = |problem: String| Err(refused(around.origin, within, problem));
    let (section, rest) = key.split_once('.').unwrap_or((key, ""));
    let by_flops = matches!(around.budget, Budget::BaselineFlops | Budget::Flops(_));
    match section {
        LR_SCALE if rest.is_empty() => {
            let fits = |value: &Value| number(value).is_some_and(|v| v > 0.0 && v <= 1e6);
            if let Some(wrong) = values.iter().find(|value| !fits(value)) {
                return refuse(format!(
                    "holds {} in {LR_SCALE}; it is a factor on the rates, so write positive numbers",
                    text(wrong)
                ));
            }
        }
        section if OPEN.contains(&section) && !rest.is_empty() => {}
        "train" if OPEN_TRAIN.contains(&rest) => {}
        "train" if COST.contains(&rest) && by_flops => {}
        "train" if COST.contains(&rest) => {
            return refuse(format!(
                "holds {key}, which would give variants other amounts of data; write it for all of them, or iso_flop = true"
            ));
        }
        "seed" | "residual" | "from" | "model" | "data" | "eval" | "train" | "ranks" => {
            return refuse(format!(
                "holds {key}, which is the suite's: it decides what is compared; tune lr_scale, or keys of {}",
                OPEN.join(", ")
            ));
        }
        "memory" | "checkpoint" | "failure" | "sample" | "diagnose" => {
            return refuse(format!("holds {key}, which does not change what is learnt; remove it"));
        }
        _ => {
            let known = HEAD.into_iter().chain([LR_SCALE, "train"]).chain(OPEN);
            let meant = nearest(section, known).map_or_else(
                || format!("tune lr_scale, or keys of {}", OPEN.join(", ")),
                |meant| format!("did you mean {meant}?"),
            );
            return refuse(format!("holds {key}, which is unknown; {meant}"));
        }
    }
    if values.is_empty() {
        return refuse(format!("holds an empty list for {key}; write the values to try"));
    }
    let texts: Vec<String> = values.iter().map(text).collect();
    if let Some(twice) = duplicate(&texts) {
        return refuse(format!("holds {twice} twice in {key}; remove one"));
    }
    Ok(())
}

impl Tune {
    /// The points of a variant, by its place in the suite; none for one without a grid.
    pub fn points(&self, variant: usize) -> Vec<GridPoint> {
        match self.grids.get(variant) {
            Some(axes) if !axes.is_empty() => GridPoint::all(axes),
            _ => Vec::new(),
        }
    }

    /// Whether a setting of a finished run can differ because the choice is another one now.
    pub(crate) fn may_change(key: &str, budget: Budget) -> bool {
        let (section, rest) = key.split_once('.').unwrap_or((key, ""));
        let follows = budget != Budget::Steps && rest == "steps";
        OPEN.contains(&section)
            || section == "train" && (follows || OPEN_TRAIN.contains(&rest) || COST.contains(&rest))
    }
}
