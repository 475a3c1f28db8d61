//! The router chooses, the predictor learns, and a token that does not run keeps every bit.

use super::router::*;
use super::*;
use crate::policies::prenorm::PreNormConfig;
use crate::probe::Recorder;
use crate::residual::SubLayers;
use crate::skip::StepMode;
use crate::testing::{
    Stand, assert_close, assert_gradients, assert_near, chosen, dimensions, drawn, fresh, normal,
    random, values, watched,
};
use burn::tensor::Device;
use hadal_cpu::Route;

const WIDTH: usize = 8;

fn config(capacity: f64, every: usize) -> MixtureOfDepthsConfig {
    MixtureOfDepthsConfig { capacity, every }
}

/// The mode of a model that learns.
fn learning() -> StepMode {
    StepMode { learning: true, ..StepMode::default() }
}

/// A watched traversal in a mode.
fn watched_in<R: Residual>(
    mode: &StepMode,
    policy: &R,
    embedding: Tensor<3>,
    layers: &mut dyn SubLayers,
    seen: &mut Recorder,
) {
    let mut traversal = Traversal { mode, probe: Some(seen), ..Traversal::default() };
    policy.traverse(embedding, layers, &mut traversal);
}

fn small() -> Dimensions {
    dimensions(WIDTH, 2)
}

/// What each site showed of a signal.
fn shown(recorder: &Recorder, site: usize, signal: Signal) -> Option<Vec<f32>> {
    recorder.get(Place::Site(Site::new(site)), signal).map(values)
}

/// Keeps the policy's own loss.
struct Listening {
    stand: Stand,
    heard: Option<Tensor<1>>,
}

impl SubLayers for Listening {
    fn sites(&self) -> usize {
        self.stand.sites()
    }

    fn absent(&self, site: Site) -> bool {
        self.stand.absent(site)
    }

    fn run(&mut self, site: Site, input: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        self.stand.run(site, input, route)
    }

    fn learn(&mut self, extra_loss: Tensor<1>) {
        self.heard = Some(extra_loss);
    }
}

/// The policy's own loss in a traversal.
fn extra_loss<R: Residual>(mode: &StepMode, policy: &R, embedding: Tensor<3>) -> Option<Tensor<1>> {
    let mut layers = Listening { stand: Stand::new(&small()), heard: None };
    policy.traverse(embedding, &mut layers, &mut Traversal { mode, ..Traversal::default() });
    layers.heard
}

#[test]
fn every_other_block_is_routed_beginning_with_the_second() {
    let routed = |every| -> Vec<usize> {
        let routing = Routing { capacity: 0.5, every };
        (0..6).filter(|&block| routing.routes(block, &dimensions(WIDTH, 6))).collect()
    };
    assert_eq!(routed(2), [1, 3, 5]);
    assert_eq!(routed(1), [0, 1, 2, 3, 4, 5]);
    assert_eq!(routed(3), [2, 5]);
}

#[test]
fn the_capacity_is_rounded_up_to_whole_tokens() {
    let running = |capacity, time| Routing { capacity, every: 2 }.running(time);
    assert_eq!(running(0.125, 16), 2);
    assert_eq!(running(0.125, 17), 3);
    assert_eq!(running(0.125, 1), 1);
    assert_eq!(running(1.0, 7), 7);
    // In f64 the product is a little more than seven.
    assert_eq!(running(0.07, 100), 7);
    assert_eq!(running(1e-300, 5), 1);
}

#[test]
fn the_largest_weights_of_each_sequence_run_and_the_earlier_of_equal_ones() {
    let routing = Routing { capacity: 0.5, every: 2 };
    let weights = [1.0, 3.0, 2.0, 0.5, -1.0, -0.0, 0.0, -2.0];
    let expected = [false, true, true, false, false, true, true, false];
    assert_eq!(largest(&weights, 4, routing), expected);
    assert_eq!(largest(&[2.0; 4], 4, routing), [true, true, false, false]);
    let nowhere = [f32::NAN, 9.0, f32::INFINITY, f32::NEG_INFINITY];
    assert_eq!(largest(&nowhere, 4, routing), [true, false, true, false]);
    assert_eq!(largest(&[-f32::NAN; 4], 4, routing), [true, true, false, false]);
}

#[test]
fn nonsense_is_refused_with_a_remedy() {
    let refusal = |capacity, every| {
        let config = MixtureOfDepthsConfig { capacity, every };
        config.check(&dimensions(WIDTH, 4)).unwrap_err().to_string()
    };
    for capacity in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
        let text = refusal(capacity, 2);
        assert!(text.contains(&format!("capacity is {capacity}")), "{text}");
        assert!(text.contains("above 0, at most 1"), "{text}");
    }
    for every in [0, 5] {
        let text = refusal(0.5, every);
        assert!(text.contains(&format!("every is {every}")), "{text}");
        assert!(text.contains("between 1 and 4"), "{text}");
    }
    assert_eq!(config(1.0, 4).check(&dimensions(WIDTH, 4)), Ok(()));
}

