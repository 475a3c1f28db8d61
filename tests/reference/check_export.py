"""Loads what `hadal export` and `hadal prune apply` write in transformers and in llama.cpp, and compares logits.

    python check_export.py path/to/hadal [a model.gguf to cut]

Needs torch, transformers and xllamacpp (llama.cpp's server as a wheel). Truth is a trace: `reference.py`, an
independent implementation in f64 that `hadal parity` holds our models to. Prints one line for each comparison and
fails if one is off.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import generate
import reference

HERE = Path(__file__).resolve().parent
STORIES = HERE.parent / "models" / "stories260K"
TOLERANCE = 1e-4


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def model(out, **changes):
    """A random model of ours with its trace."""
    cfg = json.loads((HERE.parent / "golden" / "base-gqa-swiglu-qknorm-untied" / "config.json").read_text())
    cfg.update(changes)
    rng = np.random.default_rng(7)
    params = generate.draw(cfg, rng)
    ids = rng.integers(0, cfg["vocab_size"], (2, 17))
    traced = reference.trace(cfg, params, ids, np.roll(ids, -1, 1))
    generate.write(out, cfg, params, traced)
    return out


def compare(name, found, expected, tolerance=TOLERANCE):
    worst = np.abs(found - expected).max()
    print(f"{name:44} largest difference {worst:.2e} of {np.abs(expected).max():.2e}")
    if not worst <= tolerance * max(1.0, np.abs(expected).max()):
        raise SystemExit(f"{name} is off")


def transformers_logits(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def check_transformers(hadal, place):
    cases = {
        "prenorm": dict(qk_norm=False, residual={"kind": "prenorm"}),
        "prenorm tied": dict(qk_norm=False, tie_embeddings=True, residual={"kind": "prenorm"}),
        "prenorm with qk_norm": dict(qk_norm=True, residual={"kind": "prenorm"}),
        "lns": dict(qk_norm=False, n_layers=4, residual={"kind": "lns"}),
        "lns with qk_norm": dict(qk_norm=True, n_layers=4, residual={"kind": "lns"}),
    }
    for name, changes in cases.items():
        source = model(place / name.replace(" ", "-"), **changes)
        run(hadal, "parity", source)
        out = place / f"{source.name}-hf"
        run(hadal, "export", source, "--out", out, "--format", "hf")
        trace = load_file(source / "trace.safetensors")
        compare(f"transformers: {name}", transformers_logits(out, trace["input_ids"]), trace["logits"])


def check_stories(hadal, place):
    text = "Once upon a time, there was a little girl"
    for parts in ["2", "1,3", "2,attn:1,mlp:3"]:
        out = place / f"stories-{parts.replace(':', '')}"
        run(hadal, "prune", "apply", STORIES, "--blocks", parts, "--out", out)
        report = json.loads(run(hadal, "prune", "check", out, "--original", STORIES, "--json"))
        assert report["passed"] and report["logits"]["different"] == 0
        again = place / f"{out.name}-exported"
        run(hadal, "export", out, "--out", again, "--format", "hf")
        tokenizer = AutoTokenizer.from_pretrained(again)
        ids = [tokenizer(text)["input_ids"]]
        compare(f"transformers: stories without {parts}", transformers_logits(again, ids), transformers_logits(out, ids))
        written = AutoModelForCausalLM.from_pretrained(out).generate(torch.tensor(ids), max_new_tokens=24, do_sample=False)
        ours = run(hadal, "generate", STORIES, "--skip-blocks", parts, "--prompt", text, "-n", 24).strip()
        theirs = tokenizer.decode(written[0][len(ids[0]):]).strip()
        print(f"  transformers and ours write the same: {theirs == ours}")
        assert theirs == ours, (theirs, ours)


def llama_cpp(path, context):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.warmup = False
    return xllamacpp.Server(params)


def probabilities(server, ids, count):
    """llama.cpp's log-probabilities of the likeliest next tokens."""
    answer = server.handle_completions(
        {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": count, "n_probs": count, "cache_prompt": False}
    )
    if "choices" not in answer:
        raise SystemExit(answer)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return {entry["id"]: entry["logprob"] for entry in top}


def check_llama_cpp(hadal, place):
    for kind, tolerance in [("f32", 2e-3), ("f16", 2e-2), ("q8_0", 2e-1)]:
        cut = place / "stories-2"
        path = place / f"stories-{kind}.gguf"
        run(hadal, "export", cut, "--out", path, "--format", "gguf", "--type", kind)
        ids = AutoTokenizer.from_pretrained(place / "stories-2-exported")("Once upon a time, there was a")["input_ids"]
        expected = torch.log_softmax(torch.tensor(transformers_logits(cut, [ids])[0, -1]), -1).numpy()
        found = probabilities(llama_cpp(path, 256), ids, 20)
        keys = sorted(found)
        compare(f"llama.cpp: stories without 2, {kind}", np.array([found[k] for k in keys]), expected[keys], tolerance)
    source = model(place / "bytes", vocab_size=257, qk_norm=True, n_layers=4, residual={"kind": "lns"})
    path = place / "bytes.gguf"
    run(hadal, "export", source, "--out", path, "--format", "gguf")
    trace = load_file(source / "trace.safetensors")
    expected = torch.log_softmax(torch.tensor(trace["logits"][0, -1]).float(), -1).numpy()
    found = probabilities(llama_cpp(path, 64), trace["input_ids"][0].tolist(), 20)
    keys = sorted(found)
    compare("llama.cpp: lns with qk_norm, bytes", np.array([found[k] for k in keys]), expected[keys], 2e-3)


def check_cut_gguf(hadal, place, path):
    out = place / "cut"
    run(hadal, "prune", "apply", path, "--blocks", "10,12,mlp:20", "--out", out)
    server = llama_cpp(out / Path(path).name, 256)
    answer = server.handle_completions({"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0})
    print(f"llama.cpp: {Path(path).name} without 10,12,mlp:20 writes {answer['choices'][0]['text']!r}")


if __name__ == "__main__":
    hadal = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        check_transformers(hadal, place)
        check_stories(hadal, place)
        check_llama_cpp(hadal, place)
        if len(sys.argv) > 2:
            check_cut_gguf(hadal, place, sys.argv[2])
