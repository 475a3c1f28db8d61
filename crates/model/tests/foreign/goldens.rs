//! Tiny random models of every family, with logits that `transformers` computed
//! (`tests/reference/make_hf_goldens.py`).

use crate::support::{assert_close, cached, copy_of, expected, goldens, logits};
use hadal_kernels::plainly;
use hadal_model::{Device, RopeScaling, TensorFile, convert, load};
use std::fs;

#[test]
fn logits_are_those_of_transformers_on_every_path() {
    for directory in goldens() {
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        let (ids, want) = expected(&directory);
        let decoder = load(&directory, &Device::flex()).unwrap().decoder;
        assert_close(&logits(&decoder, &ids), &want, &format!("{name}, fused"));
        plainly(|| assert_close(&logits(&decoder, &ids), &want, &format!("{name}, plain")));
        // Dynamic scaling rotates early keys by the length at that time, in transformers as well.
        if matches!(decoder.config().rope_scaling, Some(RopeScaling::Dynamic { .. })) {
            continue;
        }
        for first in [1, 9, 17] {
            let what = format!("{name}, {first} tokens and then one by one");
            assert_close(&cached(&decoder, &ids, first), &want, &what);
            plainly(|| {
                assert_close(&cached(&decoder, &ids, first), &want, &format!("{what}, plain"))
            });
        }
    }
}

#[test]
fn an_imported_directory_is_the_same_model() {
    for directory in goldens() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("model");
        let mut last = (0, 0);
        let converted = convert(&directory, &out, &mut |done, all| last = (done, all)).unwrap();
        assert_eq!(last, (converted.stored_bytes, converted.stored_bytes));
        let (ids, _) = expected(&directory);
        let (theirs, ours) =
            (load(&directory, &Device::flex()).unwrap(), load(&out, &Device::flex()).unwrap());
        assert_eq!(theirs.decoder.config(), ours.decoder.config());
        assert_eq!((theirs.begin, &theirs.ends), (ours.begin, &ours.ends));
        assert_eq!((ours.begin, ours.ends), (Some(1), vec![2, 3]));
        assert_eq!(logits(&theirs.decoder, &ids), logits(&ours.decoder, &ids), "{directory:?}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}

#[test]
fn elements_of_half_width_stay_what_they_are() {
    for name in ["llama-bf16", "llama-f16"] {
        let (directory, place) = (copy_of(name), tempfile::tempdir().unwrap());
        let out = place.path().join("model");
        convert(directory.path(), &out, &mut |_, _| ()).unwrap();
        let theirs = TensorFile::open(&directory.path().join("model.safetensors")).unwrap();
        let ours = TensorFile::open(&out.join("model.safetensors")).unwrap();
        assert_eq!(ours.dtype("embed.weight"), theirs.dtype("model.embed_tokens.weight"));
        assert_eq!(
            ours.floats("layers.1.mlp.down.weight").unwrap(),
            theirs.floats("model.layers.1.mlp.down_proj.weight").unwrap()
        );
    }
}

#[test]
fn what_is_said_about_generating_outranks_the_config() {
    let directory = copy_of("llama");
    let file = directory.path().join("generation_config.json");
    fs::write(file, r#"{"bos_token_id": 7, "eos_token_id": 9}"#).unwrap();
    let checkpoint = load(directory.path(), &Device::flex()).unwrap();
    assert_eq!((checkpoint.begin, checkpoint.ends), (Some(7), vec![9]));
}

#[test]
fn tokenizers_and_chat_templates_come_along() {
    let (directory, place) = (copy_of("llama"), tempfile::tempdir().unwrap());
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("tokenizer.json", "{}");
    write("tokenizer_config.json", r#"{"chat_template": "{{ messages }}"}"#);
    let out = place.path().join("model");
    let converted = convert(directory.path(), &out, &mut |_, _| ()).unwrap();
    assert!(converted.tokenizer && converted.chat_template);
    assert_eq!(fs::read_to_string(out.join("tokenizer.json")).unwrap(), "{}");
    assert_eq!(fs::read_to_string(out.join("chat_template.jinja")).unwrap(), "{{ messages }}");
}

#[test]
fn nothing_is_written_over() {
    let (directory, place) = (copy_of("llama"), tempfile::tempdir().unwrap());
    let error = convert(directory.path(), place.path(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
}
