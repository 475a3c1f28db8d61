"""Writes golden directories (config.json, model.safetensors, trace.safetensors) over the whole family.

python generate.py OUT_DIR             every residual kind in many settings
python generate.py --llama OUT_DIR     small Hugging Face style Llama checkpoints with their logits
"""

import itertools
import json
import math
import sys
import zlib
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from reference import NO_FINAL_NORM, Run, check_config, forward, trace

ATTENTION, BOTH = "attention", "attention+mlp"

# (residual, fixed config fields); whatever is not fixed is drawn from CHOICES.
CASES = [
    ({"kind": "prenorm"}, {"n_layers": 1}),
    ({"kind": "prenorm"}, {"n_layers": 6}),
    ({"kind": "prenorm"}, {"heads": (6, 2, 4), "qk_norm": True, "depth_kv": ATTENTION, "n_layers": 3}),
    ({"kind": "prenorm"}, {"heads": (4, 1, 6), "qk_norm": True, "depth_kv": BOTH, "n_layers": 4}),
    ({"kind": "prenorm"}, {"depth_kv": BOTH, "n_layers": 1}),
    ({"kind": "prenorm"}, {"depth_kv": BOTH, "n_layers": 3, "shape": (3, 1), "qk_norm": True}),
    ({"kind": "lns"}, {"n_layers": 5}),
    ({"kind": "lns"}, {"n_layers": 3, "depth_kv": ATTENTION}),
    ({"kind": "lns"}, {"n_layers": 4, "depth_kv": BOTH}),
    ({"kind": "postnorm"}, {"n_layers": 1, "shape": (1, 1)}),
    ({"kind": "postnorm"}, {"n_layers": 4, "depth_kv": BOTH, "qk_norm": True}),
    ({"kind": "postnorm"}, {"n_layers": 3, "depth_kv": ATTENTION}),
    ({"kind": "deepnorm"}, {"n_layers": 5}),
    ({"kind": "deepnorm"}, {"n_layers": 2, "depth_kv": ATTENTION}),
    ({"kind": "deepnorm"}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "mixln", "post_fraction": 0.0}, {"n_layers": 2}),
    ({"kind": "mixln", "post_fraction": 0.25}, {"n_layers": 4}),
    ({"kind": "mixln", "post_fraction": 0.25}, {"n_layers": 6, "depth_kv": ATTENTION}),
    ({"kind": "mixln", "post_fraction": 0.5}, {"n_layers": 5, "depth_kv": BOTH}),
    ({"kind": "mixln", "post_fraction": 1.0}, {"n_layers": 3}),
    ({"kind": "highway", "gate": "vector"}, {}),
    ({"kind": "highway", "gate": "vector"}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "highway", "gate": "scalar"}, {}),
    ({"kind": "highway", "gate": "scalar"}, {"n_layers": 4, "depth_kv": ATTENTION}),
    ({"kind": "denseformer"}, {"n_layers": 1}),
    ({"kind": "denseformer"}, {"n_layers": 5}),
    ({"kind": "denseformer"}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "denseformer"}, {"n_layers": 4, "depth_kv": ATTENTION}),
    ({"kind": "siamese"}, {"n_layers": 1, "shape": (2, 1)}),
    ({"kind": "siamese"}, {"n_layers": 4}),
    ({"kind": "siamese"}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "siamese"}, {"n_layers": 2, "depth_kv": ATTENTION}),
    ({"kind": "hc", "streams": 1, "dynamic": False}, {"n_layers": 2, "shape": (1, 2)}),
    ({"kind": "hc", "streams": 2, "dynamic": False}, {"n_layers": 4}),
    ({"kind": "hc", "streams": 3, "dynamic": False}, {"n_layers": 3, "depth_kv": ATTENTION}),
    ({"kind": "hc", "streams": 5, "dynamic": False}, {"n_layers": 2}),
    ({"kind": "hc", "streams": 1, "dynamic": True}, {"n_layers": 3}),
    ({"kind": "hc", "streams": 2, "dynamic": True}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "hc", "streams": 3, "dynamic": True}, {"n_layers": 1}),
    ({"kind": "hc", "streams": 5, "dynamic": True}, {"n_layers": 4}),
    ({"kind": "mhc", "streams": 1, "sinkhorn_iters": 5}, {"n_layers": 2}),
    ({"kind": "mhc", "streams": 2, "sinkhorn_iters": 1}, {"n_layers": 3}),
    ({"kind": "mhc", "streams": 2, "sinkhorn_iters": 20}, {"n_layers": 1, "shape": (2, 3)}),
    ({"kind": "mhc", "streams": 3, "sinkhorn_iters": 1}, {"n_layers": 4}),
    ({"kind": "mhc", "streams": 3, "sinkhorn_iters": 5}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "mhc", "streams": 3, "sinkhorn_iters": 20}, {"n_layers": 3, "depth_kv": ATTENTION}),
    ({"kind": "mhc_lite", "streams": 1}, {"n_layers": 2}),
    ({"kind": "mhc_lite", "streams": 2}, {"n_layers": 4}),
    ({"kind": "mhc_lite", "streams": 3}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "mhc_lite", "streams": 4}, {"n_layers": 3}),
    ({"kind": "mhc_lite", "streams": 2}, {"n_layers": 3, "depth_kv": ATTENTION}),
    ({"kind": "attnres", "blocks": 0}, {"n_layers": 1}),
    ({"kind": "attnres", "blocks": 0}, {"n_layers": 4, "depth_kv": ATTENTION}),
    ({"kind": "attnres", "blocks": 1}, {"n_layers": 3}),
    ({"kind": "attnres", "blocks": 2}, {"n_layers": 3, "depth_kv": BOTH}),
    ({"kind": "attnres", "blocks": 4}, {"n_layers": 5}),
    ({"kind": "attnres", "blocks": 4}, {"n_layers": 3}),
    ({"kind": "attnres", "blocks": 5}, {"n_layers": 6}),
    ({"kind": "attnres", "blocks": 5}, {"n_layers": 2, "shape": (3, 2)}),
    ({"kind": "mgr", "streams": 1, "gate": "independent"}, {"n_layers": 3}),
    ({"kind": "mgr", "streams": 1, "gate": "competitive"}, {"n_layers": 2}),
    ({"kind": "mgr", "streams": 2, "gate": "independent"}, {"n_layers": 1}),
    ({"kind": "mgr", "streams": 2, "gate": "competitive"}, {"n_layers": 4, "depth_kv": BOTH}),
    ({"kind": "mgr", "streams": 3, "gate": "independent"}, {"n_layers": 5, "depth_kv": ATTENTION}),
    ({"kind": "mgr", "streams": 3, "gate": "competitive"}, {"n_layers": 2}),
    ({"kind": "mgr", "streams": 6, "gate": "independent"}, {"n_layers": 4}),
    ({"kind": "mgr", "streams": 6, "gate": "competitive"}, {"n_layers": 3}),
    ({"kind": "mgr", "streams": 6, "gate": "independent"}, {"n_layers": 2}),
    ({"kind": "mgr", "streams": 7, "gate": "competitive"}, {"n_layers": 3}),
    ({"kind": "nag", "directions": 1}, {"n_layers": 2, "tie_embeddings": True, "shape": (3, 4)}),
    ({"kind": "nag", "directions": 4}, {"n_layers": 4, "tie_embeddings": False}),
    (
        {"kind": "nag", "directions": 32},
        {"n_layers": 3, "tie_embeddings": False, "depth_kv": ATTENTION, "qk_norm": True},
    ),
    (
        {"kind": "nag", "directions": 1, "skip_threshold": None},
        {"n_layers": 3, "tie_embeddings": False, "shape": (2, 9)},
    ),
    (
        {"kind": "nag", "directions": 4, "skip_threshold": None},
        {"n_layers": 4, "tie_embeddings": True, "shape": (1, 17)},
    ),
    (
        {"kind": "nag", "directions": 4, "skip_threshold": None},
        {"n_layers": 3, "depth_kv": BOTH, "qk_norm": True, "shape": (2, 9)},
    ),
    (
        {"kind": "nag", "directions": 32, "skip_threshold": None},
        {"n_layers": 2, "depth_kv": ATTENTION, "shape": (3, 6)},
    ),
    ({"kind": "nag", "directions": 4}, {"n_layers": 2, "shape": (3, 6), "floor": True}),
]
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
    kind = cfg["residual"]["kind"]
    shapes = {"embed.weight": (V, d)}
    if not cfg["tie_embeddings"]:
        shapes["head.weight"] = (V, d)
    if kind not in NO_FINAL_NORM:
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
        if kind != "nag":
            block |= {"attn_norm": (d,), "mlp_norm": (d,)}
        if cfg["qk_norm"]:
            block |= {"attn.q_norm": (cfg["head_dim"],), "attn.k_norm": (cfg["head_dim"],)}
        if cfg["mlp"] == "swiglu":
            block["mlp.gate"] = (ff, d)
        if cfg["depth_kv"] == BOTH and i + 1 < cfg["n_layers"]:
            block |= {"mlp.depth_k": (kv, d), "mlp.depth_v": (kv, d)}
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes | {f"residual.{name}": shape for name, shape in residual_shapes(cfg).items()}


