use super::*;
use crate::attention::tests::{Case, case};
use crate::attention::{Gradient, KeyValues};
use crate::testing::{assert_close, assert_gradient, noise};
use crate::work::counted;

const BOTH: [Keys; 2] = [Keys::All, Keys::Running];

/// Five sequences: nobody runs, everybody, one in the middle, the first and the last, and a fifth of them.
fn five(time: usize) -> Vec<bool> {
    let some = noise("some", time);
    let mut runs = vec![false; time];
    runs.extend(vec![true; time]);
    runs.extend((0..time).map(|t| t == time / 2));
    runs.extend((0..time).map(|t| t == 0 || t == time - 1));
    runs.extend((0..time).map(|t| some[t] < -0.6));
    runs
}

#[derive(Clone)]
struct Routed {
    case: Case,
    runs: Vec<bool>,
    keys: Keys,
}

/// Columns of rows, those of the tokens that are wanted.
fn columns(rows: &[f32], width: usize, from: usize, to: usize, wanted: &[bool]) -> Vec<f32> {
    let rows = rows.chunks_exact(width).zip(wanted).filter(|(_, wanted)| **wanted);
    rows.flat_map(|(row, _)| row[from..to].to_vec()).collect()
}

impl Routed {
    fn new(case: Case, runs: Vec<bool>, keys: Keys) -> Self {
        assert_eq!(case.tokens(), runs.len());
        Self { case, runs, keys }
    }

    fn route(&self) -> Route {
        Route::of(self.runs.iter().copied()).expect("somebody is skipped")
    }

    /// Widths of the queries and of a joined row.
    fn widths(&self) -> (usize, usize) {
        let shape = self.case.shape();
        (shape.query_width(), shape.joined())
    }

    fn have_keys(&self) -> Vec<bool> {
        match self.keys {
            Keys::All => vec![true; self.runs.len()],
            Keys::Running => self.runs.clone(),
        }
    }

    fn inputs(&self) -> (Vec<f32>, Vec<f32>) {
        let (queries, joined) = self.widths();
        (
            columns(&self.case.joined, joined, 0, queries, &self.runs),
            columns(&self.case.joined, joined, queries, joined, &self.have_keys()),
        )
    }

    fn forward(&self) -> Output {
        let (queries, key_values) = self.inputs();
        let (shape, slots) = (self.case.shape(), self.case.slots());
        forward_routed(
            &queries,
            &key_values,
            &shape,
            &slots,
            &self.route(),
            self.keys,
            Precision::F32,
        )
    }

    fn backward(&self, d: &[f32], output: &Output) -> RoutedGradient {
        let (queries, key_values) = self.inputs();
        let Output { mixed, log_sums } = output;
        let (shape, slots, route) = (self.case.shape(), self.case.slots(), self.route());
        backward_routed(
            d,
            &queries,
            &key_values,
            mixed,
            log_sums,
            &shape,
            &slots,
            &route,
            self.keys,
            Precision::F32,
        )
    }

    /// The gradient of joined rows: zero where a skipped token has neither queries nor keys.
    fn dense(&self, gradient: RoutedGradient) -> Gradient {
        let (queries, joined) = self.widths();
        let mut of_queries = gradient.queries.chunks_exact(queries);
        let mut of_keys = gradient.key_values.chunks_exact(joined - queries);
        let mut d_joined = Vec::new();
        for (runs, has_keys) in self.runs.iter().zip(self.have_keys()) {
            match runs {
                true => d_joined.extend(of_queries.next().expect("a row")),
                false => d_joined.resize(d_joined.len() + queries, 0.0),
            }
            match has_keys {
                true => d_joined.extend(of_keys.next().expect("a row")),
                false => d_joined.resize(d_joined.len() + joined - queries, 0.0),
            }
        }
        assert_eq!((of_queries.len(), of_keys.len()), (0, 0));
        let RoutedGradient { query_gain, key_gain, slot_keys, slot_values, .. } = gradient;
        Gradient { joined: d_joined, query_gain, key_gain, slot_keys, slot_values }
    }

    fn reference(&self) -> Vec<f64> {
        self.case.routed_reference(&self.runs, self.keys)
    }
}

