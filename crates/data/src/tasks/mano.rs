//! Mano: the value of a nested expression modulo p.
//!
//! An expression with l operations stands in prefix notation, `+ a * b c` for `a + b * c`, between
//! the token of its length and an equals sign; the answer follows: `[l] + a * b c = answer`. The
//! operations are addition, subtraction and multiplication, drawn uniformly, as is the split of the
//! remaining operations between the two sides. No intermediate result is written, so an outer
//! operation waits for its inner ones inside the network. Allen-Zhu, "Physics of Language Models:
//! Part 4.1, Architecture Design and the Magic of Canon Layers", 2025 (task Mano, type "asm").
//!
//! One question per example, asked where the equals sign is read. Shorter expressions are padded at
//! the end.
//!
//! | token | meaning |
//! |---|---|
//! | 0 | padding |
//! | 1, 2, 3 | plus, minus, times |
//! | 4 | equals |
//! | 5 + v, for v in 0 .. modulus | the number v |
//! | 4 + modulus + l, for l in 1 ..= max_operations | the number of operations |

use super::{Draw, Example, Task, TaskError, within};
use serde::{Deserialize, Serialize};

const PLUS: u32 = 1;
const MINUS: u32 = 2;
const TIMES: u32 = 3;
const EQUALS: u32 = 4;
const FIRST_NUMBER: u32 = 5;

/// Settings of Mano.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManoConfig {
    /// Numbers are computed modulo this.
    pub modulus: usize,
    /// The longest expression; each example draws its own between one operation and this.
    pub max_operations: usize,
    /// The operations of every expression, instead of a drawn number: to measure one difficulty with
    /// the tokens of a model that was trained on all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<usize>,
}

impl Default for ManoConfig {
    /// The paper's modulus, and expressions shorter than its 10 to 16 operations.
    fn default() -> Self {
        Self { modulus: 23, max_operations: 6, operations: None }
    }
}

impl ManoConfig {
    /// Writes an expression and returns its value.
    fn expression(&self, operations: usize, draw: &mut Draw, sequence: &mut Vec<u32>) -> u64 {
        let modulus = self.modulus as u64;
        if operations == 0 {
            let number = draw.below(self.modulus) as u32;
            sequence.push(FIRST_NUMBER + number);
            return u64::from(number);
        }
        let operator = [PLUS, MINUS, TIMES][draw.below(3)];
        sequence.push(operator);
        let left_operations = draw.below(operations);
        let left = self.expression(left_operations, draw, sequence);
        let right = self.expression(operations - 1 - left_operations, draw, sequence);
        match operator {
            PLUS => (left + right) % modulus,
            MINUS => (left + modulus - right) % modulus,
            _ => left * right % modulus,
        }
    }
}