def residual_shapes(cfg):
    d, residual, subs = cfg["d_model"], cfg["residual"], range(2 * cfg["n_layers"])
    kind, n = residual["kind"], residual.get("streams")
    every = lambda ls, shapes: {f"{l}.{name}": shape for l in ls for name, shape in shapes.items()}
    match kind:
        case "denseformer":
            return {f"block.{i}.weights": (i + 1,) for i in range(1, cfg["n_layers"] + 1)}
        case "siamese":
            return every([*subs, "out"], {"post_norm": (d,), "pre_norm": (d,)})
        case "attnres":
            return every([*subs[1:], "out"], {"query": (d,), "key_norm": (d,)})
        case "highway":
            out = d if residual["gate"] == "vector" else 1
            return every(subs, {"gate.weight": (d, d) if out == d else (d,), "gate.bias": (out,)})
        case "mgr":
            biases = n + (residual["gate"] == "competitive")
            gates = every(subs[n - 1 :], {"gate.weight": (d,), "gate.bias": (biases,)})
            return every([*subs[1:], "out"], {"pool.weight": (d,)}) | gates
        case "hc":
            dynamic = {
                "norm": (d,),
                "pre_weight": (d,),
                "res_weight": (d, n),
                "post_weight": (d,),
                "mix_scale": (1,),
                "post_scale": (1,),
            }
            return every(subs, {"pre": (n,), "res": (n, n), "post": (n,)} | (dynamic if residual["dynamic"] else {}))
        case "mhc" | "mhc_lite":
            widths = {"pre": n, "post": n, "res": n * n if kind == "mhc" else math.factorial(n)}
            return {
                f"{l}.{name}_{part}": shape
                for l, (name, m) in itertools.product(subs, widths.items())
                for part, shape in {"weight": (n * d, m), "bias": (m,), "scale": (1,)}.items()
            }
        case "nag":
            C = residual["directions"]
            each = {"alpha": (1,), "directions": (C, d), "bias": (C,), "mix": (C,), "sharpness": (1,)}
            return every(subs, each) | {"log_gain": (1,)}
    return {}


