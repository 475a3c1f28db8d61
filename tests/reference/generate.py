"""Writes golden directories (config.json, model.safetensors, trace.safetensors) over the whole family.

python generate.py KIND                the directories of this residual kind that tests/golden-ours keeps
python generate.py OUT_DIR             every residual kind in many settings
python generate.py --llama OUT_DIR     small Hugging Face style Llama checkpoints with their logits
"""

import json
import math
import sys
import zlib
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from kinds import KINDS, kind_of
from kinds.kind import ATTENTION, BOTH
from reference import Run, check_config, forward, trace
from safetensors.numpy import save_file

GOLDEN = Path(__file__).resolve().parent.parent / "golden-ours"
# What a case does not fix is drawn from these.
CHOICES = {
    "d_model": [16, 20, 32, 40],
    "n_layers": [1, 2, 3, 4],
    "heads": [
        (4, 4, 4),
        (4, 2, 8),
        (4, 1, 6),
        (3, 3, 8),
        (6, 2, 4),
        (2, 1, 16),
        (5, 5, 8),
        (8, 4, 4),
        (1, 1, 10),
        (3, 1, 12),
    ],
    "d_ff": [24, 33, 48, 56, 64],
    "vocab_size": [29, 37, 41, 53, 64],
    "shape": [(1, 17), (2, 9), (3, 5), (1, 12), (3, 7), (2, 13)],
    "mlp": ["relu2", "swiglu"],
    "qk_norm": [False, True],
    "tie_embeddings": [False, True],
    "norm_eps": [1e-6, 1e-5, 1e-3],
    "rope_theta": [10000.0, 500.0, 500000.0],
    "max_seq_len": [17, 32, 64],
}


def parameter_shapes(cfg):
    """The name and shape of every parameter that a checkpoint with this config holds."""
    V, d, ff = cfg["vocab_size"], cfg["d_model"], cfg["d_ff"]
    q, kv = cfg["n_heads"] * cfg["head_dim"], cfg["n_kv_heads"] * cfg["head_dim"]
    kind = kind_of(cfg["residual"])
    shapes = {"embed.weight": (V, d)}
    if not cfg["tie_embeddings"]:
        shapes["head.weight"] = (V, d)
    if kind.final_norm:
        shapes["norm.weight"] = (d,)
    for i in range(cfg["n_layers"]):
        block = {
            "attn.q": (q, d),
            "attn.k": (kv, d),
            "attn.v": (kv, d),
            "attn.o": (d, q),
            "mlp.up": (ff, d),
            "mlp.down": (d, ff),
        }
        if kind.block_norms:
            block |= {"attn_norm": (d,), "mlp_norm": (d,)}
        if cfg["qk_norm"]:
            block |= {"attn.q_norm": (cfg["head_dim"],), "attn.k_norm": (cfg["head_dim"],)}
        if cfg["mlp"] == "swiglu":
            block["mlp.gate"] = (ff, d)
        if cfg["depth_kv"] == BOTH and i + 1 < cfg["n_layers"]:
            block |= {"mlp.depth_k": (kv, d), "mlp.depth_v": (kv, d)}
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in block.items()}
        if cfg.get("value_residual") == "learned" and i:
            shapes[f"layers.{i}.attn.value_mix"] = (2,)
    return shapes | {f"residual.{name}": shape for name, (shape, _) in kind.parameters(cfg).items()}


def draw(cfg, rng):
    """Random parameters in f32, none of them near an initial value that would hide a term."""
    kind, params = kind_of(cfg["residual"]), {}
    own = kind.parameters(cfg)
    for name, shape in parameter_shapes(cfg).items():
        last = name.removesuffix(".weight").split(".")[-1]
        z = rng.standard_normal(shape)
        if name == "embed.weight":
            value = 0.5 * z
        elif name == "head.weight":
            value = kind.head_values(z)
        elif name.startswith("residual."):
            value = own[name.removeprefix("residual.")][1](z)
        elif last == "value_mix":
            value = 0.5 + 0.3 * z
        elif "norm" in last:
            value = 1 + 0.3 * np.clip(z, -2.5, 2.5)
        else:
            value = z / math.sqrt(shape[1])
        params[name] = value.astype(np.float32)
    return params


def directory_name(cfg, batch, length):
    kind, residual = kind_of(cfg["residual"]), cfg["residual"]
    parts = [kind.kind.replace("_", "-")]
    parts += [kind.label(field, value) for field, value in residual.items() if field != "kind"]
    parts += [
        f"L{cfg['n_layers']}",
        f"d{cfg['d_model']}",
        f"h{cfg['n_heads']}-{cfg['n_kv_heads']}x{cfg['head_dim']}",
        cfg["mlp"],
    ]
    parts += ["qknorm"] * cfg["qk_norm"] + [["untied", "tied"][cfg["tie_embeddings"]]]
    parts += {"none": [], ATTENTION: ["depth"], BOTH: ["depthmlp"]}[cfg["depth_kv"]]
    parts += {"none": [], "fixed": ["value"], "learned": ["valuemix"]}[cfg.get("value_residual", "none")]
    return "-".join([*parts, f"eps{cfg['norm_eps']:.0e}".replace("e-0", "e-"), f"b{batch}t{length}"])


def write(directory, cfg, params, traced):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(cfg, indent=1) + "\n")
    save_file(params, directory / "model.safetensors")
    as_stored = lambda v: np.asarray(v, np.int32 if jnp.issubdtype(v.dtype, jnp.integer) else np.float32)
    save_file({name: as_stored(value) for name, value in traced.items()}, directory / "trace.safetensors")


def as_float64(params):
    return {name: jnp.asarray(value, jnp.float64) for name, value in params.items()}


