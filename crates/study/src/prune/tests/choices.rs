//! What parts are worth, and which of them go.

use super::*;
use crate::diagnose::{Distance, watch};
use crate::prune::map::Renumbering;
use crate::prune::own::cut_model;
use crate::prune::turns::Turns;

#[test]
fn an_identity_block_scores_zero_goes_first_and_is_not_missed() {
    for identity in [0, 2, 4] {
        let decoder = model(&config("prenorm", 5), move |name, values| {
            if is_output_of(identity, name) {
                values.fill(0.0);
            }
        });
        let found = scores(&decoder);
        let own = found.of(Part::Block(identity)).unwrap();
        assert_eq!((own.distance, own.influence), (Some(0.0), Some(0.0)));
        assert!(own.kl.unwrap() < 1e-9 && own.loss_change.unwrap().abs() < 1e-6);
        // The next block reads the same as the identity: numbers belong to the block itself, not to its successor.
        assert_eq!(found.distances[identity][0], Some(0.0));
        for way in every_way() {
            assert_eq!(chosen(&decoder, &way), [Part::Block(identity)], "{way:?}");
        }
        let map = Renumbering::new(5, &[Part::Block(identity)]).unwrap();
        let (cut, exact) = cut_model(&decoder, &map).unwrap();
        assert!(exact);
        assert_eq!(logits(&cut), logits(&decoder));
    }
}

#[test]
fn the_last_block_is_measured_before_the_final_norm() {
    // An identity at the end turns nothing, although the norm after it would.
    let decoder = model(&config("prenorm", 3), scaled(&[2], 0.0));
    let found = scores(&decoder);
    assert_eq!(found.distances[2], [Some(0.0)]);
    assert_eq!(found.distances[1][0], found.distances[1][1]);
    assert!(found.distances[1][0].unwrap() > 0.01);
}

#[test]
fn planted_damage_raises_every_score_and_protects_the_block() {
    let calm = scores(&model(&config("prenorm", 5), scaled(&[0, 1, 2, 3, 4], 0.2)));
    let wild = model(&config("prenorm", 5), |name, values| {
        let factor = if is_output_of(3, name) { 2.0 } else { 0.2 };
        if (0..5).any(|block| is_output_of(block, name)) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
    });
    let damaged = scores(&wild);
    let (before, after) = (calm.of(Part::Block(3)).unwrap(), damaged.of(Part::Block(3)).unwrap());
    assert!(after.distance > before.distance && after.influence > before.influence);
    assert!(after.kl > before.kl);
    // A run of blocks that began at the end can only grow towards the damage.
    let forced = |way: &Options| way.contiguous && way.method == Method::Greedy;
    for way in every_way().iter().filter(|way| !forced(way)) {
        let four = Options { budget: Budget { blocks: Some(4), ..way.budget }, ..way.clone() };
        let four = if way.contiguous {
            Options { budget: Budget { blocks: Some(3), ..way.budget }, ..four }
        } else {
            four
        };
        assert!(!chosen(&wild, &four).contains(&Part::Block(3)), "{four:?}");
    }
}

#[test]
fn distances_are_a_metric() {
    let decoder = model(&config("prenorm", 6), plain);
    for time in 3..9 {
        // One sample each, because the inequality holds for each and not for means of arc cosines alone.
        let one = batch(1, time);
        let mut distance = Distance::new(6);
        watch(&decoder, Variant::default(), &one, &mut [&mut distance]).unwrap();
        let d = |from: usize, n: usize| if n == 0 { 0.0 } else { distance.get(from, n).unwrap() };
        for from in 0..6 {
            for n in 0..=6 - from {
                assert!((0.0..=1.0).contains(&d(from, n)));
                for k in 0..=6 - from - n {
                    assert!(d(from, n + k) <= d(from, n) + d(from + n, k) + 1e-12);
                }
            }
        }
    }
}

