//! Attention of new tokens to those seen before, for generating text.
//!
//! Keys are kept normalised and rotated. A question reads every key and every value once. Tokens that a
//! route skips may be added without asking, or be left out.

use super::Shape;
use super::forward::largest;
use super::heads::turn;
use crate::parallel;
use crate::simd::{add_scaled, dot, exp};
use crate::work;

/// Keys and values of one layer, for one sequence.
#[derive(Clone, Debug, Default)]
pub struct KeyValues {
    heads: Vec<Head>,
    length: usize,
}

#[derive(Clone, Debug, Default)]
struct Head {
    /// `[length, head_dim]`
    keys: Vec<f32>,
    /// `[length, head_dim]`
    values: Vec<f32>,
    /// Of the last question.
    scores: Vec<f32>,
    /// The last question, normalised and rotated.
    query: Vec<f32>,
}

/// Elements of keys that one step must read before a second thread is worth waking.
const ALONE: usize = 1 << 15;

impl KeyValues {
    /// Tokens added so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Keys and values of each head, `[length, head_dim]`.
    pub fn heads(&self) -> impl Iterator<Item = (&[f32], &[f32])> {
        self.heads.iter().map(|head| (head.keys.as_slice(), head.values.as_slice()))
    }

    /// From keys and values `[heads, length, head_dim]` that are normalised and rotated already.
    pub fn from_heads(keys: &[f32], values: &[f32], heads: usize, head_dim: usize) -> Self {
        let each = keys.len() / heads.max(1);
        let heads = (0..heads)
            .map(|h| Head {
                keys: keys[h * each..(h + 1) * each].to_vec(),
                values: values[h * each..(h + 1) * each].to_vec(),
                ..Head::default()
            })
            .collect();
        Self { heads, length: each / head_dim.max(1) }
    }

    /// Makes room for so many tokens, so that adding and asking need not. Where there is not so much memory, it is
    /// asked for when it is needed.
    pub fn reserve(&mut self, tokens: usize, kv_heads: usize, head_dim: usize) {
        self.heads.resize_with(kv_heads, Head::default);
        for Head { keys, values, scores, query } in &mut self.heads {
            let more = |held: &Vec<f32>, all: usize| all.saturating_sub(held.len());
            let elements = tokens.saturating_mul(head_dim);
            let _unless_refused = keys
                .try_reserve_exact(more(keys, elements))
                .and_then(|()| values.try_reserve_exact(more(values, elements)))
                .and_then(|()| scores.try_reserve_exact(more(scores, tokens)))
                .and_then(|()| query.try_reserve_exact(more(query, head_dim)));
        }
    }

    /// Adds the keys and values of joined rows; `shape` holds the rotations of their positions.
    pub fn extend(&mut self, joined: &[f32], shape: &Shape) {
        for (t, row) in joined.chunks_exact(shape.joined()).enumerate() {
            self.add(&row[shape.query_width()..], t, shape);
        }
    }

    /// Adds one token and attends from it: `joined` is its row, `shape` holds the rotation of its position,
    /// and `mixed` receives `[heads * head_dim]`.
    pub fn step(&mut self, joined: &[f32], shape: &Shape, mixed: &mut [f32]) {
        let (query, key_value) = joined.split_at(shape.query_width());
        self.add(key_value, 0, shape);
        self.ask(query, 0, shape, mixed);
    }

    /// Adds one token's keys and values, `[2 kv_heads * head_dim]`, which stand at position `t` of the tables.
    pub fn add(&mut self, key_value: &[f32], t: usize, shape: &Shape) {
        let dim = shape.head_dim;
        self.heads.resize_with(shape.kv_heads, Head::default);
        for (kv_head, head) in self.heads.iter_mut().enumerate() {
            let at = head.keys.len();
            head.keys.resize(at + dim, 0.0);
            let key = &key_value[shape.head_at(kv_head)..][..dim];
            turn_one(&mut head.keys[at..], key, t, shape, shape.key_gain());
            head.values.extend_from_slice(&key_value[shape.value_at(kv_head)..][..dim]);
        }
        self.length += 1;
    }

    /// Attends from one token's queries, `[heads * head_dim]`, which stand at position `t` of the tables, to
    /// every token added so far, or to the last ones that the window reaches. `mixed` receives
    /// `[heads * head_dim]`: zeros if nothing was added.
    pub fn ask(&mut self, queries: &[f32], t: usize, shape: &Shape, mixed: &mut [f32]) {
        let (dim, group) = (shape.head_dim, shape.group());
        let window = shape.window.map_or(usize::MAX, |window| window as usize);
        let hidden = self.length.saturating_sub(window);
        work::add(4 * shape.query_width() * (self.length - hidden));
        self.heads.resize_with(shape.kv_heads, Head::default);
        let work = |(kv_head, (head, mixed)): (usize, (&mut Head, &mut [f32]))| {
            head.query.resize(dim, 0.0);
            for (g, mixed) in mixed.chunks_exact_mut(dim).enumerate() {
                let from = &queries[shape.head_at(kv_head * group + g)..][..dim];
                turn_one(&mut head.query, from, t, shape, shape.query_gain());
                head.attend(mixed, hidden, shape.scale());
            }
        };
        let heads = self.heads.iter_mut().zip(mixed.chunks_exact_mut(group * dim)).enumerate();
        if (self.length - hidden) * shape.kv_heads * dim < ALONE {
            heads.for_each(work);
        } else {
            parallel::for_each(heads, work);
        }
    }
}

