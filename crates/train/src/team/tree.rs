//! One order for every sum over the parts of a step's batch.
//!
//! The parts are the leaves of a binary tree whose left sides are the largest possible powers of two: six parts are added as
//! `((0 + 1) + (2 + 3)) + (4 + 5)`. The tree depends on the number of parts alone, so the sum has the same bits whoever
//! computes which of its subtrees.

use crate::gradient::Gradients;
use std::collections::BTreeMap;
use std::ops::Range;

/// What can be added.
pub(crate) trait Node {
    /// `self + right`.
    fn plus(self, right: Self) -> Self;
}

impl Node for f64 {
    fn plus(self, right: Self) -> Self {
        self + right
    }
}

/// A parameter without a gradient adds nothing.
impl Node for Gradients {
    fn plus(mut self, right: Self) -> Self {
        for (name, values) in right {
            match self.get_mut(&name) {
                Some(sum) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
                None => drop(self.insert(name, values)),
            }
        }
        self
    }
}

/// A whole subtree: `count` parts from `first` on, where `count` is a power of two that divides `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subtree {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Subtree {
    /// The one that this is half of.
    fn parent(self) -> Self {
        let count = 2 * self.count;
        Self { first: self.first / count * count, count }
    }

    fn is_in(self, parts: &Range<usize>) -> bool {
        parts.start <= self.first && self.first + self.count <= parts.end
    }

    /// Whether it is all that can be added up of these parts.
    pub(crate) fn is_maximal_in(self, parts: &Range<usize>) -> bool {
        !self.parent().is_in(parts)
    }

    /// The largest subtrees that make up a range of parts, in order.
    pub(crate) fn all_in(parts: &Range<usize>) -> Vec<Self> {
        let mut found = Vec::new();
        let mut first = parts.start;
        while first < parts.end {
            let mut subtree = Self { first, count: 1 };
            while subtree.parent().first == first && !subtree.is_maximal_in(parts) {
                subtree = subtree.parent();
            }
            found.push(subtree);
            first += subtree.count;
        }
        found
    }
}

/// A sum over some of the parts, as far as its subtrees are known. They come in any order.
#[derive(Debug)]
pub(crate) struct Tree<T> {
    parts: usize,
    /// What is done to a sum that is not the whole one.
    round: Option<fn(&mut T)>,
    known: BTreeMap<usize, (usize, T)>,
}

impl<T: Node> Tree<T> {
    /// Of so many parts. `round` is what every part, and every sum but the whole one, goes through.
    pub(crate) fn new(parts: usize, round: Option<fn(&mut T)>) -> Self {
        Self { parts, round, known: BTreeMap::new() }
    }

    /// Adds a part.
    pub(crate) fn part(&mut self, index: usize, value: T) {
        self.add(Subtree { first: index, count: 1 }, value);
    }

    /// Adds a subtree, and adds up those that are complete with it.
    pub(crate) fn add(&mut self, mut subtree: Subtree, mut value: T) {
        self.round(subtree, &mut value);
        loop {
            let parent = subtree.parent();
            let sibling = parent.first + parent.first + subtree.count - subtree.first;
            match self.known.remove(&sibling) {
                Some((count, other)) if count == subtree.count => {
                    let (left, right) =
                        if sibling < subtree.first { (other, value) } else { (value, other) };
                    value = left.plus(right);
                    self.round(parent, &mut value);
                    subtree = parent;
                }
                Some(smaller) => {
                    self.known.insert(sibling, smaller);
                    break;
                }
                None => break,
            }
        }
        self.known.insert(subtree.first, (subtree.count, value));
    }

    fn round(&self, subtree: Subtree, value: &mut T) {
        if let Some(round) = self.round.filter(|_| subtree.count < self.parts) {
            round(value);
        }
    }

