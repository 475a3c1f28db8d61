//! Cutting one of our directories. The cut model is built and compared with the whole one from which the parts are
//! absent before anything is written, so that a policy in which depth means more than order cannot be cut by mistake.

use super::error::PruneError;
use super::map::Renumbering;
use crate::save_into;
use hadal_kernels::read_back;
use hadal_model::{
    Decoder, Device, ModelConfig, Part, PassError, Variant, apart, load, some_tokens,
};
use hadal_residual::{InvalidPolicy, Numbering, ResidualConfig, Site};
use std::collections::HashMap;
use std::path::Path;

/// Difference of logits, relative to the largest, that rounding can explain.
const ROUNDING: f32 = 1e-4;

/// Writes config and weights of a cut. Returns whether it computes the same to the bit, or only to rounding.
pub(super) fn cut(directory: &Path, map: &Renumbering, out: &Path) -> Result<bool, PruneError> {
    let whole = load(directory, &Device::flex())?.decoder;
    let (decoder, exact) = cut_model(&whole, map)?;
    save_into(&decoder, out)?;
    Ok(exact)
}

/// The model without the parts, and whether it computes the same to the bit.
pub(super) fn cut_model(whole: &Decoder, map: &Renumbering) -> Result<(Decoder, bool), PruneError> {
    let residual = whole.config().residual.to_string();
    let refuse = |reason: String| PruneError::NotWritable { residual: residual.clone(), reason };
    let absent = absent(map);
    whole.check_absent(&absent).map_err(|error| match error {
        PassError::NotAbsent { site, reason } => refuse(format!("the {site} must stay: {reason}")),
        other => other.into(),
    })?;
    // A silent attention would still leave its values to the others, while without it they take those of the next one.
    if !whole.config().value_residual.is_none()
        && let Some(&first) = map.kept().first()
        && map.silences(Part::Attention(first))
    {
        let site = Site::new(2 * first);
        return Err(refuse(format!(
            "the {site} must stay: later attention takes its values (value_residual); a whole block can go"
        )));
    }
    let config = cut_config(whole.config(), map).map_err(|error| refuse(error.reason))?;
    config.check()?;
    let old: HashMap<String, Vec<f32>> = whole.parameters().into_iter().collect();
    let mut problem = None;
    let mut stored = |name: &str, shape: &[usize]| {
        let values = moved(name, &old, map, &config.residual);
        let fits = values.filter(|values| values.len() == shape.iter().product::<usize>());
        if fits.is_none() {
            problem.get_or_insert_with(|| {
                format!("{name} has no counterpart of its shape in the whole model")
            });
        }
        fits
    };
    let decoder = Decoder::stored(&config, &mut stored, &Device::flex())?;
    if let Some(problem) = problem {
        return Err(refuse(problem));
    }
    let difference = difference([(whole, &absent), (&decoder, &[])])?;
    if difference > ROUNDING {
        return Err(refuse(format!(
            "numbers of this policy depend on where in depth they stand, and its logits would move by {difference:.1e} of \
             the largest"
        )));
    }
    Ok((decoder, difference == 0.0))
}

fn absent(map: &Renumbering) -> Vec<Site> {
    let gone = (0..map.blocks()).filter(|&block| !map.stays(block)).map(Part::Block);
    Part::all_sites(&gone.chain(map.silent().iter().copied()).collect::<Vec<_>>())
}

/// The config of what is left.
fn cut_config(config: &ModelConfig, map: &Renumbering) -> Result<ModelConfig, InvalidPolicy> {
    let mut cut = ModelConfig { n_layers: map.kept().len(), ..config.clone() };
    if let Some(mut skipping) = config.residual.skipping() {
        skipping.thresholds = skipping.thresholds.keeping(|site| map.stays(site.block()));
        cut.residual.set_skipping(Some(skipping))?;
    }
    if config.residual.depends_on_depth() {
        // Numbers of the model before any cut: this may not be the first one.
        let whole = config.dimensions();
        let gone = (0..map.blocks()).filter(|&block| !map.stays(block));
        cut.removed_blocks.extend(gone.map(|block| whole.depth_of(block)));
        cut.removed_blocks.sort_unstable();
    }
    if let Some(blocks) = cut.sliding_window.as_mut().and_then(|window| window.blocks.as_mut()) {
        *blocks = blocks.iter().filter_map(|&block| map.new_number(block)).collect();
        if blocks.is_empty() {
            cut.sliding_window = None;
        }
    }
    Ok(cut)
}

/// What a parameter of the cut model was in the whole one.
fn moved(
    name: &str,
    old: &HashMap<String, Vec<f32>>,
    map: &Renumbering,
    residual: &ResidualConfig,
) -> Option<Vec<f32>> {
    let words: Vec<&str> = name.split('.').collect();
    let number = words.get(1).and_then(|word| word.parse::<usize>().ok());
    match (words.as_slice(), number) {
        (["layers", _, rest @ ..], Some(block)) => {
            let was = *map.kept().get(block)?;
            let rest = rest.join(".");
            let mut values = old.get(&format!("layers.{was}.{rest}"))?.clone();
            let output = match rest.as_str() {
                "attn.o.weight" | "attn.o.bias" => Some(Part::Attention(was)),
                "mlp.down.weight" | "mlp.down.bias" => Some(Part::Mlp(was)),
                _ => None,
            };
            if output.is_some_and(|part| map.silences(part)) {
                values.fill(0.0);
            }
            Some(values)
        }
        // Blocks are counted from one here; what is numbered zero belongs to the embedding.
        (["residual", "block", number, rest @ ..], _) => {
            let was = match number.parse::<usize>().ok()?.checked_sub(1) {
                Some(block) => *map.kept().get(block)? + 1,
                None => 0,
            };
            old.get(&format!("residual.block.{was}.{}", rest.join("."))).cloned()
        }
        (["residual", _, rest @ ..], Some(number)) => {
            let was = match residual.numbering() {
                Numbering::Sites => 2 * *map.kept().get(number / 2)? + number % 2,
                Numbering::Blocks => *map.kept().get(number)?,
            };
            old.get(&format!("residual.{was}.{}", rest.join("."))).cloned()
        }
        _ => old.get(name).cloned(),
    }
}

/// The largest difference of logits between two models without sub-layers, relative to the largest logit.
fn difference(models: [(&Decoder, &[Site]); 2]) -> Result<f32, PassError> {
    let tokens = some_tokens(models[0].0.config())?;
    let logits = |(decoder, absent): (&Decoder, &[Site])| -> Result<Vec<f32>, PassError> {
        Ok(read_back(decoder.logits(&tokens, Variant::without(absent).pass())?)?)
    };
    let [a, b] = models.map(logits);
    Ok(apart(&a?, &b?))
}
