use super::*;
use crate::additive::AdditiveState;
use crate::policies::prenorm::PreNormConfig;
use crate::probe::{Place, Recorder, Signal};
use crate::residual::{Read, Residual};
use crate::testing::{
    Stand, assert_close, assert_gradients, assert_near, chosen, dimensions, drawn, fresh, normal,
    random, random_norms, traverse, values, watched, watching,
};
use crate::traversal::Traversal;
use burn::tensor::{Device, Tensor};

const BOTH: [LambdasConfig; 2] =
    [LambdasConfig { backout: false }, LambdasConfig { backout: true }];

/// Numbers by their names; norms as tests draw them.
fn with(config: &LambdasConfig, blocks: usize, numbers: impl Fn(&str) -> Option<f32>) -> Additive {
    chosen(config, &dimensions(8, blocks), |name, shape| {
        numbers(name).map(|value| vec![value]).or_else(|| random_norms(name, shape))
    })
}

fn neutral(name: &str) -> Option<f32> {
    match name.rsplit('.').next() {
        Some("resid") => Some(1.0),
        Some("x0" | "backout") => Some(0.0),
        _ => None,
    }
}

fn token(x: [f32; 2]) -> Tensor<3> {
    Tensor::from_floats([[x]], &Device::flex())
}

fn write(policy: &Additive, site: usize, state: AdditiveState, y: [f32; 2]) -> AdditiveState {
    let (site, traversal) = (Site::new(site), &mut Traversal::default());
    let Read { ticket, .. } = policy.read(site, &state, traversal);
    policy.write(site, state, ticket, token(y), traversal)
}

/// Two blocks of width two with numbers that are easy to tell apart.
fn by_hand() -> Additive {
    chosen(&LambdasConfig { backout: true }, &dimensions(2, 2), |name, _| match name {
        "residual.block.1.resid" => Some(vec![2.0]),
        "residual.block.1.x0" => Some(vec![0.5]),
        "residual.block.2.resid" => Some(vec![3.0]),
        "residual.block.2.x0" => Some(vec![-1.0]),
        "residual.out.backout" => Some(vec![0.25]),
        _ => None,
    })
}

#[test]
fn neutral_numbers_leave_prenorm_of_the_normalised_embedding() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]) * 4.0;
    let prenorm = random(&PreNormConfig::default(), &dimensions);
    let normed = hadal_kernels::rms(embedding.clone(), 1e-6);
    let expected = traverse(&prenorm, normed, &dimensions);
    for config in BOTH {
        let policy = with(&config, 3, neutral);
        let found = traverse(&policy, embedding.clone(), &dimensions);
        assert_close(found, expected.clone(), 1e-5);
    }
}

#[test]
fn the_size_of_the_embedding_has_no_effect() {
    let dimensions = dimensions(8, 3);
    let policy = random(&LambdasConfig { backout: true }, &dimensions);
    let out = |size: f64| traverse(&policy, normal("embedding", [2, 3, 8]) * size, &dimensions);
    assert_close(out(30.0), out(1.0), 1e-4);
}

#[test]
fn two_blocks_by_hand() {
    let policy = by_hand();
    // (7, 1) has mean square 25.
    let state = policy.open(token([7.0, 1.0]));
    assert_near(&values(state.x.clone()), &[1.4, 0.2], 1e-5);
    // 2.5 x_0 before the first block.
    let state = write(&policy, 0, state, [1.0, 0.0]);
    assert_near(&values(state.x.clone()), &[4.5, 0.5], 1e-5);
    let state = write(&policy, 1, state, [0.0, 1.0]);
    assert_near(&values(state.x.clone()), &[4.5, 1.5], 1e-5);
    // 3 x - x_0 before the second one, and nothing within it.
    let state = write(&policy, 2, state, [0.0, 0.0]);
    assert_near(&values(state.x.clone()), &[12.1, 4.3], 1e-5);
    let state = write(&policy, 3, state, [1.0, 1.0]);
    assert_near(&values(state.x.clone()), &[13.1, 5.3], 1e-5);
    // The middle of two blocks is behind the second one.
    let mut seen = Recorder::of(&[Signal::Reading]);
    policy.close(state, &mut watching(&mut seen));
    let read = seen.get(Place::Out, Signal::Reading).unwrap();
    assert_near(&values(read), &[0.75 * 13.1, 0.75 * 5.3], 1e-5);
}

