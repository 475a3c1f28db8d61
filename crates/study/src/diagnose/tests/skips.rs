//! Which tokens skipped what.

use super::*;
use hadal_report::figure::Marks;

#[test]
fn skips_are_told_by_depth_kind_position_and_token() {
    // No token skips block 0, every token skips the attention of block 1, none skips its MLP.
    let config = config("nag:skip_threshold=[0.0,0.0,9.0,0.0]", 2);
    let (decoder, batch) = (fresh(&config), batch(20, 6));
    let skips = seen(&decoder, &batch, Skips::new(&config, None));
    assert_eq!([0, 1, 2, 3].map(|site| skips.at(site).unwrap()), [0.0, 0.0, 1.0, 0.0]);
    let mut summary = Summary::default();
    skips.tell(&mut summary);
    let told = summary.skips.unwrap();
    assert_eq!((told.attention, told.mlp), (Some(0.5), Some(0.0)));
    assert!(told.flops > 0.0 && told.flops < 0.5, "{told:?}");
    // All tokens skip one of four, and only tokens that occur often enough count.
    assert!(!told.most.is_empty());
    assert!(told.most.iter().all(|token| token.skipped == 0.25 && token.count >= 5), "{told:?}");
    let figures = skips.figures();
    let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["skip-by-depth", "skip-by-position", "skip-by-token"]);
    let Marks::Lines { series } = &figures[1].marks else { panic!("lines") };
    assert_eq!(series[0].y, [Some(0.5); 6]);
    assert_eq!(series[1].y, [Some(0.0); 6]);
}

#[test]
fn skipped_tokens_are_called_by_their_text() {
    let config = ModelConfig { vocab_size: 257, ..config("mgr:streams=2,skip_threshold=9.0", 2) };
    let ids: Vec<u32> =
        b"aaaaaabbbbbbbbc\xffc\xff\xff\xff\xff\xff".iter().map(|&b| b.into()).collect();
    let tokens = || Tokens::rows(ids.clone(), 1).unwrap();
    let batch = Batch { input: tokens(), target: tokens(), scored: Vec::new() };
    let tokenizer = Some(hadal_model::Tokenizer::bytes());
    let skips = seen(&fresh(&config), &batch, Skips::new(&config, tokenizer));
    // The first sub-layer fills a stream.
    assert_eq!(skips.at(0), None);
    assert_eq!(skips.at(3), Some(1.0));
    let figure = skips.figures().remove(2);
    assert_eq!(figure.x.categories, ["\"a\" x6", "\"b\" x8", "#255 x6"]);
}

#[test]
fn a_model_in_which_nobody_can_skip_has_no_figure_of_it() {
    let config = config("nag", 2);
    let skips = seen(&fresh(&config), &batch(2, 5), Skips::new(&config, None));
    assert!(skips.figures().is_empty());
}