#[test]
fn influence_is_one_minus_the_cosine_of_the_distance_on_the_same_token() {
    let decoder = model(&config("prenorm", 4), plain);
    let mut turns = Turns::default();
    watch(&decoder, Variant::default(), &batch(1, 1), &mut [&mut turns]).unwrap();
    for block in 0..4 {
        for part in [Part::Block(block), Part::Attention(block), Part::Mlp(block)] {
            let (d, influence) = (turns.distance(part).unwrap(), turns.influence(part).unwrap());
            let expected = 1.0 - (std::f64::consts::PI * d).cos();
            assert!(d > 0.0 && (influence - expected).abs() < 1e-12, "{part}");
        }
    }
}

#[test]
fn all_tokens_and_last_tokens_are_told_apart() {
    let decoder = model(&config("prenorm", 3), plain);
    let found = scores(&decoder);
    assert_ne!(found.distances, found.distances_of_all_tokens);
    let one_token =
        score(&decoder, &StepMode::default(), &[batch(4, 1)], &mut Course::default()).unwrap();
    assert_eq!(one_token.distances, one_token.distances_of_all_tokens);
}

#[test]
fn massive_activations_do_not_overflow_the_scores() {
    // Far beyond what f16 holds, and the squares beyond what f32 sums.
    let decoder = model(&config("prenorm", 3), |name, values| {
        if name == "embed.weight"
            || name.ends_with("attn.o.weight")
            || name.ends_with("down.weight")
        {
            values.iter_mut().for_each(|value| *value *= 1e15);
        }
    });
    for part in scores(&decoder).parts {
        assert!(part.influence.is_some_and(|i| (0.0..=2.0).contains(&i)), "{part:?}");
        assert!(part.distance.is_some_and(|d| (0.0..=1.0).contains(&d)), "{part:?}");
    }
}

/// `--nocapture` shows the gap, which is worth knowing, but nothing depends on it.
#[test]
#[allow(clippy::print_stdout)]
fn greedy_comes_close_to_the_best_of_all_subsets() {
    let decoder = model(&config("prenorm", 8), scaled(&[0, 1, 2, 3, 4, 5, 6, 7], 0.5));
    let data = [batch(4, 9)];
    let mut subsets = Vec::new();
    for bits in 0u32..256 {
        if bits.count_ones() == 3 {
            subsets
                .push((0..8).filter(|i| bits >> i & 1 == 1).map(Part::Block).collect::<Vec<_>>());
        }
    }
    let costs =
        measure(&decoder, &StepMode::default(), &data, &subsets, &mut Course::default()).unwrap();
    let mut kls: Vec<f64> = costs.cuts.iter().map(|cut| cut.as_ref().unwrap().kl).collect();
    let greedy = chosen(&decoder, &Options { score: Score::Kl, ..blocks(3) });
    let of_greedy =
        measure(&decoder, &StepMode::default(), &data, &[greedy], &mut Course::default()).unwrap();
    let found = of_greedy.cuts[0].as_ref().unwrap().kl;
    kls.sort_by(f64::total_cmp);
    let rank = kls.iter().filter(|&&kl| kl < found).count();
    println!(
        "KL of the best three blocks {:.5}, greedy {found:.5}, place {} of {}",
        kls[0],
        rank + 1,
        kls.len()
    );
    assert!(found >= kls[0] && rank < kls.len() / 4, "place {rank}");
}

#[test]
fn scores_of_sub_layers_are_those_of_their_halves() {
    let decoder = model(&config("prenorm", 4), |name, values| {
        if name == "layers.2.attn.o.weight" {
            values.fill(0.0);
        }
    });
    let options = Options { sub_layers: true, ..blocks(1) };
    assert_eq!(chosen(&decoder, &options), [Part::Attention(2)]);
    let found = scores(&decoder);
    assert_eq!(found.of(Part::Attention(2)).unwrap().influence, Some(0.0));
    assert_eq!(
        found.of(Part::Mlp(2)).unwrap().influence,
        found.of(Part::Block(2)).unwrap().influence
    );
}

