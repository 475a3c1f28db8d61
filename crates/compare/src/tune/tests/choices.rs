//! The best point, and whether the grid was wide enough.

use super::super::choice::{edges, ranked};
use super::*;

fn axis(key: &str, values: &[f64]) -> Axis {
    Axis { key: key.into(), values: values.iter().map(|value| (*value).into()).collect() }
}

#[test]
fn the_lowest_loss_is_the_best_and_what_failed_is_no_candidate() {
    assert_eq!(ranked(&[Some(2.0), None, Some(1.0), Some(1.0), Some(3.0)]), [2, 3, 0, 4]);
    assert!(ranked(&[None, None]).is_empty());
}

#[test]
fn a_best_value_at_an_end_of_its_grid_is_an_edge_with_the_next_value_beyond() {
    let edge = |values: &[f64], best: f64| {
        let axes = [axis("lr_scale", values)];
        let points = GridPoint::all(&axes);
        let best = points.iter().find(|point| point.number("lr_scale") == Some(best)).unwrap();
        edges(&axes, best).into_iter().map(|edge| (edge.side, edge.next)).next()
    };
    // Values in any order.
    assert_eq!(edge(&[2.0, 0.5, 1.0], 1.0), None);
    assert_eq!(edge(&[2.0, 0.5, 1.0], 2.0), Some((Side::Highest, 4.0)));
    assert_eq!(edge(&[2.0, 0.5, 1.0], 0.5), Some((Side::Lowest, 0.25)));
    assert_eq!(edge(&[0.0, 0.1, 0.2], 0.2), Some((Side::Highest, 0.4)));
    // Nothing lies below zero, and one value is no grid.
    assert_eq!(edge(&[0.0, 0.1], 0.0), None);
    assert_eq!(edge(&[3.0], 3.0), None);
}

#[test]
fn each_key_has_edges_of_its_own_and_a_word_has_none() {
    let words =
        Axis { key: "optimizer.hidden".into(), values: vec!["adamw".into(), "muon".into()] };
    let axes = [axis("lr_scale", &[1.0, 2.0, 4.0]), axis("optimizer.clip", &[1.0, 2.0]), words];
    let points = GridPoint::all(&axes);
    let middle = points.iter().find(|p| p.label().starts_with("lr_scale=2,")).unwrap();
    let keys: Vec<String> = edges(&axes, middle).into_iter().map(|edge| edge.key).collect();
    assert_eq!(keys, ["optimizer.clip"]);
}