def generate(out, kind, settings, fixed):
    """Writes the directory of one case and returns a line about it."""
    residual = {"kind": kind.kind} | settings
    # Seeded by the case itself, so that adding a case leaves the others as they are.
    rng = np.random.default_rng(zlib.crc32(json.dumps([residual, fixed]).encode()))
    drawn = {field: options[rng.integers(len(options))] for field, options in CHOICES.items()} | fixed
    marks = [mark for mark in kind.marks if drawn.pop(mark, False)]
    batch, length = drawn.pop("shape")
    n_heads, n_kv_heads, head_dim = drawn.pop("heads")
    cfg = {"model_type": "hadal", "depth_kv": "none", "residual": residual} | drawn
    cfg |= {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    params = draw(cfg, rng)
    input_ids, target_ids = jnp.asarray(rng.integers(cfg["vocab_size"], size=(2, batch, length)), jnp.int32)

    def gains(cfg, params):
        run = Run(cfg, as_float64(params))
        forward(run, input_ids)
        return np.stack([np.abs(g) for g in run.gains])

    kind.settle(cfg, params, marks, gains)
    check_config(cfg)
    traced = trace(cfg, as_float64(params), input_ids, target_ids)
    name = "-".join([directory_name(cfg, batch, length), *marks])
    write(Path(out) / name, cfg, params, traced)
    note = f"  skipped {np.round(traced['skipped'], 2)}" if np.any(traced.get("skipped", 0)) else ""
    return f"{name}  loss {float(traced['loss'][0]):.3f}{note}"


def generate_all(out):
    cases = [(kind, *case) for kind in KINDS.values() for case in kind.cases]
    for index, (kind, settings, fixed, _) in enumerate(cases):
        print(f"{index + 1}/{len(cases)} {generate(out, kind, settings, fixed)}", flush=True)


def generate_kept(kind, out=GOLDEN):
    kept = [(settings, fixed) for settings, fixed, keep in kind.cases if keep]
    if not kept:
        raise SystemExit(f"no case of {kind.kind} in kinds/ says keep=True, so nothing is written")
    for settings, fixed in kept:
        print(Path(out) / generate(out, kind, settings, fixed), flush=True)


# ---------------------------------------------------------------- Hugging Face style Llama

LLAMAS = {
    # name: (hidden, intermediate, blocks, heads, kv heads, head_dim, tied, theta, eps, dtype)
    "llama-tiny-tied": (32, 88, 2, 4, 4, 8, True, 10000.0, 1e-5, np.float32),
    "llama-tiny-untied-gqa": (48, 80, 3, 6, 2, 8, False, 500000.0, 1e-6, np.float32),
    "llama-tiny-bf16-wide-heads": (32, 64, 2, 4, 1, 16, True, 10000.0, 1e-5, ml_dtypes.bfloat16),
    "llama-tiny-f16-untied": (40, 96, 3, 5, 5, 8, False, 10000.0, 1e-5, np.float16),
}
LLAMA_NAMES = {
    "embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm", "attn": "self_attn", "up": "up_proj", "down": "down_proj", "gate": "gate_proj",
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "layers": "model.layers",
}  # fmt: skip


def llama_name(name):
    return ".".join(LLAMA_NAMES.get(part, part) for part in name.split("."))


def from_llama(hf):
    """The config of the same model in our own terms."""
    heads = hf["num_attention_heads"]
    return {
        "model_type": "hadal", "vocab_size": hf["vocab_size"], "d_model": hf["hidden_size"], "n_layers": hf["num_hidden_layers"],
        "n_heads": heads, "n_kv_heads": hf["num_key_value_heads"], "head_dim": hf.get("head_dim", hf["hidden_size"] // heads),
        "d_ff": hf["intermediate_size"], "mlp": "swiglu", "rope_theta": hf["rope_theta"], "norm_eps": hf["rms_norm_eps"],
        "qk_norm": False, "tie_embeddings": hf["tie_word_embeddings"], "max_seq_len": hf["max_position_embeddings"],
        "depth_kv": "none", "residual": {"kind": "prenorm"},
    }  # fmt: skip


def generate_llama(out):
    for name, (d, ff, blocks, heads, kv_heads, head_dim, tied, theta, eps, dtype) in LLAMAS.items():
        hf = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": d, "intermediate_size": ff,
            "num_hidden_layers": blocks, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "hidden_act": "silu", "rms_norm_eps": eps, "rope_theta": theta, "max_position_embeddings": 64,
            "tie_word_embeddings": tied, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": np.dtype(dtype).name,
        }  # fmt: skip
        if dtype == np.float16:
            del hf["head_dim"]  # older checkpoints leave it out: hidden_size / num_attention_heads
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        cfg = check_config(from_llama(hf))
        params = {key: value.astype(dtype) for key, value in draw(cfg, rng).items()}
        input_ids = jnp.asarray(rng.integers(96, size=(2, 11)), jnp.int32)
        run = Run(cfg, {key: jnp.asarray(value, jnp.float64) for key, value in params.items()})
        logits = forward(run, input_ids)
        write(
            Path(out) / name,
            hf,
            {llama_name(key): value for key, value in params.items()},
            {"input_ids": input_ids, "logits": logits},
        )
        print(name, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--llama", out]:
            generate_llama(out)
        case [kind] if kind in KINDS:
            generate_kept(KINDS[kind])
        # A directory's path has a slash, so that a mistyped kind is not one.
        case [out] if "/" in out:
            generate_all(out)
        case _:
            raise SystemExit(f"{__doc__}\nKIND is one of {', '.join(KINDS)}; OUT_DIR has a slash in it, such as ./more.")