def draw(cfg, rng):
    """Random parameters in f32, none of them near an initial value that would hide a term."""
    kind, params = cfg["residual"]["kind"], {}
    for name, shape in parameter_shapes(cfg).items():
        last = name.removesuffix(".weight").split(".")[-1]
        z = rng.standard_normal(shape)
        if name == "embed.weight":
            value = 0.5 * z
        elif name == "head.weight":
            value = 0.9 * z if kind == "nag" else 2 * z / math.sqrt(shape[1])
        elif name.startswith("residual."):
            value = residual_values(kind, last, z)
        elif "norm" in last:
            value = 1 + 0.3 * np.clip(z, -2.5, 2.5)
        else:
            value = z / math.sqrt(shape[1])
        params[name] = value.astype(np.float32)
    return params


def residual_values(kind, last, z):
    gain = 1 + 0.3 * np.clip(z, -2.5, 2.5)
    match kind, last:
        case "siamese" | "attnres" | "hc", "post_norm" | "pre_norm" | "key_norm" | "norm":
            return gain
        case "attnres", "query":
            return 0.4 * z
        case "highway" | "mgr", "bias":
            return -0.5 + 0.5 * z
        case "highway" | "mgr", "gate" | "pool":
            return z if z.ndim == 1 else z / math.sqrt(z.shape[1])
        case "denseformer", _:
            return 0.4 + 0.3 * z
        case "hc", "pre" | "post":
            return 0.6 + 0.3 * z
        case "hc", "res":
            return 0.5 * np.eye(len(z)) + 0.3 * z
        case "hc", "mix_scale" | "post_scale":
            return 0.4 * gain
        case "hc", _:
            return 0.3 * z
        case "mhc" | "mhc_lite", "pre_weight" | "post_weight" | "res_weight":
            return z / math.sqrt(len(z))
        case "mhc" | "mhc_lite", "pre_scale" | "post_scale" | "res_scale":
            return gain
        case "mhc" | "mhc_lite", _:
            return 0.5 * z
        case "nag", "alpha":
            return np.sign(z) * (0.5 + 0.06 * np.abs(z))
        case "nag", "sharpness":
            return 0.5 + 0.12 * z
        case "nag", "directions":
            return z / math.sqrt(z.shape[1])
        case "nag", _:
            return 0.4 * z
    raise ValueError(f"no values for {kind} {last}")


def gains(cfg, params, input_ids):
    run = Run(cfg, {name: jnp.asarray(value, jnp.float64) for name, value in params.items()})
    forward(run, input_ids)
    return np.stack([np.abs(g) for g in run.gains])


