//! Two blocks that change places: which parameters go where.
//!
//! Everything under `layers.{i}` travels, and of the policy's own parameters what the policy says
//! (`PolicyConfig::travels`): under attention residuals the queries that read a block's output. A factor by depth on what a
//! sub-layer is given (LayerNorm Scaling) travels, too, as a factor on the gain of its norm. What is left of the policy,
//! such as weights over places, stays where it is.

use hadal_model::Decoder;
use hadal_residual::{Site, SubLayerKind};
use std::collections::{BTreeMap, HashMap};

/// A parameter within a block.
type Own = BTreeMap<String, (String, Vec<usize>)>;

/// The parameters of each block, by what they are called within it.
pub(crate) struct Exchange<'a> {
    decoder: &'a Decoder,
    blocks: Vec<Own>,
}

impl<'a> Exchange<'a> {
    pub(crate) fn of(decoder: &'a Decoder) -> Self {
        let config = decoder.config();
        let mut blocks = vec![Own::new(); config.n_layers];
        for declared in decoder.declared() {
            let place = of_layer(&declared.name)
                .or_else(|| config.residual.travels(&declared.name, &config.dimensions()));
            if let Some((block, key)) = place
                && let Some(own) = blocks.get_mut(block)
            {
                own.insert(key, (declared.name.clone(), declared.shape.clone()));
            }
        }
        Self { decoder, blocks }
    }

    /// Which pairs of names change places, or why the blocks cannot.
    pub(crate) fn names(&self, a: usize, b: usize) -> Result<Vec<(String, String)>, String> {
        let config = self.decoder.config();
        if let Some(why) = config.residual.unlike(a, b, &config.dimensions()) {
            return Err(why.to_owned());
        }
        let (mine, other) = (&self.blocks[a], &self.blocks[b]);
        let lacks = |has: &Own, lacks: &Own, block: usize| {
            has.iter()
                .find(|(key, _)| !lacks.contains_key(*key))
                .map(|(_, (name, _))| format!("block {block} has nothing in the place of {name}"))
        };
        if let Some(why) = lacks(mine, other, b).or_else(|| lacks(other, mine, a)) {
            return Err(why);
        }
        let pair = |(key, (name, shape)): (&String, &(String, Vec<usize>))| {
            let (other, other_shape) = &other[key];
            match shape == other_shape {
                true => Ok((name.clone(), other.clone())),
                false => Err(format!("{name} has the shape {shape:?} and {other} {other_shape:?}")),
            }
        };
        mine.iter().map(pair).collect()
    }

    /// What the values that come from a block's parameter are multiplied by in the place of another.
    fn factor(&self, name: &str, to: usize) -> f32 {
        let config = self.decoder.config();
        let (residual, dimensions) = (&config.residual, config.dimensions());
        let Some((from, rest)) = of_layer(name) else { return 1.0 };
        let half = match rest.as_str() {
            "attn_norm.weight" => SubLayerKind::Attention,
            "mlp_norm.weight" => SubLayerKind::Mlp,
            _ => return 1.0,
        };
        let gain = |block: usize| {
            let site = Site::new(2 * block + usize::from(half == SubLayerKind::Mlp));
            residual.prenorm_gain(site, &dimensions).unwrap_or(1.0)
        };
        (gain(from) / gain(to)) as f32
    }

    /// Gives a copy of the model the parameters of two blocks: exchanged, or as the model has them.
    pub(crate) fn place(&self, copy: &mut Decoder, pair: (usize, usize), exchanged: bool) {
        // Pairs that cannot change places are left out when pairs are listed.
        let Ok(names) = self.names(pair.0, pair.1) else { return };
        let mut sources: HashMap<&str, (&str, usize)> = HashMap::new();
        for (first, second) in &names {
            let (one, other) = if exchanged { (second, first) } else { (first, second) };
            sources.insert(first, (one, pair.0));
            sources.insert(second, (other, pair.1));
        }
        let readers = self.decoder.parameter_readers().into_iter();
        let values: HashMap<String, Vec<f32>> = readers
            .filter(|(name, _)| sources.contains_key(name.as_str()))
            .map(|(name, read)| (name, read()))
            .collect();
        copy.change_parameters(|name, own| {
            let Some(&(source, to)) = sources.get(name) else { return };
            let Some(values) = values.get(source) else { return };
            let factor = self.factor(source, to);
            own.iter_mut().zip(values).for_each(|(own, value)| *own = factor * value);
        });
    }
}

/// `layers.{i}.rest`
fn of_layer(name: &str) -> Option<(usize, String)> {
    let (block, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((block.parse().ok()?, rest.to_owned()))
}