/// Parameters as [`random`] draws them, but with a first feature that the router alone reads: the
/// embedding below has a one there, and nothing changes it.
fn unit_weights(name: &str, shape: &[usize]) -> Option<Vec<f32>> {
    let mut elements = drawn(name, shape);
    if name.ends_with("router.weight") {
        elements.fill(0.0);
        elements[0] = 1.0;
    }
    Some(elements)
}

/// [`Stand`], whose writes leave the first feature alone.
struct Respectful(Stand);

impl SubLayers for Respectful {
    fn sites(&self) -> usize {
        self.0.sites()
    }

    fn absent(&self, site: Site) -> bool {
        self.0.absent(site)
    }

    fn run(&mut self, site: Site, input: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        let others: Vec<f32> = (0..WIDTH).map(|i| if i == 0 { 0.0 } else { 1.0 }).collect();
        let others = Tensor::<1>::from_floats(others.as_slice(), &Device::flex());
        self.0.run(site, input, route) * others.unsqueeze()
    }
}

#[test]
fn with_full_capacity_and_weights_of_one_it_is_prenorm() {
    let dimensions = dimensions(WIDTH, 4);
    let embedding = normal("embedding", [2, 3, WIDTH])
        .slice_assign([0..2, 0..3, 0..1], Tensor::<3>::ones([2, 3, 1], &Device::flex()));
    let plain = random(&PreNormConfig::default(), &dimensions);
    for every in [1, 2] {
        let mixture = chosen(&config(1.0, every), &dimensions, unit_weights);
        let mode = learning();
        for absent in [&[][..], &[2], &[3], &[6, 7], &[2, 7]] {
            let layers = || Respectful(Stand::without(&dimensions, absent));
            let learns = || Traversal { mode: &mode, ..Traversal::default() };
            let out = mixture.traverse(embedding.clone(), &mut layers(), &mut learns());
            let expected = plain.traverse(embedding.clone(), &mut layers(), &mut learns());
            assert_close(out, expected, 1e-6);
        }
    }
}

#[test]
fn the_whole_blocks_write_is_weighted_and_the_others_keep_every_bit() {
    let dimensions = small();
    let policy = random(&config(0.5, 2), &dimensions);
    let embedding = normal("embedding", [2, 4, WIDTH]);
    let mut seen = Recorder::of(&[Signal::Reading, Signal::Write, Signal::Skipped]);
    watched_in(&learning(), &policy, embedding, &mut Stand::new(&dimensions), &mut seen);
    assert_eq!(shown(&seen, 0, Signal::Skipped), None);
    let skips = shown(&seen, 2, Signal::Skipped).unwrap();
    assert_eq!(shown(&seen, 3, Signal::Skipped).unwrap(), skips);
    assert!(skips.chunks(4).all(|row| row.iter().sum::<f32>() == 2.0), "{skips:?}");

    let entry = shown(&seen, 2, Signal::Reading).unwrap();
    let [attention, mlp] = [2, 3].map(|site| shown(&seen, site, Signal::Write).unwrap());
    let before_mlp = shown(&seen, 3, Signal::Reading).unwrap();
    let after = values(seen.get(Place::Out, Signal::Reading).unwrap());
    let router = drawn("residual.1.router.weight", &[WIDTH]);
    let mut weights = Vec::new();
    for (token, &skips) in skips.iter().enumerate() {
        let row = |all: &[f32]| all[token * WIDTH..][..WIDTH].to_vec();
        let z: f32 = row(&entry).iter().zip(&router).map(|(x, w)| x * w).sum();
        weights.push(z);
        if skips == 1.0 {
            assert_eq!(row(&after), row(&entry));
            continue;
        }
        let parts = row(&entry).into_iter().zip(row(&attention)).zip(row(&mlp));
        let expected: Vec<f32> = parts.map(|((x, a), m)| x + z * (a + m)).collect();
        assert_near(&row(&after), &expected, 1e-5);
        let inside: Vec<f32> =
            row(&entry).into_iter().zip(row(&attention)).map(|(x, a)| x + a).collect();
        assert_near(&row(&before_mlp), &inside, 1e-6);
    }
    for (weights, skips) in weights.chunks(4).zip(skips.chunks(4)) {
        let of = |skip: f32| weights.iter().zip(skips).filter(move |(_, s)| **s == skip);
        let least = of(0.0).map(|(z, _)| *z).fold(f32::INFINITY, f32::min);
        assert!(of(1.0).all(|(z, _)| *z <= least), "{weights:?} {skips:?}");
    }
}

