use super::*;
use hadal_files::verify;
use std::fs;
use std::path::PathBuf;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn put(source: &Path, residual: &str, out: Option<&Path>) -> Result<Restreamed, RestreamError> {
    let residual = residual.parse().unwrap();
    let request = Restream { source, residual: &residual, tokens: None, tolerance: SAME_LOGITS };
    restream(&request, out, &mut |_| ())
}

/// A golden's epsilon is a hundredth, so forms that only agree without one would be seen.
#[test]
fn trained_models_of_every_maker_keep_their_logits() {
    let place = tempfile::tempdir().unwrap();
    let sources =
        ["golden/prenorm", "golden-hf/llama", "golden-hf/llama-bf16", "models/stories260K"];
    for (i, source) in sources.iter().enumerate() {
        let source = tests().join(source);
        for (j, residual) in ["hc", "glm5_flash", "hy4", "gr", "attnres:delta=true,gated=true"]
            .into_iter()
            .enumerate()
        {
            let out = place.path().join(format!("{i}-{j}"));
            let done = put(&source, residual, Some(&out)).unwrap();
            assert!(done.difference < 1e-5 && done.parameters_after > done.parameters_before / 2);
            // What is on the disk is what was compared.
            let read = |path: &Path| load(path, &Device::flex()).unwrap().decoder;
            let (before, after) = (read(&source), read(&out));
            assert_eq!(after.config().residual, residual.parse().unwrap());
            let tokens = some_tokens(before.config()).unwrap();
            let logits = |decoder| logits(decoder, &tokens).unwrap();
            assert!(apart(&logits(&before), &logits(&after)) < 1e-5, "{source:?} {residual}");
            verify(&out.join(WEIGHTS)).unwrap();
            verify(&out.join(CONFIG)).unwrap();
        }
    }
    assert!(place.path().join("3-0/tokenizer.json").is_file());
}

/// What a zero query reads is the sum over the number of sources, so epsilon weighs more; a smaller one can help.
#[test]
fn readers_of_means_may_get_a_smaller_epsilon() {
    let source = tests().join("golden/prenorm");
    let before = crate::read_config(&source).unwrap().norm_eps;
    for (residual, smaller) in
        [("attnres", true), ("attnres:delta=true", false), ("attnres:delta=true,gated=true", false)]
    {
        let done = put(&source, residual, None).unwrap();
        assert_eq!(done.config.norm_eps < before, smaller, "{residual}");
    }
}

#[test]
fn parameters_that_stay_keep_their_type_and_new_ones_are_f32() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    put(&tests().join("golden-hf/llama-bf16"), "hc", Some(&out)).unwrap();
    let file = crate::TensorFile::open(&out.join(WEIGHTS)).unwrap();
    assert_eq!(file.dtype("layers.0.attn.q.weight"), Some(Dtype::BF16));
    assert_eq!(file.dtype("residual.0.pre_weight"), Some(Dtype::F32));
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason_and_nothing_is_written() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let refused = |source: &str, residual: &str| {
        let error = put(&tests().join(source), residual, Some(&out)).unwrap_err();
        assert!(!out.exists(), "{residual}");
        (error.is_usage(), error.to_string())
    };
    let (usage, reason) = refused("golden/prenorm", "siamese");
    assert!(usage && reason.contains("siamese: one of its two streams"), "{reason}");
    let (usage, reason) = refused("golden/mhc", "hc");
    assert!(usage && reason.contains("the stream of this model is mhc:"), "{reason}");
    let (usage, reason) = refused("golden/prenorm", "attnres:heads=5");
    assert!(usage && reason.contains("heads is 5"), "{reason}");
    let (usage, reason) = refused("golden/nowhere", "hc");
    assert!(!usage && reason.contains("nowhere"), "{reason}");
    fs::create_dir(&out).unwrap();
    let error = put(&tests().join("golden/prenorm"), "hc", Some(&out)).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("exists already"), "{error}");
}

/// Its two streams are added up before the norm, so they agree with one but for epsilon.
#[test]
fn a_model_whose_logits_move_is_not_written() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("source"), place.path().join("out"));
    let config = ModelConfig { norm_eps: 0.05, ..ModelConfig::tiny() };
    crate::save(&Decoder::fresh(&config, 1, &Device::flex()).unwrap(), &source).unwrap();
    let error = put(&source, "hc:identity=true", Some(&out)).unwrap_err();
    let reason = error.to_string();
    assert!(!error.is_usage() && !out.exists(), "{reason}");
    assert!(reason.contains("norm_eps") && reason.contains("5e-2"), "{reason}");
    put(&source, "hc:identity=true,stream_scale=true", Some(&out)).unwrap();
}

#[test]
fn a_scaled_stream_is_folded_both_ways() {
    let place = tempfile::tempdir().unwrap();
    let (lns, back) = (place.path().join("lns"), place.path().join("back"));
    put(&tests().join("golden/prenorm"), "lns", Some(&lns)).unwrap();
    put(&lns, "gr:streams=2", Some(&back)).unwrap();
    let again = place.path().join("again");
    put(&tests().join("golden/lns"), "prenorm", Some(&again)).unwrap();
}
