//! Depo: the node k steps along a cycle whose edges are listed in any order.
//!
//! The context lists the edges of a random cyclic permutation as pairs, then come queries:
//! `x1 y1 x2 y2 .. xn yn  [k] q a  [k] q a  ..` where `a` is the node k steps after `q`. Every query
//! starts at another node. Pointer doubling answers in about `log2 k` layers, walking in k.
//! Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon
//! Layers", 2025 (task Depo, with one token per node).
//!
//! The permutation is one cycle, as in the paper's generator: in a short cycle a long walk would
//! end near its start. A question is asked where `q` is read; its target is the next token `a`, and
//! `a` is then part of the context of later queries.
//!
//! | token | meaning |
//! |---|---|
//! | 0 | padding (not used: every instance has the same length) |
//! | 1 ..= nodes | nodes |
//! | nodes + k, for k in 1 ..= max_hops | how many steps to walk |

use super::{Draw, Example, Task, TaskError, orderings, within};
use serde::{Deserialize, Serialize};

/// Settings of Depo.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DepoConfig {
    /// Nodes of the cycle.
    pub nodes: usize,
    /// The longest walk; each query draws its own between one step and this.
    pub max_hops: usize,
    /// The walk of every query, instead of a drawn one: to measure one difficulty with the tokens
    /// of a model that was trained on all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<usize>,
    /// Queries about one cycle.
    pub queries: usize,
}

impl Default for DepoConfig {
    fn default() -> Self {
        Self { nodes: 32, max_hops: 8, hops: None, queries: 8 }
    }
}

impl Task for DepoConfig {
    fn name(&self) -> &'static str {
        "depo"
    }

    fn describe(&self) -> String {
        let Self { nodes, max_hops, hops, queries } = self;
        let walk = hops.map_or_else(|| format!("1 to {max_hops}"), |hops| hops.to_string());
        format!("depo: {queries} walks of {walk} steps along a cycle of {nodes} nodes")
    }

    fn vocab_size(&self) -> usize {
        1 + self.nodes + self.max_hops
    }

    fn seq_len(&self) -> usize {
        2 * self.nodes + 3 * self.queries - 1
    }

    fn check_ranges(&self) -> Result<(), TaskError> {
        let check =
            |setting, value, allowed, reason| within("depo", setting, value, allowed, reason);
        let reason = "fewer have hardly any cycles, and more do not fit a sequence";
        check("nodes", self.nodes, 3..=16_384, reason)?;
        let reason = "a walk of as many steps as there are nodes ends where it began";
        check("max_hops", self.max_hops, 1..=self.nodes - 1, reason)?;
        if let Some(hops) = self.hops {
            check("hops", hops, 1..=self.max_hops, "only walks up to `max_hops` have a token")?;
        }
        check("queries", self.queries, 1..=self.nodes, "each query starts at another node")
    }

    fn instances(&self) -> (f64, &'static str) {
        let cycles = orderings(self.nodes - 1, self.nodes - 1);
        let edge_orders = orderings(self.nodes, self.nodes);
        let starts = orderings(self.queries, self.nodes);
        let walks = if self.hops.is_some() { 1.0 } else { self.max_hops as f64 };
        (cycles + edge_orders + starts + self.queries as f64 * walks.log2(), "`nodes`")
    }

    fn numbers(&self) -> Vec<u64> {
        let Self { nodes, max_hops, hops, queries } = *self;
        // No walk has zero steps, so zero says that they are drawn.
        [nodes, max_hops, hops.unwrap_or(0), queries].map(|number| number as u64).to_vec()
    }

    fn draw(&self, draw: &mut Draw) -> Example {
        let cycle = draw.distinct(self.nodes, self.nodes);
        let node = |place: usize| (1 + cycle[place % self.nodes]) as u32;

        let mut sequence = Vec::with_capacity(self.seq_len() + 1);
        for place in draw.distinct(self.nodes, self.nodes) {
            sequence.extend([node(place), node(place + 1)]);
        }
        let mut answers = Vec::with_capacity(self.queries);
        for place in draw.distinct(self.queries, self.nodes) {
            let hops = self.hops.unwrap_or_else(|| 1 + draw.below(self.max_hops));
            sequence.extend([(self.nodes + hops) as u32, node(place), node(place + hops)]);
            answers.push(sequence.len() - 1);
        }
        Example::next_token(&sequence, &answers, self.seq_len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Split, TaskConfig};
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Reads the edges from the input and walks them one by one. Returns each query's walk.
    fn verify(config: &DepoConfig, example: &Example) -> Vec<usize> {
        let (edges, questions) = example.input.split_at(2 * config.nodes);
        let next: BTreeMap<u32, u32> = edges.chunks(2).map(|edge| (edge[0], edge[1])).collect();
        let ends: BTreeSet<u32> = next.values().copied().collect();
        assert_eq!((next.len(), ends.len()), (config.nodes, config.nodes), "a permutation");

        let mut walks = Vec::new();
        for (number, question) in questions.chunks(3).enumerate() {
            let walk = question[0] as usize - config.nodes;
            let mut node = question[1];
            for _ in 0..walk {
                node = next[&node];
            }
            let asked = 2 * config.nodes + 3 * number + 1;
            assert!(example.scored[asked]);
            assert_eq!(example.target[asked], node);
            assert!(question.get(2).is_none_or(|answer| *answer == node));
            walks.push(walk);
        }
        assert_eq!(walks.len(), config.queries);
        assert_eq!(example.scored.iter().filter(|scored| **scored).count(), config.queries);
        walks
    }

    #[test]
    fn every_answer_is_found_by_walking_the_edges() {
        let small = DepoConfig { nodes: 5, max_hops: 4, hops: None, queries: 5 };
        for config in [DepoConfig::default(), small] {
            let task = TaskConfig::Depo(config.clone());
            let mut walks = BTreeSet::new();
            for index in 0..300 {
                walks.extend(verify(&config, &task.example(Split::Train, 1, index)));
            }
            assert!(walks.into_iter().eq(1..=config.max_hops), "every walk is drawn");
        }
    }

    #[test]
    fn a_fixed_walk_keeps_the_tokens_and_the_length() {
        let drawn = DepoConfig::default();
        let fixed = DepoConfig { hops: Some(7), ..drawn.clone() };
        let task = TaskConfig::Depo(fixed.clone());
        assert_eq!((fixed.vocab_size(), fixed.seq_len()), (drawn.vocab_size(), drawn.seq_len()));
        for index in 0..50 {
            let walks = verify(&fixed, &task.example(Split::HeldOut, 1, index));
            assert!(walks.iter().all(|walk| *walk == 7));
        }
    }

    #[test]
    fn the_permutation_is_one_cycle_and_queries_start_at_different_nodes() {
        let config = DepoConfig { nodes: 9, max_hops: 3, hops: None, queries: 9 };
        let task = TaskConfig::Depo(config.clone());
        for index in 0..100 {
            let input = task.example(Split::Train, 5, index).input;
            let next: BTreeMap<u32, u32> = input[..18].chunks(2).map(|e| (e[0], e[1])).collect();
            let mut node = 1;
            let visited: BTreeSet<u32> = std::iter::from_fn(|| {
                node = next[&node];
                Some(node)
            })
            .take(config.nodes)
            .collect();
            assert_eq!(visited.len(), config.nodes);
            let starts: BTreeSet<u32> = input[18..].chunks(3).map(|query| query[1]).collect();
            assert_eq!(starts.len(), config.queries);
        }
    }
}