#[test]
fn without_its_mlp_a_block_writes_its_attention_and_without_both_nothing() {
    let dimensions = small();
    let policy = random(&config(0.5, 2), &dimensions);
    let embedding = normal("embedding", [1, 4, WIDTH]);
    let out = |absent: &[usize]| {
        let mut seen = Recorder::of(&[Signal::Reading, Signal::Write, Signal::Skipped]);
        let mut layers = Stand::without(&dimensions, absent);
        watched_in(&learning(), &policy, embedding.clone(), &mut layers, &mut seen);
        let after = values(seen.get(Place::Out, Signal::Reading).unwrap());
        (after, seen)
    };
    let (nothing, _) = out(&[2, 3]);
    let router = drawn("residual.1.router.weight", &[WIDTH]);
    for (absent, present) in [(3, 2), (2, 3)] {
        let (after, seen) = out(&[absent]);
        assert_eq!(shown(&seen, present, Signal::Reading).unwrap(), nothing);
        let write = shown(&seen, present, Signal::Write).unwrap();
        let skips = shown(&seen, present, Signal::Skipped).unwrap();
        assert_eq!(skips.iter().sum::<f32>(), 2.0);
        for (token, skips) in skips.into_iter().enumerate() {
            let row = |all: &[f32]| all[token * WIDTH..][..WIDTH].to_vec();
            let z: f32 = row(&nothing).iter().zip(&router).map(|(x, w)| x * w).sum();
            let add = if skips == 1.0 { 0.0 } else { z };
            let expected: Vec<f32> =
                row(&nothing).into_iter().zip(row(&write)).map(|(x, y)| x + add * y).collect();
            assert_near(&row(&after), &expected, 1e-5);
        }
    }
}

#[test]
fn a_token_decides_for_itself_unless_the_model_learns() {
    let dimensions = small();
    let policy = random(&config(0.5, 1), &dimensions);
    let embedding = normal("embedding", [1, 12, WIDTH]);
    let skips = |mode: &StepMode, embedding: Tensor<3>| {
        let mut seen = Recorder::of(&[Signal::Skipped]);
        watched_in(mode, &policy, embedding, &mut Stand::new(&dimensions), &mut seen);
        shown(&seen, 0, Signal::Skipped).unwrap()
    };
    let in_use = StepMode::default();
    let together = skips(&in_use, embedding.clone());
    let alone: Vec<f32> =
        (0..12).flat_map(|t| skips(&in_use, embedding.clone().narrow(1, t, 1))).collect();
    assert_eq!(together, alone);
    assert!(together.contains(&0.0) && together.contains(&1.0), "{together:?}");
    // One token alone is always among the top k.
    assert_eq!(skips(&learning(), embedding.clone()).iter().sum::<f32>(), 6.0);
    assert_eq!(skips(&learning(), embedding.narrow(1, 0, 1)), [0.0]);
}

#[test]
fn gradients_agree_with_central_differences() {
    // Two tokens, of which the predictor lets one run; its own parameters have no slope.
    assert_gradients(&config(0.5, 1), &dimensions(4, 2));
}

/// The loss that the router of the second block gives its predictor for these tokens.
fn lesson(x: &Tensor<3>, weights: &mut Weights) -> (Tensor<1>, Routers) {
    let mixture = Routing { capacity: 0.5, every: 2 }.init(&small(), weights);
    let mut learns = Traversal { mode: &learning(), ..Traversal::default() };
    let mut choice = mixture.choose(Site::new(2), x, &mut learns).unwrap();
    (choice.take_lesson().unwrap(), mixture)
}

#[test]
fn a_predictor_learns_from_nothing_but_its_cross_entropy_and_nothing_else_from_it() {
    let x = normal("embedding", [2, 4, WIDTH]);
    let at = |moved: &str, element: usize, step: f32| {
        let mut stored = |name: &str, shape: &[usize]| {
            let mut elements = drawn(name, shape);
            if name == moved {
                elements[element] += step;
            }
            Some(elements)
        };
        let (loss, _) = lesson(&x, &mut Weights::stored(&mut stored, &Device::flex()));
        f64::from(values(loss)[0])
    };

    let mut stored = |name: &str, shape: &[usize]| Some(drawn(name, shape));
    let mut weights = Weights::stored(&mut stored, &Device::flex().autodiff());
    let leaf = x.clone().autodiff().require_grad();
    let (loss, mixture) = lesson(&leaf, &mut weights);
    let gradients = loss.backward();
    assert!(leaf.grad(&gradients).is_none(), "the stream learns to be predictable");

    let Router { weight, predictor } = mixture.blocks[1].as_ref().unwrap();
    assert!(weight.val().grad(&gradients).is_none(), "the router learns to be predictable");
    let Predictor { hidden, hidden_bias, out, out_bias } = predictor;
    for (part, gradient) in [
        ("hidden.weight", hidden.val().grad(&gradients).map(values)),
        ("hidden.bias", hidden_bias.val().grad(&gradients).map(values)),
        ("out.weight", out.val().grad(&gradients).map(values)),
        ("out.bias", out_bias.val().grad(&gradients).map(values)),
    ] {
        let name = format!("residual.1.predictor.{part}");
        let gradient = gradient.unwrap_or_else(|| panic!("{name} does not learn"));
        assert!(gradient.iter().any(|g| *g != 0.0), "{name} does not learn");
        for (i, got) in gradient.into_iter().enumerate() {
            let step = 2e-3;
            let slope = (at(&name, i, step) - at(&name, i, -step)) / (2.0 * f64::from(step));
            assert!((f64::from(got) - slope).abs() < 1e-3, "{name}[{i}]: {got} is not {slope}");
        }
    }
}

