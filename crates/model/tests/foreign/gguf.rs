//! GGUF files: the golden models written as llama.cpp's converter would, and vocabularies of both kinds.

use crate::support::{assert_close, expected, golden, logits};
use hadal_gguf::{Metadata, TensorInfo, TensorType, Value, Writer};
use hadal_model::{
    Decoder, Device, ModelConfig, RopeScaling, Tokenizer, convert, load, read_config,
};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A file to be written.
pub(crate) struct Draft {
    pub(crate) metadata: Metadata,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    kind: TensorType,
    place: TempDir,
}

/// llama.cpp's name of one of our parameters.
fn theirs(ours: &str) -> String {
    ours.replace("embed.weight", "token_embd.weight")
        .replace("head.weight", "output.weight")
        .replace("layers.", "blk.")
        .replace(".mlp_norm.", ".ffn_norm.")
        .replace(".attn.o.", ".attn_output.")
        .replace(".attn.", ".attn_")
        .replace(".mlp.", ".ffn_")
}

/// Rows of heads in llama.cpp's order: pairs of dimensions side by side.
fn permuted(values: &[f32], head_dim: usize, columns: usize) -> Vec<f32> {
    let heads = values.chunks(head_dim * columns);
    let row = |head: &[f32], r: usize| {
        let from = (r % 2) * head_dim / 2 + r / 2;
        head[from * columns..(from + 1) * columns].to_vec()
    };
    heads.flat_map(|head| (0..head_dim).flat_map(|r| row(head, r)).collect::<Vec<_>>()).collect()
}

fn metadata(config: &ModelConfig, architecture: &str) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", architecture);
    let mut number = |key: &str, value: usize| {
        metadata.set(&format!("{architecture}.{key}"), value as u32);
    };
    number("block_count", config.n_layers);
    number("context_length", config.max_seq_len);
    number("embedding_length", config.d_model);
    number("feed_forward_length", config.d_ff);
    number("attention.head_count", config.n_heads);
    number("attention.head_count_kv", config.n_kv_heads);
    number("attention.key_length", config.head_dim);
    number("attention.value_length", config.head_dim);
    number("rope.dimension_count", config.head_dim);
    let mut real = |key: &str, value: f64| {
        metadata.set(&format!("{architecture}.{key}"), value as f32);
    };
    real("rope.freq_base", config.rope_theta);
    real("attention.layer_norm_rms_epsilon", config.norm_eps);
    metadata
}

/// A golden model as a draft, with rows permuted where the architecture asks for it.
pub(crate) fn draft(name: &str, architecture: &str) -> Draft {
    let decoder = load(&golden(name), &Device::flex()).unwrap().decoder;
    let (config, permutes) = (decoder.config().clone(), architecture == "llama");
    let tensors = decoder.parameters().into_iter().map(|(ours, values)| {
        let declared = decoder.declared().iter().find(|declared| declared.name == ours).unwrap();
        let mut dimensions = declared.shape.clone();
        dimensions.reverse();
        let turned = [".attn.q.weight", ".attn.k.weight", ".attn.q.bias", ".attn.k.bias"];
        let columns = if dimensions.len() == 1 { 1 } else { dimensions[0] };
        let values = match permutes && turned.iter().any(|part| ours.ends_with(part)) {
            true => permuted(&values, config.head_dim, columns),
            false => values,
        };
        let name = match ours.as_str() {
            "norm.weight" => "output_norm.weight".to_owned(),
            _ => theirs(&ours),
        };
        (name, dimensions, values)
    });
    Draft {
        metadata: metadata(&config, architecture),
        tensors: tensors.collect(),
        kind: TensorType::F32,
        place: TempDir::new().unwrap(),
    }
}

