//! What a suite chooses of its models' shapes, so that a difference is not one of size.
//!
//! - `match = "parameters"`: the MLP of each variant is widened or narrowed until the variant has the baseline's count
//!   at its depth.
//! - `shape = "fixed-parameters"`: a width for every depth, so that the baseline has the same count at all of them. The
//!   number of heads stays, and a head's width is even; or, where `model.head_dim` is given, that stays and the number
//!   of heads follows. Of the widths nearest to the count, that one is taken at which `d_ff` keeps its ratio to the width
//!   best, and `d_ff` takes up the rest.

use super::error::CompareError;
use super::matching::{Fit, TOLERANCE, fit, off};
use super::suite::{Suite, Variant, refused};
use hadal_model::{ModelConfig, ModelCost};
use hadal_train::{ModelSection, RunConfig, TrainError, model_config};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// What `match` may say.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Match {
    Parameters,
}

/// What `shape` may say.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Widths {
    FixedParameters,
}

/// What a suite chooses of its models' shapes.
#[derive(Debug, Default)]
pub(super) struct Shaping {
    /// Whether variants get the baseline's count.
    pub(super) matched: bool,
    /// Whether depths get the same count, and which one if not that of the model's own depth.
    pub(super) fixed: Option<Option<u64>>,
    /// Shapes that were chosen already: a plan asks for each of them once for every seed.
    known: Mutex<Vec<(Variant, Option<usize>, Shape)>>,
}

impl Clone for Shaping {
    fn clone(&self) -> Self {
        Self { matched: self.matched, fixed: self.fixed, known: Mutex::default() }
    }
}

/// The shape of a variant at a depth, as the suite chose it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Hidden width of the MLP.
    pub d_ff: usize,
    /// Parameters.
    pub parameters: u64,
    /// What they should be: the baseline's at this depth, or those of the suite.
    pub target: u64,
    /// How far they are off, as a share of that.
    pub off: f64,
}

impl Shape {
    fn of(model: &ModelConfig, parameters: u64, target: u64) -> Self {
        let ModelConfig { n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, .. } = *model;
        let off = off(parameters, target);
        Self { n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, parameters, target, off }
    }

    fn model(&self, model: &ModelConfig) -> ModelConfig {
        let Self { d_model, n_heads, n_kv_heads, head_dim, d_ff, .. } = *self;
        ModelConfig { d_model, n_heads, n_kv_heads, head_dim, d_ff, ..model.clone() }
    }

    fn apply(&self, section: &mut ModelSection) {
        section.d_model = self.d_model;
        section.n_heads = self.n_heads;
        section.n_kv_heads = Some(self.n_kv_heads);
        section.head_dim = Some(self.head_dim);
        section.d_ff = Some(self.d_ff);
    }

    /// Width over blocks.
    pub fn aspect(&self) -> f64 {
        self.d_model as f64 / self.n_layers.max(1) as f64
    }
}

impl Shaping {
    pub(super) fn of(
        (matched, shape, parameters): (Option<Match>, Option<Widths>, Option<f64>),
        depths: &[usize],
        origin: &str,
    ) -> Result<Self, CompareError> {
        let refuse = |field: &str, problem: &str| Err(refused(origin, field, problem.into()));
        let target = match (shape, parameters) {
            (None, None) => None,
            (None, Some(_)) => {
                return refuse(
                    "parameters",
                    "needs shape = \"fixed-parameters\"; leave out one of them",
                );
            }
            (Some(Widths::FixedParameters), None) if depths.is_empty() => {
                return refuse(
                    "shape",
                    "needs depths = [..], or parameters = N, to choose widths for",
                );
            }
            (Some(Widths::FixedParameters), None) => Some(None),
            (Some(Widths::FixedParameters), Some(count)) => {
                if !((1.0..=1e15).contains(&count) && count.fract() == 0.0) {
                    let problem = format!("is {count}; write a whole number, such as 400_000");
                    return refuse("parameters", &problem);
                }
                Some(Some(count as u64))
            }
        };
        Ok(Self { matched: matched.is_some(), fixed: target, known: Mutex::default() })
    }

    /// After a change of settings.
    pub(super) fn forget(&mut self) {
        self.known = Mutex::default();
    }

    fn known(&self, variant: &Variant, depth: Option<usize>) -> Option<Shape> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = known.iter().find(|(other, at, _)| other == variant && *at == depth);
        mine.map(|(_, _, shape)| shape.clone())
    }
}

