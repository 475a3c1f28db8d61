//! `hadal generate`.

use crate::pipes::into_closed_pipe;
use crate::support::{
    CONFIG, Noise, Run, Tensor, Tensors, WEIGHTS, command, copy_of, read_json, run, run_with_stdin,
    stories, write_tensors,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn generate(directory: &Path, options: &[&str]) -> Run {
    run(command("generate").arg(directory).args(options))
}

fn chat(directory: &Path) -> Run {
    run(command("chat").arg(directory))
}

fn summary(directory: &Path, options: &[&str]) -> Value {
    generate(directory, &[&["--json"], options].concat()).succeeded().json()
}

/// A byte model of one block and 16 positions, with random weights.
pub(crate) fn byte_model(vocab_size: usize, change: impl FnOnce(&mut Tensors)) -> TempDir {
    let directory = TempDir::new().unwrap();
    let config = json!({
        "model_type": "hadal", "vocab_size": vocab_size, "d_model": 8, "n_layers": 1, "n_heads": 2,
        "n_kv_heads": 1, "head_dim": 4, "d_ff": 16, "mlp": "relu2", "rope_theta": 10000.0,
        "norm_eps": 1e-6, "qk_norm": false, "tie_embeddings": true, "depth_kv": "none",
        "max_seq_len": 16, "residual": {"kind": "prenorm"}
    });
    fs::write(directory.path().join(CONFIG), config.to_string()).unwrap();
    let mut noise = Noise::new(7);
    let mut weights: Tensors = [
        ("embed.weight", [vocab_size, 8].as_slice()),
        ("norm.weight", &[8]),
        ("layers.0.attn_norm.weight", &[8]),
        ("layers.0.mlp_norm.weight", &[8]),
        ("layers.0.attn.q.weight", &[8, 8]),
        ("layers.0.attn.k.weight", &[4, 8]),
        ("layers.0.attn.v.weight", &[4, 8]),
        ("layers.0.attn.o.weight", &[8, 8]),
        ("layers.0.mlp.up.weight", &[16, 8]),
        ("layers.0.mlp.down.weight", &[8, 16]),
    ]
    .map(|(name, shape)| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| noise.float()).collect();
        (name.to_owned(), Tensor::floats(shape, &values))
    })
    .into();
    change(&mut weights);
    write_tensors(&directory.path().join(WEIGHTS), &weights);
    directory
}

