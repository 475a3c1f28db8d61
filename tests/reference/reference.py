"""Reference implementation of the hadal model family in float64, for checking others against.

    python reference.py DIR...     recompute every DIR/trace.safetensors and compare

Written for reading beside docs/checkpoints.md, not for speed: whole sequences, no cache. The residual kinds are in
kinds/, one class each.
"""

import json
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from kinds import kind_of
from safetensors.numpy import load_file

jax.config.update("jax_enable_x64", True)

CONFIG_FIELDS = (
    "model_type vocab_size d_model n_layers n_heads n_kv_heads head_dim d_ff mlp rope_theta norm_eps qk_norm "
    "tie_embeddings max_seq_len depth_kv residual"
)
OPTIONAL_FIELDS = {"value_residual": "none fixed learned"}


# ---------------------------------------------------------------- files


def check_config(cfg):
    allowed = {"model_type": "hadal", "mlp": "relu2 swiglu", "depth_kv": "none attention attention+mlp"}
    wrong = [field for field, values in allowed.items() if cfg[field] not in values.split()]
    wrong += set(cfg) - set(OPTIONAL_FIELDS) ^ set(CONFIG_FIELDS.split())
    wrong += [field for field, values in OPTIONAL_FIELDS.items() if cfg.get(field, "none") not in values.split()]
    wrong += kind_of(cfg["residual"]).wrong_settings(cfg["residual"])
    if wrong:
        raise ValueError(f"config fields that are unknown, missing or hold an unknown value: {sorted(wrong)}")
    return cfg


def load(directory):
    """config.json and model.safetensors, the latter in float64."""
    cfg = check_config(json.loads((Path(directory) / "config.json").read_text()))
    params = load_file(Path(directory) / "model.safetensors")
    return cfg, {name: jnp.asarray(value, jnp.float64) for name, value in params.items()}


# ---------------------------------------------------------------- sub-layers


