"""Loads what `hadal export` and `hadal prune apply` write in transformers and in llama.cpp, and compares logits.

    python check_export.py path/to/hadal [a model.gguf to cut]

Needs torch, transformers and xllamacpp (llama.cpp's server as a wheel). Truth are the traces of independent
implementations (tests/golden, tests/golden-ours), logits of transformers (tests/golden-hf), and, for what has neither,
`hadal parity` on the logits that the other tool computed. Prints one line for each comparison and fails if one is off.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TESTS = Path(__file__).resolve().parent.parent
STORIES = TESTS / "models" / "stories260K"
CODE = TESTS.parent / "crates" / "model" / "src" / "export" / "modeling_hadal.py"
TOLERANCE = 1e-4
# Of log-probabilities, llama.cpp with f32 everywhere.
LLAMA_CPP = 1e-3


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def export(hadal, source, out, kind="f32"):
    shape = "gguf" if out.suffix == ".gguf" else "hf"
    return json.loads(run(hadal, "export", source, "--out", out, "--format", shape, "--type", kind, "--json"))


def compare(name, found, expected, tolerance=TOLERANCE):
    worst = np.abs(found - expected).max()
    print(f"{name:76} largest difference {worst:.1e} of {np.abs(expected).max():.1e}", flush=True)
    if not worst <= tolerance * max(1.0, np.abs(expected).max()):
        raise SystemExit(f"{name} is off")


def loaded(directory):
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", trust_remote_code=True
    )


def logits(directory, ids):
    with torch.no_grad():
        return loaded(directory)(torch.tensor(np.asarray(ids)).long()).logits.numpy()


def check_families(hadal, place):
    """Models of transformers, through hadal, in transformers again; and in llama.cpp, where it has them."""
    for golden in sorted((TESTS / "golden-hf").iterdir()):
        expected = load_file(golden / "logits.safetensors")
        ids, known = expected["input_ids"][None], expected["logits"][None]
        out = place / f"{golden.name}-hf"
        name = export(hadal, golden, out)["architecture"]
        compare(f"transformers: {golden.name} as {name}", logits(out, ids), known)

        source = shutil.copytree(golden, place / golden.name)
        letters = {chr(0x21 + i): i for i in range(known.shape[-1])}
        steps = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        model = {"type": "BPE", "vocab": letters, "merges": []}
        tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": steps, "decoder": steps, "model": model}
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
        check_llama_cpp(hadal, golden.name, source, ids, known)


def check_llama_cpp(hadal, name, source, ids, expected):
    """The model in llama.cpp, or why it cannot be there."""
    path = source.with_suffix(".gguf")
    words = [hadal, "export", source, "--out", path, "--format", "gguf", "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode == 2:
        print(f"llama.cpp: {name} is refused: {done.stderr.strip()}")
        return
    architecture = json.loads(done.stdout)["architecture"]
    compare_llama_cpp(f"llama.cpp: {name} as {architecture}", path, [row.tolist() for row in ids], expected)


def check_policies(hadal, place):
    """Every golden of ours: with the model's own code, or as one of the families."""
    for golden in sorted([*(TESTS / "golden").iterdir(), *(TESTS / "golden-ours").iterdir()]):
        out = place / f"policy-{golden.name}"
        name = export(hadal, golden, out)["architecture"]
        trace = load_file(golden / "trace.safetensors")
        compare(f"transformers: {golden.name} as {name}", logits(out, trace["input_ids"]), trace["logits"])
        if name == "HadalForCausalLM":
            check_cache(out, trace["input_ids"][:, :5])


def check_cache(directory, ids):
    """What is written does not depend on a cache, nor on padding."""
    model, ids = loaded(directory), torch.tensor(ids).long()
    write = lambda cached: model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=cached)
    assert torch.equal(write(True), write(False)), f"{directory}: a cache changes what is written"
    padded, mask = (torch.nn.functional.pad(x, (2, 0)) for x in (ids, torch.ones_like(ids)))
    with torch.no_grad():
        difference = (model(padded, attention_mask=mask).logits[:, 2:] - model(ids).logits).abs().max()
    assert difference < TOLERANCE, f"{directory}: padding changes logits by {difference}"


def random_model(out, cfg):
    spec = importlib.util.spec_from_file_location("modeling_hadal", CODE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(7)
    draw = lambda name, shape: rng.normal(1.0 if "norm" in name else 0.0, 0.3, shape).astype(np.float32)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(cfg))
    save_file({name: draw(name, shape) for name, shape in module.shapes(cfg).items()}, out / "model.safetensors")
    return out