impl Head {
    fn attend(&mut self, mixed: &mut [f32], hidden: usize, scale: f32) {
        let Self { keys, values, scores, query } = self;
        let (keys, values) = (&keys[hidden * query.len()..], &values[hidden * query.len()..]);
        scores.resize(keys.len() / query.len(), 0.0);
        attend_one(query, keys, values, scores, mixed, scale);
    }
}

simd! {
    fn turn_one(
        out: &mut [f32], from: &[f32], t: usize, shape: &Shape, gain: Option<(&[f32], f32)>,
    ) {
        turn(out, from, t, shape, gain);
    }
}

simd! {
    fn attend_one(
        query: &[f32], keys: &[f32], values: &[f32], scores: &mut [f32], mixed: &mut [f32],
        scale: f32,
    ) {
        let dim = query.len();
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(dim)) {
            *score = scale * dot(query, key);
        }
        let (chunks, rest) = scores.as_chunks();
        let start = rest.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        let largest = largest(chunks, start);
        let mut sum = 0.0;
        for score in scores.iter_mut() {
            *score = exp(*score - largest);
            sum += *score;
        }
        mixed.fill(0.0);
        for (score, value) in scores.iter().zip(values.chunks_exact(dim)) {
            add_scaled(mixed, *score / sum, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Head;
    use crate::attention::tests::case;
    use crate::attention::{KeyValues, Shape, Slots, forward};
    use crate::precision::Precision;
    use crate::testing::assert_close;
    use crate::work::counted;

    #[test]
    fn one_token_at_a_time_attends_like_all_at_once() {
        for (time, heads, dim, norms, first, window) in [
            (9, [2, 2], 4, false, 0, None),
            (9, [4, 2], 6, true, 4, None),
            (9, [4, 2], 6, true, 4, Some(3)),
            (70, [2, 1], 4, false, 1, None),
            (70, [2, 1], 4, false, 1, Some(20)),
        ] {
            let mut case = case(1, time, heads, dim, norms);
            case.window = window;
            let shape = case.shape();
            let want = forward(&case.joined, &shape, &Slots::default(), Precision::F32).mixed;
            let (joined, width, half) = (shape.joined(), heads[0] * dim, dim / 2);
            let mut seen = KeyValues::default();
            assert!(seen.is_empty());
            seen.extend(&case.joined[..first * joined], &shape);
            for t in first..time {
                let (cos, sin) = (&shape.cos[t * half..], &shape.sin[t * half..]);
                let mut mixed = vec![f32::NAN; width];
                let row = &case.joined[t * joined..][..joined];
                seen.step(row, &Shape { cos, sin, ..shape }, &mut mixed);
                assert_close(&mixed, &want[t * width..][..width], 1e-5);
            }
            assert_eq!(seen.len(), time);
        }
    }

    #[test]
    fn reserved_room_is_not_outgrown() {
        let case = case(1, 9, [4, 2], 6, false);
        let (shape, mut seen) = (case.shape(), KeyValues::default());
        seen.extend(&case.joined[..2 * shape.joined()], &shape);
        seen.reserve(9, 2, 6);
        let rooms = |seen: &KeyValues| -> Vec<_> {
            let rooms = |head: &Head| {
                let Head { keys, values, scores, query } = head;
                [keys, values, scores, query].map(|room| (room.as_ptr(), room.capacity()))
            };
            seen.heads.iter().flat_map(rooms).collect()
        };
        let before = rooms(&seen);
        for row in case.joined[2 * shape.joined()..].chunks_exact(shape.joined()) {
            seen.step(row, &shape, &mut [0.0; 24]);
        }
        assert_eq!(seen.len(), 9);
        assert_eq!(rooms(&seen), before);
        seen.reserve(usize::MAX, 2, 6);
        assert_eq!(seen.len(), 9, "more than there is changes nothing");
    }

    #[test]
    fn who_has_seen_nothing_mixes_nothing() {
        let case = case(1, 1, [2, 1], 4, false);
        let mut mixed = [f32::NAN; 8];
        KeyValues::default().ask(&case.joined[..8], 0, &case.shape(), &mut mixed);
        assert_eq!(mixed, [0.0; 8]);
    }

    #[test]
    fn work_counts_the_keys_of_each_question() {
        let case = case(1, 3, [4, 2], 6, true);
        let (shape, mut seen) = (case.shape(), KeyValues::default());
        let mut mixed = [0.0; 24];
        let ((), flops) = counted(|| {
            seen.extend(&case.joined, &shape);
            seen.ask(&case.joined[..24], 2, &shape, &mut mixed);
            seen.step(&case.joined[..shape.joined()], &shape, &mut mixed);
        });
        assert_eq!(flops, 4 * 24 * (3 + 4));
    }
}