    /// Takes the subtrees that nothing of these parts can complete any more.
    pub(crate) fn take_maximal(&mut self, parts: &Range<usize>) -> Vec<(Subtree, T)> {
        let is_maximal = |(&first, &(count, _)): (&usize, &(usize, T))| {
            let subtree = Subtree { first, count };
            subtree.is_maximal_in(parts).then_some(subtree)
        };
        let maximal: Vec<Subtree> = self.known.iter().filter_map(is_maximal).collect();
        let mut take = |subtree: Subtree| Some((subtree, self.known.remove(&subtree.first)?.1));
        maximal.into_iter().filter_map(&mut take).collect()
    }

    /// The sum of everything; `None` of nothing.
    pub(crate) fn finish(self) -> Option<T> {
        let mut sums = self.known.into_values().rev().map(|(_, value)| value);
        let last = sums.next()?;
        Some(sums.fold(last, |right, left| left.plus(right)))
    }
}

/// The sum of values, one of each part.
pub(crate) fn tree_sum(values: &[f64]) -> f64 {
    let mut tree = Tree::new(values.len(), None);
    values.iter().enumerate().for_each(|(index, value)| tree.part(index, *value));
    tree.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum that shows how it was made.
    impl Node for String {
        fn plus(self, right: Self) -> Self {
            format!("({self}{right})")
        }
    }

    fn shown(parts: usize) -> String {
        let mut tree = Tree::new(parts, None);
        (0..parts).for_each(|part| tree.part(part, part.to_string()));
        tree.finish().unwrap()
    }

    #[test]
    fn left_sides_are_the_largest_powers_of_two() {
        assert_eq!(shown(1), "0");
        assert_eq!(shown(2), "(01)");
        assert_eq!(shown(3), "((01)2)");
        assert_eq!(shown(6), "(((01)(23))(45))");
        assert_eq!(shown(7), "(((01)(23))((45)6))");
        assert_eq!(shown(8), "(((01)(23))((45)(67)))");
    }

    #[test]
    fn whoever_adds_what_the_sum_is_made_alike() {
        for parts in 1..20 {
            for ranks in 1..=parts {
                let mut owner = Tree::new(parts, None);
                // Later ranks arrive first.
                for rank in (0..ranks).rev() {
                    let range = crate::team::share(parts, rank, ranks);
                    let mut own = Tree::new(parts, None);
                    let mut sent = Vec::new();
                    for part in range.clone() {
                        own.part(part, part.to_string());
                        sent.extend(own.take_maximal(&range));
                    }
                    let expected = Subtree::all_in(&range);
                    assert_eq!(
                        sent.iter().map(|(subtree, _)| *subtree).collect::<Vec<_>>(),
                        expected
                    );
                    sent.into_iter().rev().for_each(|(subtree, value)| owner.add(subtree, value));
                }
                assert_eq!(owner.finish().unwrap(), shown(parts), "{parts} parts, {ranks} ranks");
            }
        }
    }

    #[test]
    fn all_but_the_whole_sum_is_rounded() {
        let mut tree =
            Tree::new(4, Some((|value: &mut String| value.push('~')) as fn(&mut String)));
        (0..4).for_each(|part| tree.part(part, part.to_string()));
        assert_eq!(tree.finish().unwrap(), "((0~1~)~(2~3~)~)");
        let mut one = Tree::new(1, Some((|value: &mut String| value.push('~')) as fn(&mut String)));
        one.part(0, "0".into());
        assert_eq!(one.finish().unwrap(), "0");
    }

    #[test]
    fn what_has_no_gradient_in_a_part_has_that_of_the_others() {
        let of = |pairs: &[(&str, f32)]| -> Gradients {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), vec![*value; 2])).collect()
        };
        let sum = of(&[("a", 1.0), ("b", 2.0)]).plus(of(&[("b", 3.0), ("c", 4.0)]));
        assert_eq!(sum, of(&[("a", 1.0), ("b", 5.0), ("c", 4.0)]));
    }

    #[test]
    fn a_sum_of_two_is_what_it_always_was() {
        let values = [0.1, 0.7, 0.3];
        assert_eq!(tree_sum(&values[..1]), 0.1);
        assert_eq!(tree_sum(&values[..2]), 0.0 + 0.1 + 0.7);
        assert_eq!(tree_sum(&values), (0.1 + 0.7) + 0.3);
    }
}