#[test]
fn every_route_computes_its_definition() {
    for (time, heads, dim, norms, slots) in [
        (1, [1, 1], 2, false, 0),
        (5, [2, 2], 4, false, 1),
        (70, [4, 2], 6, true, 0),
        (300, [3, 1], 4, true, 2),
        (600, [1, 1], 4, false, 0),
    ] {
        for keys in BOTH {
            let case = case(5, time, heads, dim, norms).with_slots(slots);
            let routed = Routed::new(case, five(time), keys);
            let want: Vec<f32> = routed.reference().iter().map(|x| *x as f32).collect();
            assert_close(&routed.forward().mixed, &want, 1e-5);
        }
    }
}

#[test]
fn gradients_of_every_route_are_the_slopes_of_its_definition() {
    for (time, heads, norms, slots) in [
        (3, [2, 1], false, 0),
        (7, [4, 2], true, 2),
        (70, [2, 1], true, 1),
        (300, [1, 1], false, 0),
    ] {
        for keys in BOTH {
            let case = case(5, time, heads, 4, norms).with_slots(slots);
            let routed = Routed::new(case, five(time), keys);
            let output = routed.forward();
            let d = noise("d", output.mixed.len());
            let gradient = routed.dense(routed.backward(&d, &output));
            let loss = |routed: &Routed| -> f64 {
                routed.reference().iter().zip(&d).map(|(x, d)| x * f64::from(*d)).sum()
            };
            let check = |name: &str, got: &[f32], field: fn(&mut Routed) -> &mut [f32]| {
                if !got.is_empty() {
                    assert_gradient(name, got, &routed, field, loss);
                }
            };
            check("joined", &gradient.joined, |routed| &mut routed.case.joined);
            check("query gain", &gradient.query_gain, |routed| &mut routed.case.query_gain);
            check("key gain", &gradient.key_gain, |routed| &mut routed.case.key_gain);
            check("slot keys", &gradient.slot_keys, |routed| &mut routed.case.slot_keys);
            check("slot values", &gradient.slot_values, |routed| &mut routed.case.slot_values);
            assert_eq!(gradient.query_gain.is_empty(), !norms);
            assert_eq!(gradient.slot_values.is_empty(), slots == 0);
        }
    }
}

#[test]
fn where_everybody_runs_a_route_changes_no_bit() {
    for (time, heads, norms, slots) in [(5, [2, 1], true, 2), (300, [4, 2], false, 0)] {
        for keys in BOTH {
            // A third sequence in which nobody runs, for a route leaves out somebody.
            let all = case(3, time, heads, 4, norms).with_slots(slots);
            let (joined, slot) = (all.joined.len() / 3 * 2, all.slot_keys.len() / 3 * 2);
            let mut dense = all.clone();
            dense.joined.truncate(joined);
            dense.slot_keys.truncate(slot);
            dense.slot_values.truncate(slot);
            let runs = (0..3 * time).map(|token| token < 2 * time).collect();
            let routed = Routed::new(all, runs, keys);

            let (want, output) = (dense.forward(), routed.forward());
            assert_eq!(output.mixed, want.mixed);
            assert_eq!(output.log_sums, want.log_sums);
            let d = noise("d", want.mixed.len());
            let want = dense.backward(&d, &want);
            let got = routed.dense(routed.backward(&d, &output));
            assert_eq!(got.joined[..joined], want.joined);
            assert!(got.joined[joined..].iter().all(|d| *d == 0.0));
            assert_eq!((got.query_gain, got.key_gain), (want.query_gain, want.key_gain));
            assert_eq!(got.slot_keys[..slot], want.slot_keys);
            assert_eq!(got.slot_values[..slot], want.slot_values);
        }
    }
}