impl Draft {
    fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.set(key, value);
        self
    }

    pub(crate) fn write(&self) -> PathBuf {
        let path = self.place.path().join("model.gguf");
        let infos = self.tensors.iter().map(|(name, dimensions, _)| {
            let kind = if dimensions.len() > 1 { self.kind } else { TensorType::F32 };
            TensorInfo::new(name, dimensions, kind).unwrap()
        });
        let mut writer = Writer::create(&path, &self.metadata, infos.collect()).unwrap();
        for (name, _, values) in &self.tensors {
            writer.rows(name, values).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    fn load(&self) -> Decoder {
        load(&self.write(), &Device::flex()).unwrap().decoder
    }

    fn refused(&self) -> String {
        load(&self.write(), &Device::flex()).unwrap_err().to_string()
    }
}

#[test]
fn the_same_model_in_both_formats_computes_the_same() {
    for (name, architecture) in [
        ("llama", "llama"),
        ("llama-tied-mha", "llama"),
        ("llama-biases", "llama"),
        ("llama-wide-heads", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
    ] {
        let draft = draft(name, architecture);
        let path = draft.write();
        let (ids, want) = expected(&golden(name));
        let decoder = load(&path, &Device::flex()).unwrap().decoder;
        assert_close(&logits(&decoder, &ids), &want, name);
        assert_eq!(read_config(&path).unwrap(), *decoder.config());
        let out = draft.place.path().join("out");
        convert(&path, &out, &mut |_, _| ()).unwrap();
        let ours = load(&out, &Device::flex()).unwrap().decoder;
        assert_eq!(logits(&ours, &ids), logits(&decoder, &ids), "{name}");
    }
}

#[test]
fn settings_of_positions_and_windows_are_read() {
    let compare = |name: &str, draft: Draft| {
        let (ids, want) = expected(&golden(name));
        assert_close(&logits(&draft.load(), &ids), &want, name);
    };
    let linear = draft("llama-linear", "llama").set("llama.rope.scaling.type", "linear");
    compare("llama-linear", linear.set("llama.rope.scaling.factor", 2.5f32));
    let yarn = draft("llama-yarn", "llama").set("llama.rope.scaling.type", "yarn");
    let yarn = yarn.set("llama.rope.scaling.factor", 4.0f32);
    compare("llama-yarn", yarn.set("llama.rope.scaling.original_context_length", 16u32));
    compare("mistral", draft("mistral", "llama").set("llama.attention.sliding_window", 5u32));

    // Llama 3.1's rule is written as a tensor of divisors.
    let mut llama3 = draft("llama-llama3", "llama");
    let plain = |j: i32| 1000f64.powf(-f64::from(j) / 4.0);
    let divisors = (0..4).map(|j| {
        let turns = 32.0 * plain(j) / std::f64::consts::TAU;
        let smooth = ((turns - 1.0) / 3.0).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32
    });
    llama3.tensors.push(("rope_freqs.weight".into(), vec![4], divisors.collect()));
    assert!(matches!(llama3.load().config().rope_scaling, Some(RopeScaling::Divided { .. })));
    compare("llama-llama3", llama3);
}

#[test]
fn what_is_not_computed_exactly_is_refused_by_name() {
    let refused = |key: &str, value: Value| draft("llama", "llama").set(key, value).refused();
    assert!(refused("general.architecture", "gemma".into()).contains("\"gemma\""));
    assert!(refused("llama.logit_scale", 0.5f32.into()).contains("llama.logit_scale"));
    assert!(refused("llama.expert_count", 8u32.into()).contains("llama.expert_count"));
    assert!(
        refused("llama.rope.dimension_count", 4u32.into()).contains("rope.dimension_count is 4")
    );
    assert!(refused("llama.rope.scaling.type", "longrope".into()).contains("longrope"));
    let lists = refused("llama.attention.head_count_kv", vec![1u32, 2].into());
    assert!(lists.contains("head_count_kv is a list"), "{lists}");
    assert!(refused("llama.block_count", u32::MAX.into()).contains("n_layers"));
    assert!(refused("llama.context_length", (-1i32).into()).contains("context_length"));
    let fine = draft("llama", "llama").set("llama.expert_count", 0u32);
    fine.set("llama.attention.head_count_kv", vec![1u32, 1]).load();
}

#[test]
fn a_directory_with_one_file_is_that_file() {
    let draft = byte_level("llama-bpe");
    let path = draft.write();
    let directory = path.parent().unwrap();
    let (ids, want) = expected(&golden("llama"));
    assert_close(&logits(&load(directory, &Device::flex()).unwrap().decoder, &ids), &want, "it");
    assert_eq!(read_config(directory).unwrap(), read_config(&path).unwrap());
    let words = |path: &Path| Tokenizer::of_model(path).unwrap().unwrap().encode("ab 12").unwrap();
    assert_eq!(words(directory), words(&path));
    let place = TempDir::new().unwrap();
    let copy = place.path().join("copy");
    assert!(convert(directory, &copy, &mut |_, _| ()).unwrap().tokenizer);
    // With two files it is unclear which one is meant.
    fs::copy(&path, directory.join("other.gguf")).unwrap();
    let error = load(directory, &Device::flex()).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn tensors_that_do_not_fit_are_listed() {
    let mut missing = draft("llama", "llama");
    missing.tensors.retain(|(name, ..)| name != "blk.1.ffn_up.weight");
    missing.tensors.push(("blk.9.extra.weight".into(), vec![2], vec![0.0; 2]));
    let error = missing.refused();
    assert!(error.contains("missing: blk.1.ffn_up.weight [24, 16]"), "{error}");
    assert!(error.contains("unexpected: blk.9.extra.weight"), "{error}");
    // Our writer refuses values that are not finite, so the number is spoilt in the file.
    let mut spoilt = draft("llama", "llama");
    let tensor = spoilt.tensors.iter_mut().find(|(name, ..)| name == "blk.1.attn_v.weight");
    let mark: f32 = 1.234_567e33;
    tensor.unwrap().2[5] = mark;
    let path = spoilt.write();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|four| four == mark.to_le_bytes()).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = load(&path, &Device::flex()).unwrap_err().to_string();
    assert!(error.contains("`blk.1.attn_v.weight` holds -inf at element 5"), "{error}");
    let path = draft("llama", "llama");
    let whole = fs::read(path.write()).unwrap();
    for length in [0, 3, 40, whole.len() / 2, whole.len() - 1] {
        let cut = path.place.path().join("cut.gguf");
        fs::write(&cut, &whole[..length]).unwrap();
        assert!(load(&cut, &Device::flex()).is_err(), "{length}");
    }
    let nothing = load(Path::new("/nowhere/x.gguf"), &Device::flex()).unwrap_err().to_string();
    assert!(nothing.contains("/nowhere/x.gguf"), "{nothing}");
}

/// A byte-level vocabulary: two special tokens, letters, a space, digits, and merges of them.
pub(crate) fn byte_level(pre: &str) -> Draft {
    let tokens = ["<|end|>", "<|user|>", "a", "b", "Ġ", "1", "2", "ab", "Ġab", "12"];
    let mut kinds = vec![1i32; tokens.len()];
    (kinds[0], kinds[1]) = (3, 4);
    draft("llama", "llama")
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", pre)
        .set("tokenizer.ggml.tokens", tokens.map(String::from).to_vec())
        .set("tokenizer.ggml.token_type", kinds)
        .set("tokenizer.ggml.merges", ["a b", "Ġ ab", "1 2"].map(String::from).to_vec())
        .set("tokenizer.ggml.bos_token_id", 0u32)
        .set("tokenizer.ggml.eos_token_id", 0u32)
}

fn tokenizer(draft: &Draft) -> Tokenizer {
    Tokenizer::of_model(&draft.write()).unwrap().unwrap()
}

#[test]
fn byte_level_vocabularies_cut_words_as_they_say() {
    let ids = |pre: &str, text: &str| tokenizer(&byte_level(pre)).encode(text).unwrap();
    assert_eq!(ids("gpt-2", "ab ab12"), [7, 8, 9]);
    // Digits are tokens of their own.
    assert_eq!(ids("smollm", "ab ab12"), [7, 8, 5, 6]);
    assert_eq!(ids("qwen2", "ab12"), [7, 5, 6]);
    // Llama 3 begins with its begin token, and keeps up to three digits together.
    assert_eq!(ids("llama-bpe", "ab12"), [0, 7, 9]);
    assert_eq!(ids("gpt-2", "ab<|end|><|user|>ab"), [7, 0, 1, 7]);
    let tokenizer = tokenizer(&byte_level("gpt-2"));
    assert_eq!(tokenizer.decode(&[7, 8, 9, 0]).unwrap(), "ab ab12");
    let error = Tokenizer::of_model(&byte_level("abacus").write()).unwrap_err().to_string();
    assert!(error.contains("\"abacus\"") && error.contains("smollm"), "{error}");
}

/// SentencePiece's kind: an unknown token, two of control, some bytes, and pieces with scores.
fn pieces() -> Draft {
    let tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁a", "▁ab", "ba"];
    let scores = [0.0f32, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -3.0, -4.0, -2.0];
    let mut kinds = vec![1i32; tokens.len()];
    kinds[..4].copy_from_slice(&[2, 3, 3, 6]);
    draft("llama", "llama")
        .set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.tokens", tokens.map(String::from).to_vec())
        .set("tokenizer.ggml.scores", scores.to_vec())
        .set("tokenizer.ggml.token_type", kinds)
        .set("tokenizer.ggml.bos_token_id", 1u32)
        .set("tokenizer.ggml.eos_token_id", 2u32)
        .set("tokenizer.ggml.unknown_token_id", 0u32)
}

#[test]
fn pieces_are_merged_by_their_scores() {
    let plain = tokenizer(&pieces());
    assert_eq!(plain.encode("ab").unwrap(), [1, 9]);
    // `ab` scores higher than `ba`, so the first two are merged first.
    assert_eq!(plain.encode("aba ba\n").unwrap(), [1, 9, 5, 4, 10, 3]);
    assert_eq!(plain.decode(&[1, 9, 5, 4, 10, 3]).unwrap(), "aba ba\n");
    assert_eq!((plain.begin(), plain.ends()), (Some(1), vec![2]));
    let bare = pieces().set("tokenizer.ggml.add_space_prefix", false);
    let bare =
        bare.set("tokenizer.ggml.add_bos_token", false).set("tokenizer.ggml.add_eos_token", true);
    assert_eq!(tokenizer(&bare).encode("ab").unwrap(), [7, 2]);
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let refused = |key: &str, value: Value| {
        let draft = pieces().set(&format!("tokenizer.ggml.{key}"), value);
        Tokenizer::of_model(&draft.write()).unwrap_err().to_string()
    };
    assert!(refused("model", "bert".into()).contains("\"bert\""));
    assert!(refused("scores", vec![1.0f32].into()).contains("1 entries for 11 tokens"));
    assert!(refused("token_type", vec![1i32].into()).contains("1 entries for 11 tokens"));
    assert!(refused("bos_token_id", 99u32.into()).contains("bos_token_id is 99"));
    assert!(refused("tokens", vec!["a".to_string(); 11].into()).contains("twice"));
    assert!(refused("remove_extra_whitespaces", true.into()).contains("whitespaces"));
    for unknown in [0i32, 7, -3] {
        let mut kinds = vec![1i32; 11];
        kinds[9] = unknown;
        let reason = refused("token_type", kinds.into());
        assert!(reason.contains(&format!("token_type of token 9 is {unknown}")), "{reason}");
    }
    let merges = byte_level("gpt-2").set("tokenizer.ggml.merges", vec!["ab".to_string()]);
    let error = Tokenizer::of_model(&merges.write()).unwrap_err().to_string();
    assert!(error.contains("not a pair"), "{error}");
    let none = draft("llama", "llama");
    assert!(Tokenizer::of_model(&none.write()).unwrap().is_none());
}

#[test]
fn what_ends_a_text_is_read_from_the_vocabulary() {
    let draft = byte_level("gpt-2").set("tokenizer.ggml.eot_token_id", 5u32);
    let checkpoint = load(&draft.write(), &Device::flex()).unwrap();
    assert_eq!((checkpoint.begin, checkpoint.ends), (Some(0), vec![0, 5]));
    let draft = draft.set("tokenizer.chat_template", "{{ messages }}");
    let out = draft.place.path().join("out");
    let converted = convert(&draft.write(), &out, &mut |_, _| ()).unwrap();
    assert!(converted.tokenizer && converted.chat_template);
    let template = fs::read_to_string(out.join("chat_template.jinja")).unwrap();
    assert_eq!(template, "{{ messages }}");
    let ids = |path: &Path| Tokenizer::of_model(path).unwrap().unwrap().encode("ab ab").unwrap();
    assert_eq!(ids(&out), ids(&draft.write()));
    let (gguf, ours) = (load(&draft.write(), &Device::flex()), load(&out, &Device::flex()));
    assert_eq!(gguf.unwrap().ends, ours.unwrap().ends);
}