#[test]
fn the_empty_prompt_reproduces_the_reference_exactly() {
    let reference = read_json(&stories().join("greedy.json"));
    let ours = summary(&stories(), &["--prompt", "", "--max-tokens", "200"]);
    assert_eq!(reference["greedy_ids"].as_array().unwrap().len(), 200);
    assert_eq!(ours["prompt_ids"], reference["prompt_ids"]);
    assert_eq!(ours["ids"], reference["greedy_ids"]);
    assert_eq!(ours["text"], reference["text"]);
    assert_eq!(ours["stop"], "max_tokens");
    assert!(ours["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_text_goes_to_stdout_and_the_rest_to_stderr() {
    let reference = read_json(&stories().join("greedy.json"));
    let run = generate(&stories(), &["--prompt", "", "--max-tokens", "200"]).succeeded();
    assert_eq!(run.stdout, format!("{}\n", reference["text"].as_str().unwrap()));
    assert!(run.stderr.starts_with("200 tokens, "), "{}", run.stderr);
    assert!(run.stderr.contains("tokens/s, --max-tokens reached"), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn a_prompt_on_stdin_is_the_prompt_without_its_line_break() {
    let given = generate(&stories(), &["--prompt", "Once upon", "-n", "30"]).succeeded();
    assert!(given.stdout.starts_with(" a time"), "{}", given.stdout);
    for input in ["Once upon", "Once upon\n"] {
        let mut piped = command("generate");
        piped.arg(stories()).args(["-n", "30"]);
        let piped = run_with_stdin(&mut piped, input.as_bytes()).succeeded();
        assert_eq!(piped.stdout, given.stdout, "{input:?}");
    }
    // An empty stdin is the empty prompt.
    let from_nothing = generate(&stories(), &["-n", "10"]).succeeded().stdout;
    assert!(from_nothing.starts_with("Once upon a time"), "{from_nothing}");
}

#[test]
fn a_seed_repeats_a_draw_and_another_seed_draws_another() {
    let text = |options: &[&str]| {
        let fixed = ["--prompt", "", "-n", "60"];
        generate(&stories(), &[&fixed, options].concat()).succeeded().stdout
    };
    let drawn = text(&["--temperature", "1", "--seed", "1"]);
    assert_eq!(drawn, text(&["--temperature", "1", "--seed", "1"]));
    assert_ne!(drawn, text(&["--temperature", "1", "--seed", "2"]));
    let greedy = text(&[]);
    assert_ne!(drawn, greedy);
    assert_eq!(greedy, text(&["--temperature", "0", "--seed", "1"]));
    assert_eq!(greedy, text(&["--temperature", "1", "--top-k", "1", "--seed", "1"]));
    assert_eq!(greedy, text(&["--temperature", "1", "--top-p", "1e-9", "--seed", "1"]));
}

#[test]
fn sampling_settings_that_make_no_sense_are_refused() {
    for (option, reason) in [
        ("--temperature=-1", "temperature -1"),
        ("--temperature=NaN", "temperature NaN"),
        ("--temperature=inf", "temperature inf"),
        ("--temperature=hot", "hot"),
        ("--top-k=0", "top_k 0"),
        ("--top-k=-3", "-3"),
        ("--top-p=0", "top_p 0"),
        ("--top-p=1.5", "top_p 1.5"),
        ("--top-p=NaN", "top_p NaN"),
        ("--max-tokens=-1", "--max-tokens"),
        ("--seed=-1", "--seed"),
    ] {
        generate(&stories(), &["--prompt", "x", option]).refused(2, &[reason]);
    }
}

#[test]
fn a_prompt_that_is_not_utf8_is_refused() {
    let run = run_with_stdin(command("generate").arg(stories()), b"Once \xff upon");
    run.refused(2, &["stdin", "not UTF-8"]);
}

#[test]
fn a_prompt_longer_than_the_context_is_one_message() {
    let model = byte_model(256, |_| ());
    generate(model.path(), &["--prompt", "seventeen letters"]).failed(&[
        "the prompt",
        "17 tokens",
        "max_seq_len is 16",
    ]);
    let prompt = "Once upon a time. ".repeat(200);
    generate(&stories(), &["--prompt", &prompt]).failed(&["max_seq_len is 512", "shorten"]);
}

#[test]
fn a_full_context_ends_the_text() {
    let model = byte_model(256, |_| ());
    for (prompt, written) in [("four", 13), ("exactly 16 bytes", 1)] {
        let full = summary(model.path(), &["--prompt", prompt, "-n", "100"]);
        assert_eq!(full["stop"], "context_full", "{prompt}");
        // The last token needs no position: nothing is computed after it.
        assert_eq!(full["ids"].as_array().unwrap().len(), written, "{prompt}");
    }
    let text = generate(model.path(), &["--prompt", "four", "-n", "100"]).succeeded();
    assert!(text.stderr.contains("max_seq_len is reached"), "{}", text.stderr);
}

#[test]
fn no_tokens_may_be_asked_for() {
    let none = summary(&stories(), &["--prompt", "x", "-n", "0"]);
    assert_eq!(
        (&none["ids"], &none["text"], &none["stop"]),
        (&json!([]), &json!(""), &json!("max_tokens"))
    );
}

#[test]
fn a_byte_model_reads_and_writes_bytes() {
    for vocab_size in [256, 257] {
        let model = byte_model(vocab_size, |_| ());
        let options = ["--prompt", "aé", "-n", "9", "--temperature", "1"];
        let written = summary(model.path(), &options);
        assert_eq!(written["prompt_ids"], json!([97, 0xc3, 0xa9]));
        let ids = written["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
        let bytes: Vec<u8> = ids.map(|id| u8::try_from(id).unwrap()).collect();
        assert_eq!(written["text"], String::from_utf8_lossy(&bytes).as_ref(), "{bytes:?}");
        assert!(!bytes.is_empty());
    }
    let model = byte_model(257, |_| ());
    assert_eq!(summary(model.path(), &["--prompt", ""])["prompt_ids"], json!([256]));
}

#[test]
fn the_end_token_ends_the_text() {
    let model = byte_model(257, |weights| {
        for (name, tensor) in weights {
            match name.as_str() {
                "norm.weight" => *tensor = Tensor::floats(&[8], &[1.0; 8]),
                // The row of `a` times ten is the row of the end token: likeliest after an `a`.
                "embed.weight" => (0..8).for_each(|i| {
                    let letter = tensor.to_floats()[97 * 8 + i];
                    tensor.set(256 * 8 + i, |_| 10.0 * letter);
                }),
                _ if name.ends_with("o.weight") || name.ends_with("down.weight") => {
                    tensor.bytes.fill(0)
                }
                _ => (),
            }
        }
    });
    let ended = summary(model.path(), &["--prompt", "a"]);
    assert_eq!((&ended["stop"], &ended["ids"]), (&json!("end"), &json!([])));
}

#[test]
fn a_missing_tokenizer_comes_with_the_remedy() {
    let model = byte_model(300, |_| ());
    let path = model.path().join("tokenizer.json").display().to_string();
    generate(model.path(), &["--prompt", "x"]).failed(&[
        &path,
        "is missing",
        "--tokenizer FILE",
        "--tokenizer bytes",
    ]);
    generate(model.path(), &["--prompt", "x", "--tokenizer", "nowhere.json"])
        .failed(&["nowhere.json", "No such file"]);
}

#[test]
fn a_tokenizer_may_be_named() {
    let ids = |directory: &Path, options: &[&str]| {
        let fixed = ["--prompt", "x", "-n", "0"];
        summary(directory, &[&fixed, options].concat())["prompt_ids"].clone()
    };
    let model = byte_model(300, |_| ());
    assert_eq!(ids(model.path(), &["--tokenizer", "bytes"]), json!([120]));
    let named = stories().join("tokenizer.json").display().to_string();
    let copy = copy_of(&stories());
    fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    assert_eq!(ids(copy.path(), &["--tokenizer", &named]), ids(&stories(), &[]));
}

#[test]
fn a_missing_model_is_named() {
    generate(Path::new("nowhere"), &["--prompt", "x"])
        .failed(&["nowhere/config.json", "No such file"]);
}

#[test]
fn a_closed_pipe_ends_the_text_quietly() {
    for options in [&["--prompt", "", "-n", "50"][..], &["--prompt", "", "-n", "50", "--json"]] {
        let quiet = run(into_closed_pipe(command("generate").arg(stories()).args(options)));
        assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{options:?}");
    }
}

#[test]
fn the_prompt_is_not_printed_again() {
    for prompt in ["hi 🎉", "漢字"] {
        let text = summary(&stories(), &["--prompt", prompt, "-n", "4"])["text"].clone();
        let last = prompt.chars().last().unwrap();
        assert!(!text.as_str().unwrap().starts_with(last), "{prompt}: {text}");
    }
}

#[test]
fn a_model_of_256_bytes_has_no_begin_token() {
    let model = byte_model(256, |_| ());
    generate(model.path(), &["--prompt", ""]).refused(2, &["the prompt is empty", "give a prompt"]);
}

#[test]
fn a_model_of_a_generated_task_says_that_it_has_no_text() {
    let run = TempDir::new().unwrap();
    let model = byte_model(300, |_| ());
    let inside = run.path().join("model");
    fs::create_dir(&inside).unwrap();
    for name in [CONFIG, WEIGHTS] {
        fs::copy(model.path().join(name), inside.join(name)).unwrap();
    }
    fs::write(run.path().join("config.toml"), "[data.generated]\ntask = \"khop\"\n").unwrap();
    for path in [run.path(), &inside] {
        for named in [&[][..], &["--tokenizer", "bytes"]] {
            let said = generate(path, &[&["--prompt", "hi"], named].concat());
            said.refused(1, &["trained on the generated task khop", "no text", "hadal diagnose"]);
            assert!(!said.stderr.contains("copy the model's tokenizer"), "{}", said.stderr);
        }
        chat(path).refused(1, &["trained on the generated task khop", "no text"]);
    }
}

#[test]
fn what_is_no_model_is_told_what_it_is() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("config.toml"), "[model]\n").unwrap();
    for (path, what) in [
        (file("story.txt", "Once é".as_bytes()), "a text file"),
        (file("Cargo.toml", b"[package]\n"), "a text file"),
        (file("run.toml", b"[model]\nd_model = 1\n"), "the settings of a run"),
        (file("suite.toml", b"[model]\n[[variant]]\n"), "the settings of a suite"),
        (file("a.safetensors", b"\x08\0\0\0\0\0\0\0{}"), "weights alone"),
        (file("config.json", b"{}"), "one file of a model"),
        (file("model.bin", b"GGUF\x03\0\0\0"), "GGUF file under another name"),
        (file("data.bin", b"\xff\0\x01"), "does not know"),
        (file("empty", b""), "an empty file"),
        (run, "no finished model"),
    ] {
        let said = generate(&path, &["--prompt", "x"]);
        let name = path.display().to_string();
        for said in [said, chat(&path)] {
            said.refused(1, &[&name, what, "A model is a directory", ".gguf"]);
        }
    }
}

#[test]
fn bytes_for_a_model_of_other_tokens_are_refused() {
    let bytes = ["--prompt", "x", "--tokenizer", "bytes"];
    let reasons = ["does not fit", "512 tokens", "SentencePiece's BPE", "leave --tokenizer out"];
    generate(&stories(), &bytes).refused(2, &reasons);
    let copy = copy_of(&stories());
    fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    // Nothing says that these are no bytes: 512 is what 257 may be padded to.
    generate(copy.path(), &[&bytes[..], &["-n", "1"]].concat()).succeeded();
    let model = byte_model(2000, |_| ());
    generate(model.path(), &bytes).refused(2, &["does not fit", "--tokenizer FILE"]);
    // A tokenizer of other tokens may be meant.
    let named = stories().join("tokenizer.json").display().to_string();
    let said = generate(model.path(), &["--prompt", "x", "-n", "1", "--tokenizer", &named]);
    let said = said.succeeded().stderr;
    assert!(said.contains("warning: ") && said.contains("512 tokens"), "{said}");
}