#[test]
fn only_a_model_that_learns_asks_for_its_predictors_to_learn() {
    let embedding = normal("embedding", [2, 4, WIDTH]);
    let mixture = random(&config(0.5, 2), &small());
    assert!(extra_loss(&learning(), &mixture, embedding.clone()).is_some());
    assert!(extra_loss(&StepMode::default(), &mixture, embedding.clone()).is_none());
    let plain = random(&PreNormConfig::default(), &small());
    assert!(extra_loss(&learning(), &plain, embedding.clone()).is_none());
    // Every block counts, whatever their number.
    let every_block = random(&config(0.5, 1), &small());
    let both = values(extra_loss(&learning(), &every_block, embedding.clone()).unwrap());
    assert!((0.1..2.0).contains(&both[0]), "{both:?}");
}

#[test]
fn the_cross_entropy_gives_its_numbers_and_does_not_overflow() {
    let device = Device::flex();
    let tensor = |value: f32| Tensor::<3>::from_floats([[[value]]], &device);
    let of = |logit, target| values(surprise(tensor(logit), tensor(target)))[0];
    assert_near(&[of(0.0, 1.0), of(0.0, 0.0)], &[2f32.ln(); 2], 1e-6);
    assert_near(&[of(2.0, 1.0), of(2.0, 0.0)], &[0.126_928, 2.126_928], 1e-5);
    assert_near(&[of(1e4, 0.0), of(-1e4, 1.0), of(1e4, 1.0)], &[1e4, 1e4, 0.0], 1e-6);
}

#[test]
fn agreement_is_where_guess_and_choice_are_the_same() {
    let dimensions = small();
    let policy = random(&config(0.5, 2), &dimensions);
    let embedding = normal("embedding", [2, 8, WIDTH]);
    let seen = |mode: &StepMode| {
        let mut seen = Recorder::of(&[Signal::Skipped, Signal::Agreement]);
        let mut layers = Stand::new(&dimensions);
        watched_in(mode, &policy, embedding.clone(), &mut layers, &mut seen);
        [Signal::Skipped, Signal::Agreement].map(|signal| shown(&seen, 2, signal).unwrap())
    };
    let [guessed, agreement] = seen(&StepMode::default());
    let [chosen, again] = seen(&learning());
    assert_eq!(agreement, again);
    let same = guessed.iter().zip(&chosen).map(|(a, b)| f32::from(u8::from(a == b)));
    assert_eq!(agreement, same.collect::<Vec<_>>());
    assert!(agreement.contains(&0.0) && agreement.contains(&1.0), "{agreement:?}");
}

#[test]
fn numbers_that_are_none_do_not_panic() {
    let dimensions = small();
    let nowhere = normal("embedding", [1, 4, WIDTH]) * f32::NAN;
    let policy = random(&config(0.5, 2), &dimensions);
    for mode in [StepMode::default(), learning()] {
        let mut traversal = Traversal { mode: &mode, ..Traversal::default() };
        let mut layers = Stand::new(&dimensions);
        let out = values(policy.traverse(nowhere.clone(), &mut layers, &mut traversal));
        assert!(out.iter().all(|v| v.is_nan()));
    }
}

#[test]
fn a_fresh_predictor_expects_the_capacity() {
    let dimensions = dimensions(64, 2);
    let embedding = normal("embedding", [4, 256, 64]);
    for (capacity, least, most) in [(0.125, 0.0, 0.3), (0.5, 0.2, 0.8), (1.0, 1.0, 1.0)] {
        let mut seen = Recorder::of(&[Signal::Skipped]);
        let policy = fresh(&config(capacity, 1), &dimensions);
        watched(&policy, embedding.clone(), &dimensions, &mut seen);
        let skips = shown(&seen, 0, Signal::Skipped).unwrap();
        let running = 1.0 - skips.iter().sum::<f32>() / skips.len() as f32;
        assert!((least..=most).contains(&running), "capacity {capacity}: {running} run");
    }
}