impl Task for ManoConfig {
    fn name(&self) -> &'static str {
        "mano"
    }

    fn describe(&self) -> String {
        let Self { modulus, max_operations, operations } = self;
        let length =
            operations.map_or_else(|| format!("1 to {max_operations}"), |fixed| fixed.to_string());
        format!("mano: expressions of {length} operations modulo {modulus}")
    }

    fn vocab_size(&self) -> usize {
        FIRST_NUMBER as usize + self.modulus + self.max_operations
    }

    fn seq_len(&self) -> usize {
        2 * self.max_operations + 3
    }

    fn check_ranges(&self) -> Result<(), TaskError> {
        let check =
            |setting, value, allowed, reason| within("mano", setting, value, allowed, reason);
        let reason = "modulo one every answer is zero, and every number is a token";
        check("modulus", self.modulus, 2..=65_536, reason)?;
        let reason = "an expression needs one, and more than 512 nest deeper than any model";
        check("max_operations", self.max_operations, 1..=512, reason)?;
        if let Some(operations) = self.operations {
            let reason = "only lengths up to `max_operations` have a token";
            check("operations", operations, 1..=self.max_operations, reason)?;
        }
        Ok(())
    }

    fn instances(&self) -> (f64, &'static str) {
        // Counts only the longest expressions of one shape, which are drawn often enough to rely on.
        let operations = self.operations.unwrap_or(self.max_operations) as f64;
        let numbers = (operations + 1.0) * (self.modulus as f64).log2();
        (operations * 3f64.log2() + numbers, "`modulus` or the number of operations")
    }

    fn numbers(&self) -> Vec<u64> {
        let Self { modulus, max_operations, operations } = *self;
        // No expression has zero operations, so zero says that they are drawn.
        [modulus, max_operations, operations.unwrap_or(0)].map(|number| number as u64).to_vec()
    }

    fn draw(&self, draw: &mut Draw) -> Example {
        let operations = self.operations.unwrap_or_else(|| 1 + draw.below(self.max_operations));
        let mut sequence = vec![FIRST_NUMBER - 1 + (self.modulus + operations) as u32];
        let value = self.expression(operations, draw, &mut sequence);
        sequence.extend([EQUALS, FIRST_NUMBER + value as u32]);
        Example::next_token(&sequence, &[sequence.len() - 1], self.seq_len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PADDING, Split, TaskConfig};
    use super::*;
    use std::collections::BTreeSet;

    /// Evaluates the expression from its end with a stack. Returns the number of operations.
    fn verify(config: &ManoConfig, example: &Example) -> usize {
        let equals = example.input.iter().position(|token| *token == EQUALS).unwrap();
        let mut stack: Vec<i64> = Vec::new();
        let mut operations = 0;
        for token in example.input[1..equals].iter().rev() {
            if *token >= FIRST_NUMBER {
                assert!((*token as usize) < FIRST_NUMBER as usize + config.modulus);
                stack.push(i64::from(token - FIRST_NUMBER));
                continue;
            }
            operations += 1;
            let (left, right) = (stack.pop().unwrap(), stack.pop().unwrap());
            let value = match *token {
                1 => left + right,
                2 => left - right,
                3 => left * right,
                other => panic!("{other} is no operation"),
            };
            stack.push(value.rem_euclid(config.modulus as i64));
        }
        assert_eq!(stack.len(), 1, "one whole expression");
        assert_eq!(i64::from(example.target[equals] - FIRST_NUMBER), stack[0]);
        assert_eq!(example.input[0] as usize, 4 + config.modulus + operations);
        assert!(example.input[equals + 1..].iter().all(|token| *token == PADDING));
        let asked: Vec<usize> = (0..config.seq_len()).filter(|p| example.scored[*p]).collect();
        assert_eq!(asked, [equals]);
        operations
    }

    #[test]
    fn every_answer_is_the_value_of_its_expression() {
        let deep = ManoConfig { modulus: 7, max_operations: 30, operations: None };
        for config in [ManoConfig::default(), deep] {
            let task = TaskConfig::Mano(config.clone());
            let lengths: BTreeSet<usize> = (0..2000)
                .map(|index| verify(&config, &task.example(Split::Train, 9, index)))
                .collect();
            assert!(lengths.into_iter().eq(1..=config.max_operations), "every length is drawn");
        }
    }

    #[test]
    fn a_fixed_number_of_operations_keeps_the_tokens_and_the_length() {
        let drawn = ManoConfig::default();
        let fixed = ManoConfig { operations: Some(4), ..drawn.clone() };
        let task = TaskConfig::Mano(fixed.clone());
        assert_eq!((fixed.vocab_size(), fixed.seq_len()), (drawn.vocab_size(), drawn.seq_len()));
        assert!((0..50).all(|i| verify(&fixed, &task.example(Split::HeldOut, 1, i)) == 4));
    }

    #[test]
    fn an_expression_is_held_out_whatever_the_longest_one_may_be() {
        let short = TaskConfig::Mano(ManoConfig { max_operations: 2, ..ManoConfig::default() });
        for index in 0..200 {
            let mut input = short.example(Split::HeldOut, 2, index).input;
            input.resize(100, PADDING);
            assert_eq!(Split::of(&input), Split::HeldOut);
        }
    }
}