def check_the_rest(hadal, place):
    """What no golden has: transformers computes logits from the export, and `hadal parity` says whether they are ours."""
    base = json.loads((TESTS / "golden" / "base-gqa-swiglu-qknorm-untied" / "config.json").read_text())
    by_kind = {"attention": 0.3, "mlp": 0.2}
    yarn = dict(kind="yarn", factor=4.0, original_max_seq_len=8, beta_fast=16.0, beta_slow=2.0,
                attention_factor=1.2, truncate=False)  # fmt: skip
    divided = dict(kind="divided", divisors=[1.0 + i / 2 for i in range(base["head_dim"] // 2)])
    llama3 = dict(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=16)
    window = dict(size=3, blocks=[1])
    mgr = lambda **more: dict(residual={"kind": "mgr", "streams": 3, "gate": "competitive", **more})
    nag = lambda **more: dict(residual={"kind": "nag", "directions": 4, **more})
    gr = lambda **more: dict(residual={"kind": "gr", "streams": 3, "rank": 4, **more})
    ddl = lambda **more: dict(residual={"kind": "ddl", "channels": 2, **more})
    cases = {
        "lns": dict(n_layers=4, residual={"kind": "lns"}),
        "lns without norms of heads": dict(qk_norm=False, n_layers=4, residual={"kind": "lns"}),
        "windows and MLP biases": dict(sliding_window=window, mlp_bias=True, attention_bias="all"),
        "q, k and v biases with MLP biases": dict(qk_norm=False, mlp_bias=True, attention_bias="qkv"),
        "q, k and v biases with norms of heads": dict(attention_bias="qkv"),
        "windows by block without biases": dict(qk_norm=False, sliding_window=window),
        "divided frequencies": dict(qk_norm=False, rope_scaling=divided),
        "Mixture-of-Depths": dict(n_layers=4, residual={"kind": "prenorm", "capacity": 0.5}),
        "mgr, biases, yarn, windows": mgr() | dict(attention_bias="all", rope_scaling=yarn, sliding_window=window),
        "mgr, tied, llama3, relu2": mgr() | dict(tie_embeddings=True, rope_scaling=llama3, mlp="relu2"),
        "mgr, skipping": mgr(skip_threshold=0.4, skip_shrink=0.5),
        "mgr, skipping, keys dropped": mgr(skip_threshold=by_kind, skip_kv="drop"),
        "nag, divided": nag() | dict(rope_scaling=divided),
        "nag, dynamic": nag() | dict(rope_scaling=dict(kind="dynamic", factor=2.0, original_max_seq_len=6)),
        "nag, skipping by sub-layer, shrunk": nag(skip_threshold=[0.1, 0.2] * base["n_layers"], skip_shrink=1.0),
        "nag, skipping, keys dropped": nag(skip_threshold=0.15, skip_kv="drop"),
        "gr, skipping, shrunk": gr(skip_threshold=1.3, skip_shrink=0.5) | dict(mlp="relu2"),
        "gr, skipping, keys dropped": gr(skip_threshold=by_kind | {"attention": 1.2}, skip_kv="drop"),
        "ddl, skipping, shrunk": ddl(skip_threshold=0.8, skip_shrink=1.0),
        "ddl, one linear channel, keys dropped": ddl(skip_threshold=0.9, skip_kv="drop", channels=1, target="linear"),
    }
    ids = np.random.default_rng(3).integers(0, 256, (2, 13)).astype(np.int32)
    for number, (name, changes) in enumerate(cases.items()):
        cfg = base | dict(vocab_size=257, residual={"kind": "prenorm"}) | changes
        source = random_model(place / f"rest-{number}", cfg)
        out = place / f"rest-{number}-hf"
        architecture = export(hadal, source, out)["architecture"]
        found = logits(out, ids)
        for directory in (source, out):
            # The exported directory is a model of ours, too.
            save_file({"input_ids": ids, "logits": found}, directory / "trace.safetensors")
            run(hadal, "parity", directory, "--tolerance", TOLERANCE)
        # Dynamic frequencies change with the length of a pass, so a cache holds older ones.
        if architecture == "HadalForCausalLM" and "dynamic" not in name:
            check_cache(out, ids[:, :5])
        print(f"transformers and hadal agree to {TOLERANCE}: {name} as {architecture}", flush=True)
        check_llama_cpp(hadal, name, source, ids, found)


def check_stories(hadal, place):
    text = "Once upon a time, there was a little girl"
    for parts in ["2", "1,3", "2,attn:1,mlp:3"]:
        out = place / f"stories-{parts.replace(':', '')}"
        run(hadal, "prune", "apply", STORIES, "--blocks", parts, "--out", out)
        report = json.loads(run(hadal, "prune", "check", out, "--original", STORIES, "--json"))
        assert report["passed"] and report["logits"]["different"] == 0
        again = place / f"{out.name}-exported"
        export(hadal, out, again)
        tokenizer = AutoTokenizer.from_pretrained(again)
        ids = [tokenizer(text)["input_ids"]]
        compare(f"transformers: stories without {parts}", logits(again, ids), logits(out, ids))
        written = loaded(out).generate(torch.tensor(ids), max_new_tokens=24, do_sample=False)
        ours = run(hadal, "generate", STORIES, "--skip-blocks", parts, "--prompt", text, "-n", 24).strip()
        theirs = tokenizer.decode(written[0][len(ids[0]) :]).strip()
        print(f"  transformers and ours write the same: {theirs == ours}")
        assert theirs == ours, (theirs, ours)
    ids = AutoTokenizer.from_pretrained(place / "stories-2-exported")(text)["input_ids"]
    expected = logits(place / "stories-2", [ids])
    for kind, tolerance in [("f32", LLAMA_CPP), ("f16", 1e-2), ("q8_0", 5e-2)]:
        path = place / f"stories-{kind}.gguf"
        export(hadal, place / "stories-2", path, kind)
        # The file's own numbers: what is left is how llama.cpp computes with them, activations in f16 and 8 bits.
        export(hadal, path, place / f"stories-{kind}")
        stored = logits(place / f"stories-{kind}", [ids])
        print(f"  {kind} changes logits by {np.abs(stored - expected).max():.1e}")
        compare_llama_cpp(f"llama.cpp: stories without 2, {kind}", path, [ids], stored, tolerance)


def llama_cpp(path, context=256):
    """llama.cpp with keys and values in f32 and without flash attention: both default to f16 inside."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def probabilities(server, ids, count=20):
    """llama.cpp's log-probabilities of the likeliest next tokens."""
    answer = server.handle_completions(
        {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": count, "n_probs": count, "cache_prompt": False}
    )
    if "choices" not in answer:
        raise SystemExit(answer)
    said = answer["choices"][0]["logprobs"]
    # A server that ends the text at once says nothing about it.
    top = said["content"][0]["top_logprobs"] if said else []
    return {entry["id"]: entry["logprob"] for entry in top}


def compare_llama_cpp(name, path, rows, expected, tolerance=LLAMA_CPP):
    """The 20 likeliest tokens after a third, two thirds and all of each text."""
    server, found, wanted = llama_cpp(path), [], []
    known = torch.log_softmax(torch.tensor(expected), -1).numpy()
    for row, ids in enumerate(rows):
        for length in {len(ids) // 3, 2 * len(ids) // 3, len(ids)}:
            top = probabilities(server, ids[:length])
            found += top.values()
            wanted += [known[row, length - 1, token] for token in top]
    assert len(found) >= 20, f"{name}: the server said nothing"
    compare(name, np.array(found), np.array(wanted), tolerance)


def check_cut_gguf(hadal, place, path):
    """Whole blocks of a quantised file are cut: as it is, as f32 for llama.cpp, as a directory for transformers."""
    text = "The capital of France is Paris. The three primary colours are red, yellow and blue, and the sky is often"
    out = place / "cut"
    run(hadal, "prune", "apply", path, "--blocks", "10,12", "--out", out)
    cut = out / Path(path).name
    directory, whole = place / "cut-hf", place / "cut-f32.gguf"
    print("as", export(hadal, cut, directory)["architecture"], "and", export(hadal, cut, whole)["architecture"])
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer(text)["input_ids"]
    expected = logits(directory, [ids])
    save_file({"input_ids": np.array([ids], np.int32), "logits": expected}, directory / "trace.safetensors")
    run(hadal, "parity", directory, "--tolerance", TOLERANCE)
    print(f"transformers and hadal agree to {TOLERANCE}: {cut.name} without 10,12")
    compare_llama_cpp(f"llama.cpp: {cut.name} without 10,12, as f32", whole, [ids], expected)
    # llama.cpp multiplies quantised weights with activations that it quantises to 8 bits.
    compare_llama_cpp(f"llama.cpp: {cut.name} without 10,12, as it is", cut, [ids], expected, 0.1)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    print(f"the chat template came along: {chat!r}")
    ours = run(hadal, "generate", cut, "--prompt", text, "-n", 16).strip()
    model = loaded(directory)
    theirs = tokenizer.decode(model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0][len(ids) :])
    print(f"hadal writes {ours!r}\ntransformers  {theirs.strip()!r}")


if __name__ == "__main__":
    hadal = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        check_policies(hadal, place)
        check_the_rest(hadal, place)
        check_families(hadal, place)
        check_stories(hadal, place)
        if len(sys.argv) > 2:
            check_cut_gguf(hadal, place, sys.argv[2])
