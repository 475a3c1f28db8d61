//! Multi-query associative recall: the value that followed a key. A control: two attention layers
//! suffice, so a deep model that is no better here than a shallow one is as it should be.
//!
//! The context lists key-value pairs, then come queries: `k1 v1 k2 v2 .. kn vn  q a  q a ..` where `a`
//! is the value listed with the key `q`. Keys, values and queries of an example are each different
//! from one another. Arora, Eyuboglu et al., "Zoology: Measuring and Improving Recall in Efficient
//! Language Models", arXiv 2312.04927; here the queries follow at once, without filler between them.
//!
//! A question is asked where `q` is read; its target is the next token `a`.
//!
//! | token | meaning |
//! |---|---|
//! | 0 | padding (not used: every instance has the same length) |
//! | 1 .. vocabulary / 2 | keys |
//! | vocabulary / 2 .. vocabulary | values |

use super::{Draw, Example, Task, TaskError, orderings, within};
use serde::{Deserialize, Serialize};

/// Settings of multi-query associative recall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqarConfig {
    /// Key-value pairs in the context.
    pub pairs: usize,
    /// Queries about them.
    pub queries: usize,
    /// All tokens: padding, keys and values.
    pub vocabulary: usize,
}

impl Default for MqarConfig {
    fn default() -> Self {
        Self { pairs: 16, queries: 16, vocabulary: 256 }
    }
}

impl MqarConfig {
    fn first_value(&self) -> usize {
        self.vocabulary / 2
    }

    /// How many keys and values there are to choose from.
    fn choices(&self) -> (usize, usize) {
        (self.first_value() - 1, self.vocabulary - self.first_value())
    }
}

impl Task for MqarConfig {
    fn name(&self) -> &'static str {
        "mqar"
    }

    fn describe(&self) -> String {
        let Self { pairs, queries, vocabulary } = self;
        format!("mqar: recall of {queries} among {pairs} pairs over {vocabulary} tokens")
    }

    fn vocab_size(&self) -> usize {
        self.vocabulary
    }

    fn seq_len(&self) -> usize {
        2 * (self.pairs + self.queries) - 1
    }

    fn check_ranges(&self) -> Result<(), TaskError> {
        let check =
            |setting, value, allowed, reason| within("mqar", setting, value, allowed, reason);
        let reason = "there must be padding, a key and two values, and more is only slower";
        check("vocabulary", self.vocabulary, 4..=65_536, reason)?;
        let reason = "each pair has its own key, and keys are half of the vocabulary";
        check("pairs", self.pairs, 1..=self.choices().0, reason)?;
        check("queries", self.queries, 1..=self.pairs, "each query asks for another pair")
    }

    fn instances(&self) -> (f64, &'static str) {
        let (keys, values) = self.choices();
        let contexts = orderings(self.pairs, keys) + orderings(self.pairs, values);
        (contexts + orderings(self.queries, self.pairs), "`pairs` or `vocabulary`")
    }

    fn numbers(&self) -> Vec<u64> {
        vec![self.pairs as u64, self.queries as u64, self.vocabulary as u64]
    }

    fn draw(&self, draw: &mut Draw) -> Example {
        let (key_choices, value_choices) = self.choices();
        let keys = draw.distinct(self.pairs, key_choices);
        let values = draw.distinct(self.pairs, value_choices);
        let pair =
            |place: usize| [(1 + keys[place]) as u32, (self.first_value() + values[place]) as u32];

        let mut sequence: Vec<u32> = (0..self.pairs).flat_map(pair).collect();
        let mut answers = Vec::with_capacity(self.queries);
        for place in draw.distinct(self.queries, self.pairs) {
            sequence.extend(pair(place));
            answers.push(sequence.len() - 1);
        }
        Example::next_token(&sequence, &answers, self.seq_len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Split, TaskConfig};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_answer_is_the_value_listed_with_its_key() {
        let small = MqarConfig { pairs: 5, queries: 3, vocabulary: 13 };
        for config in [MqarConfig::default(), small] {
            let task = TaskConfig::Mqar(config.clone());
            task.check().unwrap();
            for index in 0..300 {
                let Example { input, target, scored } = task.example(Split::Train, 4, index);
                let context = 2 * config.pairs;
                let asked: Vec<usize> = (0..input.len()).filter(|p| scored[*p]).collect();
                let expected: Vec<usize> = (context..input.len()).step_by(2).collect();
                assert_eq!(asked, expected);
                assert_eq!(asked.len(), config.queries);
                for position in asked {
                    let listed = (0..context).step_by(2).find(|p| input[*p] == input[position]);
                    assert_eq!(target[position], input[listed.unwrap() + 1]);
                }
            }
        }
    }

    #[test]
    fn keys_values_and_queries_are_each_different_from_one_another() {
        let config = MqarConfig { pairs: 6, queries: 6, vocabulary: 15 };
        let task = TaskConfig::Mqar(config);
        for index in 0..200 {
            let input = task.example(Split::HeldOut, 4, index).input;
            let every_other =
                |tokens: &[u32]| -> BTreeSet<u32> { tokens.iter().copied().step_by(2).collect() };
            let (keys, values) = (every_other(&input[..12]), every_other(&input[1..12]));
            assert_eq!((keys.len(), values.len()), (6, 6));
            assert!(keys.iter().all(|key| (1..7).contains(key)));
            assert!(values.iter().all(|value| (7..15).contains(value)));
            assert_eq!(every_other(&input[12..]), keys);
        }
    }
}
