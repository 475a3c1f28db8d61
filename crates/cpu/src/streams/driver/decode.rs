//! [`Carried`] for one token at a time.

use super::{Before, Carried, Forward, Parts, Policy, Vectors, forward_in};
use crate::simd::Form;
use crate::streams::DecodeStream;
use crate::work;
use std::array::from_fn;

/// [`Carried`] for one token at a time.
#[derive(Debug)]
pub(super) struct Decoding<P: Policy> {
    policy: P,
    form: Form,
    state: Vectors,
    handed_on: Vec<f32>,
    before: Left,
    /// Becomes what the next junction finds.
    next: Left,
    scratch: P::Scratch,
}

/// What a junction leaves of one token.
#[derive(Debug)]
struct Left {
    write: Vec<f32>,
    record: Vectors,
    runs: [bool; 1],
}

impl<P: Policy> Decoding<P> {
    pub(super) fn new(Carried { policy, form, .. }: Carried<P>) -> Self {
        let junctions = 0..policy.junctions();
        let most =
            |part: usize| junctions.clone().map(|junction| policy.record(junction)[part]).max();
        let record: Parts = from_fn(|part| most(part).unwrap_or_default());
        let params = junctions.clone().map(|junction| policy.params(junction)).max();
        let left = || Left {
            write: vec![0.0; policy.width()],
            record: record.map(|each| vec![0.0; each]),
            runs: [true],
        };
        Self {
            form,
            state: policy.state().map(|each| vec![0.0; each]),
            handed_on: Vec::with_capacity(params.unwrap_or_default()),
            before: left(),
            next: left(),
            scratch: P::Scratch::default(),
            policy,
        }
    }
}

impl<P: Policy> DecodeStream for Decoding<P> {
    fn inputs(&self, junction: usize) -> usize {
        self.policy.inputs(junction)
    }

    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], output: &mut [f32]) -> bool {
        let Self { policy, form, state, handed_on, before, next, scratch } = self;
        assert_eq!(params.len(), policy.params(junction), "parameters of junction {junction}");
        let mut split = policy.split(junction, params);
        policy.prepare(&mut split, 1);
        work::add(policy.flops(junction));
        let in_place = policy.in_place(junction);
        if in_place {
            std::mem::swap(&mut before.record[0], &mut next.record[0]);
        }
        let before_it = junction.checked_sub(1).map_or_else(Before::default, |junction| {
            let mut parts = policy.record(junction);
            if in_place {
                parts[0] = 0;
            }
            Before {
                write: if policy.keeps_write(junction) { &before.write } else { &[] },
                record: from_fn(|part| &before.record[part][..parts[part]]),
                runs: &before.runs[..usize::from(policy.decides(junction))],
            }
        });
        next.runs = [true];
        let mut parts = policy.record(junction).into_iter();
        let tile = Forward {
            junction,
            first: 0,
            tokens: 1,
            keep: false,
            before: before_it,
            handed_on,
            write,
            state: state.each_mut().map(Vec::as_mut_slice),
            record: next
                .record
                .each_mut()
                .map(|part| &mut part[..parts.next().unwrap_or_default()]),
            runs: &mut next.runs[..usize::from(policy.decides(junction))],
            kept: &mut P::Kept::default(),
            output,
        };
        forward_in(*form, policy, &split, tile, scratch);
        next.write.copy_from_slice(write);
        handed_on.clear();
        handed_on.extend_from_slice(policy.handed_on(junction, params));
        std::mem::swap(before, next);
        before.runs[0]
    }
}