class Run:
    """One forward pass: the config, the parameters, the depth slots left so far, the first values and what sub-layers read."""

    def __init__(self, cfg, params):
        self.cfg, self.params = cfg, params
        self.eps, self.subs = cfg["norm_eps"], range(2 * cfg["n_layers"])
        self.slots, self.gains, self.trace, self.first_values = [], [], {}, None

    def residual(self, l, name):
        return self.params[f"residual.{l}.{name}"]

    def rms(self, x):
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + self.eps)

    def norm(self, l, x):
        return self.rms(x) * self.params[f"layers.{l // 2}.{'mlp' if l % 2 else 'attn'}_norm.weight"]

    def attend_apart(self, l, query, key, value, residual=None):
        """An attention whose queries, keys and values are made of inputs of their own, each with a norm."""
        self.trace |= {f"h.{l}": query, f"h.{l}.k": key, f"h.{l}.v": value}
        if residual is not None:
            self.trace[f"h.{l}.r"] = residual
        k, v = (self.rms(x) * self.residual(l, f"{name}_norm") for x, name in ((key, "k"), (value, "v")))
        return attention(self, l // 2, self.norm(l, query), apart=(k, v))

    def sub(self, l, x, exists=None):
        """Sub-layer l on exactly x: no norm, no carry. Tokens for which `exists` [B, T, 1] is false leave no keys to others."""
        return mlp(self, l // 2, x) if l % 2 else attention(self, l // 2, x, exists)

    def read(self, l, h):
        self.trace[f"h.{l}"] = h
        return h

    def F(self, l, h, exists=None):
        """The branch alone of a sub-layer that normalises what it reads."""
        return self.sub(l, self.norm(l, self.read(l, h)), exists)

    def post(self, l, x, carry=1.0):
        """A sub-layer that normalises the sum instead."""
        return self.norm(l, carry * x + self.sub(l, self.read(l, x)))


def rope(x, theta):
    """x: [B, T, heads, head_dim]; dimension j turns together with j + head_dim/2."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def heads(run, i, name, weight, x):
    """Project to [B, T, heads, head_dim]; name "q" or "k" says which norm to use before RoPE, "v" gets neither."""
    y = x @ run.params[f"layers.{i}.{weight}.weight"].T
    y = y.reshape(*x.shape[:2], -1, run.cfg["head_dim"])
    if name == "v":
        return y
    if run.cfg["qk_norm"]:
        y = run.rms(y) * run.params[f"layers.{i}.attn.{name}_norm.weight"]
    return rope(y, run.cfg["rope_theta"])


def mix_values(run, i, v):
    """The values of a block, with those of the first one mixed in."""
    how = run.cfg.get("value_residual", "none")
    if how == "none" or i == 0:
        run.first_values = v
        return v
    mix = run.params[f"layers.{i}.attn.value_mix"] if how == "learned" else jnp.asarray([0.5, 0.5])
    return mix[0] * run.first_values + mix[1] * v


def attention(run, i, x, exists=None, apart=None):
    """`apart` are inputs of keys and values, where they are not x."""
    cfg, T = run.cfg, x.shape[1]
    of_keys, of_values = apart or (x, x)
    q = heads(run, i, "q", "attn.q", x)
    k = heads(run, i, "k", "attn.k", of_keys)
    v = mix_values(run, i, heads(run, i, "v", "attn.v", of_values))
    group = cfg["n_heads"] // cfg["n_kv_heads"]
    share = lambda y: jnp.repeat(y, group, axis=2)
    scores = jnp.einsum("bthc,bshc->bhts", q, share(k))
    seen = jnp.tril(jnp.ones((T, T), bool))
    if exists is not None:
        seen = seen & (exists.swapaxes(1, 2)[:, None] | jnp.eye(T, dtype=bool))
    scores = jnp.where(seen, scores, -jnp.inf)
    depth = [jnp.einsum("bthc,bthc->bht", q, share(slot_k))[..., None] for slot_k, _ in run.slots]
    weights = jax.nn.softmax(jnp.concatenate([scores, *depth], axis=-1) / math.sqrt(cfg["head_dim"]), axis=-1)
    y = jnp.einsum("bhts,bshc->bthc", weights[..., :T], share(v))
    for j, (_, slot_v) in enumerate(run.slots):
        y += weights[..., T + j].swapaxes(1, 2)[..., None] * share(slot_v)
    if cfg["depth_kv"] != "none":
        run.slots.append((k, v))
    return y.reshape(*x.shape[:2], -1) @ run.params[f"layers.{i}.attn.o.weight"].T


def mlp(run, i, x):
    cfg, weight = run.cfg, lambda name: run.params[f"layers.{i}.mlp.{name}.weight"]
    if cfg["depth_kv"] == "attention+mlp" and i + 1 < cfg["n_layers"]:
        run.slots.append((heads(run, i, "k", "mlp.depth_k", x), heads(run, i, "v", "mlp.depth_v", x)))
    up = x @ weight("up").T
    hidden = jax.nn.relu(up) ** 2 if cfg["mlp"] == "relu2" else jax.nn.silu(x @ weight("gate").T) * up
    return hidden @ weight("down").T


# ---------------------------------------------------------------- model


def forward(run, input_ids):
    """Logits; leaves in run.trace what the trace records of the forward pass."""
    cfg, params = run.cfg, run.params
    kind = kind_of(cfg["residual"])
    out = kind.forward(run, params["embed.weight"][input_ids])
    final = run.rms(out) * params["norm.weight"] if kind.final_norm else out
    logits = kind.logits(run, final @ params["embed.weight" if cfg["tie_embeddings"] else "head.weight"].T)
    run.trace |= {"out": out, "logits": logits}
    return logits


def trace(cfg, params, input_ids, target_ids):
    """Everything trace.safetensors holds, in float64."""

    def loss(params):
        run = Run(cfg, params)
        log_p = jax.nn.log_softmax(forward(run, input_ids), axis=-1)
        return -jnp.take_along_axis(log_p, target_ids[..., None], axis=-1).mean(), run.trace

    (value, seen), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    result = seen | {"input_ids": input_ids, "target_ids": target_ids, "loss": value[None]}
    without = kind_of(cfg["residual"]).without_gradient
    return result | {f"grad.{name}": grad for name, grad in grads.items() if not without or without not in name}


def compare(directory):
    """Largest difference relative to the largest magnitude of its tensor, as (difference, tensor name), worst first."""
    cfg, params = load(directory)
    golden = load_file(Path(directory) / "trace.safetensors")
    mine = trace(cfg, params, jnp.asarray(golden["input_ids"]), jnp.asarray(golden["target_ids"]))
    if set(mine) != set(golden):
        raise ValueError(f"trace names differ: {sorted(set(mine) ^ set(golden))}")
    differences = []
    for name, theirs in golden.items():
        ours = np.asarray(mine[name], np.float64)
        if ours.shape != theirs.shape or not np.isfinite(theirs).all():
            raise ValueError(f"{name}: {theirs.shape} is not {ours.shape}, or holds values that are not finite")
        # Some gradients are zero in exact arithmetic (mixing equal streams, say): their rounding is not worth comparing.
        scale = max(np.abs(ours).max(), 1e-8)
        differences.append((float(np.abs(ours - theirs).max() / scale), name))
    return sorted(differences, reverse=True)


if __name__ == "__main__":
    worst = 0.0
    for directory in sys.argv[1:]:
        differences = compare(directory)
        difference, name = differences[0]
        worst = max(worst, difference)
        print(f"{Path(directory).name:80} {len(differences):4} tensors, worst {difference:.1e} {name}")
    sys.exit(worst > 1e-6)