#[test]
fn what_no_query_sees_is_not_read() {
    let time = 70;
    for keys in BOTH {
        let mut runs = five(time);
        // Somebody is the last, and tokens come after it.
        runs[4 * time + 50..].fill(false);
        let clean = Routed::new(case(5, time, [2, 1], 4, true).with_slots(2), runs, keys);
        let mut poisoned = clean.clone();
        let (_, width) = clean.widths();
        let slot_width = clean.case.slot_keys.len() / clean.runs.len();
        for token in 0..clean.runs.len() {
            let rest = token..(token / time + 1) * time;
            if !clean.runs[rest].iter().any(|runs| *runs) {
                poisoned.case.joined[token * width..][..width].fill(f32::NAN);
            }
            if !clean.runs[token] {
                poisoned.case.slot_keys[token * slot_width..][..slot_width].fill(f32::NAN);
                poisoned.case.slot_values[token * slot_width..][..slot_width].fill(f32::NAN);
            }
        }
        let (want, got) = (clean.forward(), poisoned.forward());
        assert!(want.mixed.iter().all(|x| x.is_finite()));
        assert_eq!(got.mixed, want.mixed);
        let d = noise("d", want.mixed.len());
        let (want, got) = (clean.backward(&d, &want), poisoned.backward(&d, &got));
        assert_eq!(got.queries, want.queries);
        assert_eq!(got.key_values, want.key_values);
        assert_eq!((got.query_gain, got.key_gain), (want.query_gain, want.key_gain));
        assert_eq!((got.slot_keys, got.slot_values), (want.slot_keys, want.slot_values));
    }
}

#[test]
fn keys_of_skipped_tokens_count_if_all_have_keys() {
    let runs = vec![false, true, false, true];
    let clean = Routed::new(case(1, 4, [1, 1], 4, false), runs, Keys::All);
    let mut moved = clean.clone();
    let (_, width) = clean.widths();
    moved.case.joined[2 * width + 4..3 * width].fill(3.0);
    let (want, got) = (clean.forward().mixed, moved.forward().mixed);
    assert_eq!(got[..4], want[..4]);
    assert_ne!(got[4..], want[4..]);
}

#[test]
fn if_nobody_runs_nothing_happens() {
    for keys in BOTH {
        let case = case(2, 3, [2, 1], 4, true).with_slots(1);
        let routed = Routed::new(case, vec![false; 6], keys);
        let (output, flops) = counted(|| routed.forward());
        assert!(output.mixed.is_empty() && output.log_sums.is_empty());
        let gradient = routed.dense(routed.backward(&[], &output));
        let Gradient { joined, query_gain, key_gain, slot_keys, slot_values } = gradient;
        for values in [joined, query_gain, key_gain, slot_keys, slot_values] {
            assert!(!values.is_empty() && values.iter().all(|d| *d == 0.0));
        }
        assert_eq!(flops, 0);
    }
}

#[test]
fn work_counts_the_keys_that_running_tokens_see() {
    let (time, slots) = (300, 2);
    for keys in BOTH {
        let case = case(5, time, [4, 2], 6, false).with_slots(slots);
        let routed = Routed::new(case, five(time), keys);
        let have_keys = routed.have_keys();
        let seen = |token: usize| {
            have_keys[token / time * time..=token].iter().filter(|has_key| **has_key).count()
        };
        let running = (0..5 * time).filter(|token| routed.runs[*token]);
        let pairs: usize = running.map(|token| seen(token) + slots).sum();
        let (output, forward) = counted(|| routed.forward());
        assert_eq!(forward, (4 * 4 * 6 * pairs) as u64);
        let (_, backward) = counted(|| routed.backward(&output.mixed, &output));
        assert_eq!(backward, 2 * forward);
    }
}

#[test]
fn tokens_added_and_asked_one_at_a_time_attend_like_all_at_once() {
    for (time, heads, dim, norms) in [(9, [2, 2], 4, false), (70, [4, 2], 6, true)] {
        for keys in BOTH {
            let routed = Routed::new(case(5, time, heads, dim, norms), five(time), keys);
            let (shape, (width, joined)) = (routed.case.shape(), routed.widths());
            let want = routed.forward().mixed;
            let mut want = want.chunks_exact(width);
            let have_keys = routed.have_keys();
            let rows = routed.case.joined.chunks_exact(joined).collect::<Vec<_>>();
            for (sequence, rows) in rows.chunks_exact(time).enumerate() {
                let mut seen = KeyValues::default();
                for (t, row) in rows.iter().enumerate() {
                    let token = sequence * time + t;
                    if have_keys[token] {
                        seen.add(&row[width..], t, &shape);
                    }
                    if routed.runs[token] {
                        let mut mixed = vec![f32::NAN; width];
                        seen.ask(&row[..width], t, &shape, &mut mixed);
                        assert_close(&mixed, want.next().expect("a row"), 1e-5);
                    }
                }
                let added = &have_keys[sequence * time..][..time];
                assert_eq!(seen.len(), added.iter().filter(|has_key| **has_key).count());
            }
            assert_eq!(want.len(), 0);
        }
    }
}
