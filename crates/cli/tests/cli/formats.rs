//! `hadal parity` on what other tools write: other dtypes, and Hugging Face directories.

use crate::parity::parity;
use crate::support::{
    CONFIG, TRACE, Tensor, Tensors, WEIGHTS, copy_of, edit_json, edit_tensors, golden,
    read_tensors, stories, write_tensors,
};
use safetensors::tensor::Dtype;
use std::path::Path;

#[test]
fn bf16_weights_are_the_numbers_they_stand_for() {
    let report = |convert: fn(&mut Tensor)| {
        let copy = copy_of(&golden("mgr-competitive"));
        edit_tensors(&copy.path().join(WEIGHTS), |weights| weights.values_mut().for_each(convert));
        let run = parity(copy.path(), &["--json"]);
        assert_eq!(run.code, 1, "rounded weights differ: {}", run.stderr);
        run.stdout
    };
    // A bf16 is the upper half of an f32.
    let rounded = report(|tensor| {
        tensor.bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| bytes[..2].fill(0));
    });
    let stored = report(|tensor| {
        let halves = tensor.bytes.as_chunks::<4>().0.iter().flat_map(|bytes| [bytes[2], bytes[3]]);
        tensor.bytes = halves.collect();
        tensor.dtype = Dtype::BF16;
    });
    assert_eq!(rounded, stored);
}

#[test]
fn ids_may_be_of_64_bits() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(TRACE), |trace| {
        for name in ["input_ids", "target_ids"] {
            let tensor = trace.get_mut(name).unwrap();
            let ids =
                tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
            tensor.bytes = ids.flat_map(|id| i64::from(id).to_le_bytes()).collect();
            tensor.dtype = Dtype::I64;
        }
    });
    parity(copy.path(), &[]).succeeded();
}

const IDS: [i32; 4] = [1, 403, 407, 261];
const VOCABULARY: usize = 512;
const WIDTH: usize = 64;
const EPS: f32 = 1e-5;

fn write_logits(directory: &Path, logits: &[f32]) {
    let trace = Tensors::from([
        ("input_ids".into(), Tensor::integers(&[1, IDS.len()], &IDS)),
        ("logits".into(), Tensor::floats(&[1, IDS.len(), VOCABULARY], logits)),
    ]);
    write_tensors(&directory.join(TRACE), &trace);
}

/// Leaves a Llama nothing but embedding, final norm and head: its sub-layers write zeros.
fn silence_sub_layers(weights: &mut Tensors) {
    for (name, tensor) in weights {
        if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
            tensor.bytes.fill(0);
        }
    }
}

/// The logits of such a model, by hand.
fn logits_without_sub_layers(weights: &Tensors) -> Vec<f32> {
    let embedding = weights["model.embed_tokens.weight"].to_floats();
    let gain = weights["model.norm.weight"].to_floats();
    let mut logits = Vec::new();
    for id in IDS {
        let token = &embedding[id as usize * WIDTH..][..WIDTH];
        let mean_square = token.iter().map(|x| x * x).sum::<f32>() / WIDTH as f32;
        let scale = (mean_square + EPS).sqrt().recip();
        let normed: Vec<f32> = token.iter().zip(&gain).map(|(x, g)| x * scale * g).collect();
        logits.extend(
            embedding
                .chunks(WIDTH)
                .map(|row| row.iter().zip(&normed).map(|(a, b)| a * b).sum::<f32>()),
        );
    }
    logits
}

#[test]
fn a_hugging_face_directory_is_compared_by_its_logits_alone() {
    let copy = copy_of(&stories());
    let weights = copy.path().join(WEIGHTS);
    edit_tensors(&weights, silence_sub_layers);
    write_logits(copy.path(), &logits_without_sub_layers(&read_tensors(&weights)));
    let report = parity(copy.path(), &["--json"]).succeeded().json();
    assert_eq!(report["residual"], "prenorm");
    assert_eq!(report["comparisons"].as_array().unwrap().len(), 1);
    assert_eq!(report["comparisons"][0]["name"], "logits");

    // The same logits are wrong for the model whose sub-layers do write.
    std::fs::copy(stories().join(WEIGHTS), &weights).unwrap();
    assert_eq!(parity(copy.path(), &[]).code, 1);
    write_logits(copy.path(), &[0.0; IDS.len() * VOCABULARY]);
    assert_eq!(parity(copy.path(), &[]).code, 1);
}

#[test]
fn what_a_hugging_face_directory_lacks_is_said_in_its_own_names() {
    let copy = copy_of(&stories());
    write_logits(copy.path(), &[0.0; IDS.len() * VOCABULARY]);
    edit_tensors(&copy.path().join(WEIGHTS), |weights| {
        weights.remove("model.layers.2.self_attn.k_proj.weight");
        weights.insert("model.layers.2.self_attn.k_proj.bias".into(), Tensor::floats(&[1], &[0.0]));
    });
    parity(copy.path(), &[]).refused(
        2,
        &[
            "model.safetensors does not fit its config:",
            "missing: model.layers.2.self_attn.k_proj.weight [32, 64]",
            "unexpected: model.layers.2.self_attn.k_proj.bias",
        ],
    );
}

#[test]
fn a_hugging_face_model_that_would_be_computed_differently_is_refused() {
    for (key, value, reason) in [
        ("architectures", serde_json::json!(["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
        ("attention_bias", "yes".into(), "attention_bias"),
        ("hidden_act", "gelu".into(), "hidden_act is gelu"),
        ("rope_scaling", serde_json::json!({"rope_type": "longrope"}), "longrope"),
        ("num_attention_heads", 0.into(), "n_heads is 0"),
        ("num_key_value_heads", 3.into(), "not divisible"),
        ("hidden_size", "wide".into(), "hidden_size"),
    ] {
        let copy = copy_of(&stories());
        write_logits(copy.path(), &[0.0; IDS.len() * VOCABULARY]);
        edit_json(&copy.path().join(CONFIG), |config| config[key] = value);
        parity(copy.path(), &[]).refused(2, &[CONFIG, reason]);
    }
}