impl Suite {
    /// The settings of one run, with the steps of `[train]`.
    pub(super) fn config(
        &self,
        variant: &Variant,
        depth: Option<usize>,
        seed: u64,
    ) -> Result<RunConfig, CompareError> {
        let mut config = self.unshaped(variant, depth, seed)?;
        if let Some(shape) = self.shape(variant, depth)? {
            shape.apply(&mut config.model);
        }
        Ok(config)
    }

    /// The shape that is chosen for a variant at a depth, if one is.
    pub(super) fn shape(
        &self,
        variant: &Variant,
        depth: Option<usize>,
    ) -> Result<Option<Shape>, CompareError> {
        match self.shaping.matched || self.shaping.fixed.is_some() {
            true => self.found_shape(variant, depth).map(Some),
            false => Ok(None),
        }
    }

    /// Every shape that is chosen, by the name of its variant at its depth; the baseline's come first.
    pub fn shapes(&self) -> Result<Vec<(String, Shape)>, CompareError> {
        let mut variants: Vec<&Variant> = self.variants.iter().collect();
        variants.sort_by_key(|variant| variant.name != self.baseline);
        let mut shapes = Vec::new();
        for depth in self.each_depth() {
            for &variant in &variants {
                let name = super::plan::cell(&variant.name, depth);
                shapes.extend(self.shape(variant, depth)?.map(|shape| (name, shape)));
            }
        }
        Ok(shapes)
    }

    fn found_shape(&self, variant: &Variant, depth: Option<usize>) -> Result<Shape, CompareError> {
        if let Some(shape) = self.shaping.known(variant, depth) {
            return Ok(shape);
        }
        let shape = match variant.name == self.baseline {
            true => self.of_baseline(variant, depth)?,
            false => self.of_variant(variant, depth)?,
        };
        let mut known = self.shaping.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push((variant.clone(), depth, shape.clone()));
        Ok(shape)
    }

    /// Nothing but the depth decides it.
    fn of_baseline(&self, variant: &Variant, depth: Option<usize>) -> Result<Shape, CompareError> {
        let uncounted = self.uncounted(variant, depth);
        let model = self.model(variant, depth)?;
        let own = count(&model).map_err(&uncounted)?;
        let Some(target) = self.shaping.fixed else { return Ok(Shape::of(&model, own, own)) };
        let of_suite = self.model(variant, None)?;
        let target = match target {
            Some(target) => target,
            None => count(&of_suite).map_err(&uncounted)?,
        };
        if own == target {
            return Ok(Shape::of(&model, own, own));
        }
        let keeps_head = self.unshaped(variant, depth, self.seeds[0])?.model.head_dim.is_some();
        let refuse = |problem: String| refused(self.origin(), "shape", problem);
        let steps = Steps::of(&of_suite, keeps_head).map_err(refuse)?;
        let found = steps.search(&model, target).map_err(&uncounted)?;
        found.map_err(|nearest| {
            refuse(format!(
                "finds no width at {} blocks within {} % of {target} parameters{nearest}; write other depths, or another \
                 number of parameters",
                model.n_layers,
                100.0 * TOLERANCE
            ))
        })
    }

    /// The baseline's shape, with an MLP of its own if counts are matched.
    fn of_variant(&self, variant: &Variant, depth: Option<usize>) -> Result<Shape, CompareError> {
        let uncounted = self.uncounted(variant, depth);
        let baseline = self.found_shape(self.baseline_variant(), depth)?;
        let model = baseline.model(&self.model(variant, depth)?);
        if !self.shaping.matched {
            return Ok(Shape::of(&model, count(&model).map_err(&uncounted)?, baseline.target));
        }
        let target = baseline.parameters;
        let of = |d_ff: usize| count(&ModelConfig { d_ff, ..model.clone() });
        let found = fit(of, model.d_ff, target).map_err(&uncounted)?;
        if let Some((d_ff, parameters)) = found.within(target) {
            return Ok(Shape::of(&ModelConfig { d_ff, ..model }, parameters, target));
        }
        let Fit { d_ff, parameters } = found;
        let name = super::plan::cell(&variant.name, depth);
        let problem = match parameters {
            Some(parameters) => format!(
                "leaves {name} {:+.2} % off the {target} parameters of {} at the nearest d_ff, {d_ff}: the model is too \
                 small for it; make it wider, or leave match out",
                100.0 * off(parameters, target),
                self.baseline
            ),
            None => format!(
                "would give {name} a d_ff of {d_ff}: beside its MLPs it has more parameters than all of {} ({target}); \
                 make the model wider, or leave match out",
                self.baseline
            ),
        };
        Err(refused(self.origin(), "match", problem))
    }