#[test]
fn the_read_out_takes_off_the_stream_behind_the_block_in_the_middle() {
    let dimensions = dimensions(8, 3);
    let policy = with(&LambdasConfig { backout: true }, 3, |name| match name {
        "residual.out.backout" => Some(0.25),
        _ => neutral(name),
    });
    let mut seen = Recorder::of(&[Signal::Reading]);
    watched(&policy, normal("embedding", [2, 3, 8]), &dimensions, &mut seen);
    let at = |place| seen.get(place, Signal::Reading).unwrap();
    // Block 1 of three: what the attention of block 2 reads, as numbers are neutral.
    let middle = at(Place::Site(Site::new(4)));
    let without = with(&LambdasConfig::default(), 3, neutral);
    let mut plain = Recorder::of(&[Signal::Reading]);
    watched(&without, normal("embedding", [2, 3, 8]), &dimensions, &mut plain);
    let end = plain.get(Place::Out, Signal::Reading).unwrap();
    assert_close(at(Place::Out), end - middle * 0.25, 1e-5);
}

#[test]
fn a_mix_comes_before_the_first_sub_layer_of_its_block_that_is_there() {
    let policy = by_hand();
    let open = || policy.open(token([7.0, 1.0]));
    let without = |site, state| policy.without(Site::new(site), state);
    // The MLP alone: 2.5 x_0 + y.
    let mlp = write(&policy, 1, without(0, open()), [1.0, 0.0]);
    assert_near(&values(mlp.x), &[4.5, 0.5], 1e-5);
    // No first block: 3 x_0 - x_0 before the second one.
    let second = write(&policy, 2, without(1, without(0, open())), [1.0, 0.0]);
    assert_near(&values(second.x), &[3.8, 0.4], 1e-5);
}

#[test]
fn without_any_sub_layer_the_middle_is_the_embedding() {
    let dimensions = dimensions(2, 2);
    let mut seen = Recorder::of(&[Signal::Reading]);
    by_hand().traverse(
        token([7.0, 1.0]),
        &mut Stand::without(&dimensions, &[0, 1, 2, 3]),
        &mut watching(&mut seen),
    );
    let read = seen.get(Place::Out, Signal::Reading).unwrap();
    assert_near(&values(read), &[0.75 * 1.4, 0.75 * 0.2], 1e-5);
}

#[test]
fn the_middle_survives_a_cut() {
    let middle = |blocks, removed: &[usize]| {
        before_middle(&Dimensions { removed: removed.to_vec(), ..dimensions(8, blocks) })
    };
    assert_eq!(middle(1, &[]), 1);
    assert_eq!(middle(3, &[]), 2);
    assert_eq!(middle(4, &[]), 3);
    // Of six blocks, the middle is behind block 3.
    assert_eq!(middle(5, &[1]), 3);
    assert_eq!(middle(5, &[3]), 3);
    assert_eq!(middle(5, &[4]), 4);
    assert_eq!(middle(2, &[0, 1, 2, 3]), 0);
}

#[test]
fn numbers_start_as_nanochats() {
    let config = LambdasConfig { backout: true };
    let dimensions = dimensions(8, 5);
    let mut starts = Vec::new();
    let policy = fresh(&config, &dimensions);
    burn::module::Module::visit(&policy, &mut Numbers(&mut starts));
    let expected =
        [1.15, 0.2, 1.125, 0.1625, 1.1, 0.125, 1.075, 0.0875, 1.05, 0.05, 0.2].map(|v| v as f32);
    assert_near(&starts, &expected, 1e-6);
    assert_eq!(falling(RESID, 0, &self::dimensions(8, 1)), 1.15);
    assert_eq!(config.branch_std(&dimensions, Matrix::Down), 0.0);
    assert_eq!(config.branch_std(&dimensions, Matrix::Value), BASE_STD);
}

/// Collects parameters of one element.
struct Numbers<'a>(&'a mut Vec<f32>);

impl burn::module::ModuleVisitor for Numbers<'_> {
    fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
        if param.val().shape().num_elements() == 1 {
            self.0.extend(values(param.val()));
        }
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    // Around one, so that no embedding is taken off itself.
    for config in BOTH {
        assert!(drawn("residual.block.1.resid", &[1])[0].abs() > 0.05);
        assert_gradients(&config, &dimensions(4, 2));
    }
}