def choose_threshold(cfg, params, input_ids):
    """The threshold that splits the tokens at the most sub-layers, then the one that the gains stay furthest away from."""
    best = (0, 0.0, None)
    for tau in np.unique(
        gains(cfg | {"residual": cfg["residual"] | {"skip_threshold": 0.0}}, params, input_ids).round(3)
    ):
        seen = gains(cfg | {"residual": cfg["residual"] | {"skip_threshold": tau}}, params, input_ids)
        share, margin = (seen < tau).mean(axis=(1, 2, 3)), np.abs(seen - tau).min()
        if 0.2 <= share.mean() <= 0.6 and margin > 2e-4:
            best = max(best, (int(((share > 0) & (share < 1)).sum()), float(margin), float(tau)))
    return best[-1]


def push_to_floor(cfg, params, input_ids):
    """Moves the gate of sub-layer 1 to where S meets its floor of 1e-6 for some tokens; a small power keeps g visible."""
    params["residual.1.bias"] -= np.float32(14.9)
    params["residual.1.sharpness"][:] = -2.2
    alpha, power = np.abs(params["residual.1.alpha"]), np.log1p(np.exp(-2.2))
    S = (gains(cfg, params, input_ids)[1] / alpha) ** (1 / power)
    floored = S < 1.001e-6
    assert 0.2 < floored.mean() < 0.8 and S[~floored].min() > 1.02e-6, (floored.mean(), S.min())


def directory_name(cfg, batch, length):
    residual = dict(cfg["residual"])
    parts = [residual.pop("kind").replace("_", "-")]
    short = {
        "streams": "n",
        "blocks": "N",
        "directions": "C",
        "sinkhorn_iters": "t",
        "post_fraction": "p",
        "skip_threshold": "tau",
    }
    for field, value in residual.items():
        if field == "dynamic":
            parts.append("dynamic" if value else "static")
        else:
            parts.append(f"{short.get(field, '')}{value}")
    parts += [
        f"L{cfg['n_layers']}",
        f"d{cfg['d_model']}",
        f"h{cfg['n_heads']}-{cfg['n_kv_heads']}x{cfg['head_dim']}",
        cfg["mlp"],
    ]
    parts += ["qknorm"] * cfg["qk_norm"] + [["untied", "tied"][cfg["tie_embeddings"]]]
    parts += {"none": [], ATTENTION: ["depth"], BOTH: ["depthmlp"]}[cfg["depth_kv"]]
    return "-".join([*parts, f"eps{cfg['norm_eps']:.0e}".replace("e-0", "e-"), f"b{batch}t{length}"])


def write(directory, cfg, params, traced):
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(cfg, indent=1) + "\n")
    save_file(params, directory / "model.safetensors")
    as_stored = lambda v: np.asarray(v, np.int32 if jnp.issubdtype(v.dtype, jnp.integer) else np.float32)
    save_file({name: as_stored(value) for name, value in traced.items()}, directory / "trace.safetensors")


def generate(out):
    for index, (residual, fixed) in enumerate(CASES):
        # Seeded by the case itself, so that adding a case leaves the others as they are.
        rng = np.random.default_rng(zlib.crc32(json.dumps([residual, fixed]).encode()))
        drawn = {field: options[rng.integers(len(options))] for field, options in CHOICES.items()} | fixed
        floor = drawn.pop("floor", False)
        batch, length = drawn.pop("shape")
        n_heads, n_kv_heads, head_dim = drawn.pop("heads")
        cfg = {"model_type": "hadal", "depth_kv": "none", "residual": dict(residual)} | drawn
        cfg |= {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        params = draw(cfg, rng)
        input_ids, target_ids = jnp.asarray(rng.integers(cfg["vocab_size"], size=(2, batch, length)), jnp.int32)
        if floor:
            push_to_floor(cfg, params, input_ids)
        if "skip_threshold" in residual:
            cfg["residual"]["skip_threshold"] = choose_threshold(cfg, params, input_ids)
        check_config(cfg)
        traced = trace(
            cfg, {name: jnp.asarray(value, jnp.float64) for name, value in params.items()}, input_ids, target_ids
        )
        name = directory_name(cfg, batch, length) + "-floor" * floor
        write(Path(out) / name, cfg, params, traced)
        note = f"  skipped {np.round(traced['skipped'], 2)}" if "skip_threshold" in residual else ""
        print(f"{index + 1}/{len(CASES)} {name}  loss {float(traced['loss'][0]):.3f}{note}", flush=True)


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
    generate_llama(sys.argv[2]) if sys.argv[1] == "--llama" else generate(sys.argv[1])