#[test]
fn ends_are_protected_unless_told_otherwise() {
    let decoder = model(&config("prenorm", 5), scaled(&[0, 1, 4], 0.0));
    let protected = Options { protect: Options::default().protect, ..blocks(2) };
    let mut found = chosen(&decoder, &protected);
    found.sort();
    assert_eq!(found, [Part::Block(2), Part::Block(3)]);
    let mut free = chosen(&decoder, &blocks(3));
    free.sort();
    assert_eq!(free, [Part::Block(0), Part::Block(1), Part::Block(4)]);
}

#[test]
fn budgets_hold_or_are_refused() {
    let decoder = model(&config("prenorm", 6), scaled(&[2, 4], 0.0));
    let budget = |budget| Options { budget, ..blocks(0) };
    let limited = budget(Budget { max_kl: Some(1e-6), ..Budget::default() });
    for method in [Method::Greedy, Method::OneShot] {
        let mut found = chosen(&decoder, &Options { method, ..limited.clone() });
        found.sort();
        assert_eq!(found, [Part::Block(2), Part::Block(4)]);
    }
    let share = budget(Budget { percent: Some(49.9), ..Budget::default() });
    assert_eq!(chosen(&decoder, &share).len(), 2);
    let error = |options: &Options, decoder: &Decoder| {
        let mut evaluate = |cuts: &[Vec<Part>]| {
            measure(decoder, &StepMode::default(), &[batch(4, 9)], cuts, &mut Course::default())
        };
        choose(&scores(decoder), options, &mut evaluate).unwrap_err().to_string()
    };
    assert!(error(&budget(Budget::default()), &decoder).contains("nothing says how much"));
    assert!(
        error(&budget(Budget { max_kl: Some(-1.0), ..Budget::default() }), &decoder)
            .contains("--max-kl is -1")
    );
    assert!(
        error(&budget(Budget { percent: Some(100.0), ..Budget::default() }), &decoder)
            .contains("below 100")
    );
    assert!(error(&blocks(7), &decoder).contains("only 6 may"));
    let lively = model(&config("prenorm", 6), plain);
    let none = budget(Budget { max_kl: Some(1e-9), ..Budget::default() });
    assert!(error(&none, &lively).contains("nothing can go within the budget"));
    let greedy = Options { score: Score::Distance, ..blocks(1) };
    assert!(error(&greedy, &decoder).contains("--score loss or kl"));
}

#[test]
fn blocks_that_follow_each_other_are_the_least_distant_run() {
    let decoder = model(&config("prenorm", 7), scaled(&[3, 4], 0.01));
    let options =
        Options { score: Score::Distance, method: Method::OneShot, contiguous: true, ..blocks(2) };
    assert_eq!(chosen(&decoder, &options), [Part::Block(3), Part::Block(4)]);
    let found = scores(&decoder);
    let best = (0..=5).map(|from| found.distances[from][1].unwrap()).fold(f64::INFINITY, f64::min);
    assert_eq!(found.distances[3][1], Some(best));
}

#[test]
fn cutting_stops_before_perplexity_rises_too_far() {
    // The second block does nothing, the others matter.
    let decoder = model(&config("prenorm", 4), scaled(&[1], 0.0));
    let most = |percent| Options {
        budget: Budget { max_perplexity_rise: Some(percent), ..Budget::default() },
        protect: Vec::new(),
        ..Options::default()
    };
    for method in [Method::Greedy, Method::OneShot] {
        let data = [batch(4, 9)];
        let mut evaluate = |cuts: &[Vec<Part>]| {
            measure(&decoder, &StepMode::default(), &data, cuts, &mut Course::default())
        };
        let mut gone = |percent| {
            let options = Options { method, ..most(percent) };
            choose(&scores(&decoder), &options, &mut evaluate).unwrap()
        };
        let (few, many) = (gone(0.0), gone(1e9));
        assert!(few.contains(&Part::Block(1)), "{method:?}: {few:?}");
        assert_eq!(many.len(), 4, "{method:?}: {many:?}");
        let costs =
            measure(&decoder, &StepMode::default(), &data, &[few], &mut Course::default()).unwrap();
        let cut = costs.cuts[0].as_ref().unwrap();
        assert!(cut.perplexity <= costs.whole.perplexity, "{method:?}");
    }
}