    /// The model before anything is chosen.
    fn model(&self, variant: &Variant, depth: Option<usize>) -> Result<ModelConfig, CompareError> {
        let config = self.unshaped(variant, depth, self.seeds[0])?;
        let model = config.open_feed().map_err(TrainError::from);
        let model = model.and_then(|feed| model_config(&config, &feed));
        model.map_err(self.uncounted(variant, depth))
    }

    fn uncounted(
        &self,
        variant: &Variant,
        depth: Option<usize>,
    ) -> impl Fn(TrainError) -> CompareError {
        let (origin, seed) = (self.origin().to_owned(), self.seeds[0]);
        let run = format!("{}-s{seed}", super::plan::cell(&variant.name, depth));
        move |reason| CompareError::Unplanned {
            origin: origin.clone(),
            run: run.clone(),
            reason: Box::new(reason),
        }
    }
}

fn count(model: &ModelConfig) -> Result<u64, TrainError> {
    Ok(ModelCost::of(model)?.parameters.total())
}

/// Widths that a model may have.
#[derive(Clone, Debug)]
struct Steps {
    /// They are multiples of it.
    unit: usize,
    /// Whether a head keeps its width and their number follows.
    keeps_head: bool,
    /// The model whose ratios are kept.
    model: ModelConfig,
}

impl Steps {
    fn of(model: &ModelConfig, keeps_head: bool) -> Result<Self, String> {
        let ModelConfig { d_model, n_heads, n_kv_heads, .. } = *model;
        let unit = match keeps_head {
            false => 2 * n_heads,
            // As many query heads as share a key head at a time.
            true if (d_model * (n_heads / n_kv_heads)).is_multiple_of(n_heads) => {
                d_model * (n_heads / n_kv_heads) / n_heads
            }
            true => {
                return Err(format!(
                    "keeps model.head_dim where it is given, but d_model {d_model} is no multiple of n_heads {n_heads}; \
                     leave head_dim out"
                ));
            }
        };
        Ok(Self { unit, keeps_head, model: model.clone() })
    }

    /// So many units wide; `d_ff` keeps its ratio.
    fn wide(&self, units: usize, model: &ModelConfig) -> ModelConfig {
        let d_model = units * self.unit;
        let own = &self.model;
        let d_ff = (self.ratio() * d_model as f64).round().max(1.0) as usize;
        let (n_heads, n_kv_heads, head_dim) = match self.keeps_head {
            false => (own.n_heads, own.n_kv_heads, d_model / own.n_heads),
            true => (units * (own.n_heads / own.n_kv_heads), units, own.head_dim),
        };
        ModelConfig { d_model, n_heads, n_kv_heads, head_dim, d_ff, ..model.clone() }
    }

    fn ratio(&self) -> f64 {
        self.model.d_ff as f64 / self.model.d_model as f64
    }

    /// The width at which `d_ff` keeps its ratio best while the count is met; or what comes nearest, in words.
    fn search(
        &self,
        model: &ModelConfig,
        target: u64,
    ) -> Result<Result<Shape, String>, TrainError> {
        /// No model is wider.
        const WIDEST: usize = 1 << 20;
        let most = (WIDEST / self.unit).max(1);
        // The first width with as many parameters or more.
        let (mut low, mut high) = (0, 1);
        while high < most && count(&self.wide(high, model))? < target {
            (low, high) = (high, (2 * high).min(most));
        }
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if count(&self.wide(middle, model))? < target { low = middle } else { high = middle }
        }
        let mut best: Option<(f64, Shape)> = None;
        let mut nearest: Option<Shape> = None;
        for units in [low, high].into_iter().filter(|&units| units > 0) {
            let wide = self.wide(units, model);
            let of = |d_ff: usize| count(&ModelConfig { d_ff, ..wide.clone() });
            let found = fit(of, wide.d_ff, target)?;
            if let Some((d_ff, parameters)) = found.within(target) {
                let bent = (d_ff as f64 / wide.d_model as f64 / self.ratio()).ln().abs();
                let shape = Shape::of(&ModelConfig { d_ff, ..wide.clone() }, parameters, target);
                if best.as_ref().is_none_or(|(other, _)| bent < *other) {
                    best = Some((bent, shape));
                }
            }
            let here = Shape::of(&wide, count(&wide)?, target);
            if nearest.as_ref().is_none_or(|other| here.off.abs() < other.off.abs()) {
                nearest = Some(here);
            }
        }
        let told = |shape: Shape| format!(" (d_model {} has {})", shape.d_model, shape.parameters);
        Ok(best.map(|(_, shape)| shape).ok_or_else(|| nearest.map_or_else(String::new, told)))
    }
}
