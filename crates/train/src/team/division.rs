//! Which parameters belong to which rank, and in what order they travel.

use super::owners::{Load, muon_flops, owners};
use crate::config::RunConfig;
use crate::optim::{Group, group_of};
use hadal_model::Decoder;
use std::collections::BTreeMap;

/// Bytes of gradients in one exchange, on all ranks together.
const BUCKET: usize = 4 << 20;

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) name: String,
    pub(crate) elements: usize,
}

/// Which parameters belong to which rank.
#[derive(Debug, Default)]
pub(crate) struct Division {
    owner: BTreeMap<String, usize>,
    /// Whether every rank remembers what the optimiser does of all parameters.
    pub(super) everywhere: bool,
    /// What travels in each exchange, for each owner. What the way back reaches first comes first.
    pub(super) buckets: Vec<Vec<Vec<Owned>>>,
}

impl Division {
    pub(crate) fn new(decoder: &Decoder, config: &RunConfig, ranks: usize) -> Self {
        let optimizer = &config.optimizer;
        let declared = decoder.declared();
        let elements = |shape: &[usize]| shape.iter().product::<usize>();
        let load = |name: &str, shape: &[usize]| {
            let residual = &decoder.config().residual;
            let group = group_of(name, shape, residual, optimizer.hidden);
            Load::of(group, elements(shape) as u64, shape, optimizer.muon.steps)
        };
        let loads: Vec<Load> =
            declared.iter().map(|declared| load(&declared.name, &declared.shape)).collect();
        let owners = owners(&loads, ranks as u64);
        let mut lists = vec![Vec::new(); ranks];
        for (declared, &owner) in declared.iter().zip(&owners).rev() {
            let elements = elements(&declared.shape);
            lists[owner as usize].push(Owned { name: declared.name.clone(), elements });
        }
        let owner = declared.iter().zip(&owners);
        let owner = owner.map(|(declared, &owner)| (declared.name.clone(), owner as usize));
        Self {
            owner: owner.collect(),
            everywhere: config.ranks.local_steps > 0,
            buckets: buckets(lists, BUCKET / ranks),
        }
    }

    /// The parameters of a bucket of which a rank remembers something.
    pub(super) fn remembered<'a>(
        &'a self,
        bucket: &'a [Vec<Owned>],
        rank: usize,
    ) -> impl Iterator<Item = &'a Owned> {
        let lists = bucket.iter().enumerate();
        lists.filter(move |(owner, _)| self.everywhere || *owner == rank).flat_map(|(_, list)| list)
    }

    /// Whether a parameter belongs to a rank.
    pub(crate) fn is_owner(&self, rank: usize, name: &str) -> bool {
        self.owner.get(name) == Some(&rank)
    }
}

impl Load {
    /// Of a parameter in this group.
    pub(crate) fn of(group: Group, elements: u64, shape: &[usize], muon_steps: usize) -> Self {
        match group {
            Group::Muon => Self { slots: elements, flops: muon_flops(shape, muon_steps) },
            _ => Self { slots: elements.saturating_mul(2), flops: 0 },
        }
    }
}

/// Cuts each owner's list into pieces of about as many bytes; the first pieces travel together, and so on.
fn buckets(lists: Vec<Vec<Owned>>, bytes: usize) -> Vec<Vec<Vec<Owned>>> {
    let ranks = lists.len();
    let mut buckets: Vec<Vec<Vec<Owned>>> = Vec::new();
    for (owner, list) in lists.into_iter().enumerate() {
        let (mut bucket, mut filled) = (0, 0);
        for owned in list {
            if filled > 0 && filled + 4 * owned.elements > bytes {
                (bucket, filled) = (bucket + 1, 0);
            }
            filled += 4 * owned.elements;
            if bucket == buckets.len() {
                buckets.push(vec![Vec::new(); ranks]);
            }
            buckets[bucket][owner].push(owned);
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_about_as_large_and_everything_travels_once() {
        let owned = |name: &str, elements| Owned { name: name.into(), elements };
        let lists = vec![
            vec![owned("a", 10), owned("b", 10), owned("c", 100), owned("d", 1)],
            vec![owned("e", 20)],
            vec![],
        ];
        let names: Vec<Vec<Vec<String>>> = buckets(lists, 80)
            .into_iter()
            .map(|bucket| {
                let of = |list: Vec<Owned>| list.into_iter().map(|owned| owned.name).collect();
                bucket.into_iter().map(of).collect()
            })
            .collect();
        assert_eq!(
            names,
            [
                vec![vec!["a", "b"], vec!["e"], vec![]],
                vec![vec!["c"], vec![], vec![]],
                vec![vec!["d"], vec![], vec![]]
            ]
        );
    }
}
