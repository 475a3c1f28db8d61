//! A plan that is stopped goes on, to the same numbers.

use super::files::{model_and_text, request};
use super::*;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A plan, and how often it made a pass. It is stopped after some of them.
fn passes(request: &Request, stop_after: usize) -> (Result<Plan, PruneError>, usize) {
    let stop = AtomicBool::new(false);
    let mut calls = 0;
    let found = plan(request, &stop, &mut |_, _| {
        calls += 1;
        if calls == stop_after {
            stop.store(true, Ordering::Relaxed);
        }
    });
    (found, calls)
}

/// Everything but what the clock says.
fn timeless(plan: &Plan) -> Plan {
    Plan {
        speed: Speed {
            prefill: 1.0,
            decode: 1.0,
            prefill_range: None,
            decode_range: None,
            prefill_tokens_per_second: 1.0,
            decode_tokens_per_second: 1.0,
        },
        ..plan.clone()
    }
}

#[test]
fn a_stopped_plan_goes_on_where_it_was_to_the_same_bits() {
    let place = TempDir::new().unwrap();
    let (model, text) = model_and_text(place.path());
    let keep = measurements_of(&place.path().join("plan.json"));
    assert_eq!(keep, place.path().join("plan.json.measured"));
    let options = Options { protect: vec![0], ..blocks(2) };
    let whole = request(&model, &text, &options);
    let (expected, all) = passes(&whole, usize::MAX);
    let expected = expected.unwrap();
    let kept = Request { keep: Some(&keep), ..whole };
    // Within the scores, within the choice, within the judgement.
    let mut made = 0;
    for stop_after in [7, 9, 8] {
        let (found, calls) = passes(&kept, stop_after);
        match found {
            Err(PruneError::Stopped { kept, done, all }) => {
                assert_eq!(kept.as_ref(), Some(&keep));
                assert!(done < all, "{done} of {all}");
            }
            other => panic!("it was not stopped: {other:?}"),
        }
        assert_eq!(calls, stop_after);
        made += calls;
    }
    let (found, calls) = passes(&kept, usize::MAX);
    assert_eq!(timeless(&found.unwrap()), timeless(&expected));
    // Each time the pass that watches angles is made again, and that of the whole model on a piece that was begun.
    assert!(calls + made <= all + 2 * 3 && calls + 10 < all, "{calls} and {made} of {all}");

    // A budget is no part of a measurement.
    let options = Options { protect: vec![0], ..blocks(1) };
    let (found, again) = passes(&Request { options: &options, ..kept }, usize::MAX);
    assert_eq!(found.unwrap().remove.len(), 1);
    discard_measurements(&place.path().join("plan.json")).unwrap();
    assert!(!keep.exists());
    let (found, anew) = passes(&Request { options: &options, ..kept }, usize::MAX);
    found.unwrap();
    assert!(again < anew, "{again} and {anew}");
}

#[test]
fn measurements_of_another_model_are_neither_used_nor_thrown_away() {
    let place = TempDir::new().unwrap();
    let (model, text) = model_and_text(place.path());
    let keep = place.path().join("plan.json.measured");
    let options = Options { protect: vec![0], ..blocks(1) };
    let kept = Request { keep: Some(&keep), ..request(&model, &text, &options) };
    passes(&kept, 5).0.unwrap_err();
    let text_of_kept = fs::read_to_string(&keep).unwrap();
    let other = text_of_kept.replacen("hadal ", "another ", 1);
    assert_ne!(other, text_of_kept);
    for content in [other.as_str(), "mine", ""] {
        fs::write(&keep, content).unwrap();
        let error = passes(&kept, usize::MAX).0.unwrap_err();
        assert!(matches!(error, PruneError::OtherMeasurements { .. }), "{error}");
        assert_eq!(fs::read_to_string(&keep).unwrap(), content);
    }
    passes(&Request { force: true, ..kept }, 5).0.unwrap_err();
    assert_eq!(fs::read_to_string(&keep).unwrap(), text_of_kept);
}
