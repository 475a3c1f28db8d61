"""Reference implementation of the hadal model family in float64, for checking others against.

    python reference.py DIR...     recompute every DIR/trace.safetensors and compare

Written for reading beside docs/checkpoints.md, not for speed: whole sequences, no cache, one function per residual kind.
"""

import itertools
import json
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

jax.config.update("jax_enable_x64", True)

CONFIG_FIELDS = (
    "model_type vocab_size d_model n_layers n_heads n_kv_heads head_dim d_ff mlp rope_theta norm_eps qk_norm "
    "tie_embeddings max_seq_len depth_kv residual"
)
RESIDUAL_FIELDS = dict(
    prenorm="", lns="", postnorm="", deepnorm="", mixln="post_fraction", highway="gate", denseformer="", siamese="",
    hc="streams dynamic", mhc="streams sinkhorn_iters", mhc_lite="streams", attnres="blocks", mgr="streams gate",
    nag="directions",
)  # fmt: skip
NO_FINAL_NORM = ("postnorm", "deepnorm", "nag")


# ---------------------------------------------------------------- files


def check_config(cfg):
    residual = cfg["residual"]
    kind = residual["kind"]
    allowed = {"model_type": "hadal", "mlp": "relu2 swiglu", "depth_kv": "none attention attention+mlp"}
    gates = {"highway": "vector scalar", "mgr": "independent competitive"}.get(kind, "")
    optional = {"skip_threshold"} if kind == "nag" else set()
    wrong = [field for field, values in allowed.items() if cfg[field] not in values.split()]
    wrong += set(cfg) ^ set(CONFIG_FIELDS.split())
    wrong += (set(residual) - optional) ^ {"kind", *RESIDUAL_FIELDS[kind].split()}
    wrong += ["gate"] if gates and residual["gate"] not in gates.split() else []
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
    """One forward pass: the config, the parameters, the depth slots left so far and what the sub-layers read."""

    def __init__(self, cfg, params):
        self.cfg, self.params = cfg, params
        self.eps, self.subs = cfg["norm_eps"], range(2 * cfg["n_layers"])
        self.slots, self.gains, self.trace = [], [], {}

    def residual(self, l, name):
        return self.params[f"residual.{l}.{name}"]

    def rms(self, x):
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + self.eps)

    def norm(self, l, x):
        return self.rms(x) * self.params[f"layers.{l // 2}.{'mlp' if l % 2 else 'attn'}_norm.weight"]

    def sub(self, l, x):
        """Sub-layer l on exactly x: no norm, no skip."""
        return (mlp if l % 2 else attention)(self, l // 2, x)

    def read(self, l, h):
        self.trace[f"h.{l}"] = h
        return h

    def F(self, l, h):
        """The branch alone of a sub-layer that normalises what it reads."""
        return self.sub(l, self.norm(l, self.read(l, h)))

    def post(self, l, x, skip=1.0):
        """A sub-layer that normalises the sum instead."""
        return self.norm(l, skip * x + self.sub(l, self.read(l, x)))


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


def attention(run, i, x):
    cfg, T = run.cfg, x.shape[1]
    q = heads(run, i, "q", "attn.q", x)
    k = heads(run, i, "k", "attn.k", x)
    v = heads(run, i, "v", "attn.v", x)
    group = cfg["n_heads"] // cfg["n_kv_heads"]
    share = lambda y: jnp.repeat(y, group, axis=2)
    scores = jnp.einsum("bthc,bshc->bhts", q, share(k))
    scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores, -jnp.inf)
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


# ---------------------------------------------------------------- residual kinds: embedding -> read-out


def prenorm(run, x):
    for l in run.subs:
        x = x + run.F(l, x)
    return x


def lns(run, x):
    for l in run.subs:
        block = l // 2 + 1
        x = x + run.sub(l, run.norm(l, run.read(l, x)) / math.sqrt(block))
    return x


def postnorm(run, x):
    for l in run.subs:
        x = run.post(l, x)
    return x


def deepnorm(run, x):
    for l in run.subs:
        x = run.post(l, x, skip=len(run.subs) ** 0.25)
    return x


def mixln(run, x):
    post_blocks = math.floor(run.cfg["residual"]["post_fraction"] * run.cfg["n_layers"])
    for l in run.subs:
        x = run.post(l, x) if l // 2 < post_blocks else x + run.F(l, x)
    return x


def highway(run, x):
    for l in run.subs:
        w, b = run.residual(l, "gate.weight"), run.residual(l, "gate.bias")
        if run.cfg["residual"]["gate"] == "vector":
            g = jax.nn.sigmoid(run.rms(x) @ w.T + b)
        else:
            g = jax.nn.sigmoid((run.rms(x) @ w)[..., None] / math.sqrt(x.shape[-1]) + b)
        x = (1 - g) * x + g * run.F(l, x)
    return x


def denseformer(run, x):
    outputs = [x]
    for block in range(1, run.cfg["n_layers"] + 1):
        for l in (2 * block - 2, 2 * block - 1):
            x = x + run.F(l, x)
        outputs.append(x)
        x = sum(a * X for a, X in zip(run.params[f"residual.block.{block}.weights"], outputs, strict=True))
    return x


def siamese(run, x):
    y = x
    normed = lambda l, name, v: run.rms(v) * run.residual(l, name)
    for l in run.subs:
        x = normed(l, "post_norm", x)
        z = run.F(l, x + normed(l, "pre_norm", y))
        x, y = x + z / math.sqrt(2 * (l // 2 + 1)), y + z
    return normed("out", "post_norm", x) + normed("out", "pre_norm", y)


def repeat_streams(run, x):
    """[B, T, d] -> [B, T, n, d], the same in every stream."""
    return jnp.repeat(x[..., None, :], run.cfg["residual"]["streams"], axis=-2)


def hc(run, x):
    H = repeat_streams(run, x)
    for l in run.subs:
        pre, res, post = (run.residual(l, name) for name in ("pre", "res", "post"))
        if run.cfg["residual"]["dynamic"]:
            N = run.rms(H) * run.residual(l, "norm")
            mix_scale, post_scale = run.residual(l, "mix_scale"), run.residual(l, "post_scale")
            pre = pre + mix_scale * jnp.tanh(N @ run.residual(l, "pre_weight"))
            res = res + mix_scale * jnp.tanh(N @ run.residual(l, "res_weight"))
            post = post + post_scale * jnp.tanh(N @ run.residual(l, "post_weight"))
        f = run.F(l, jnp.sum(pre[..., None] * H, axis=-2))
        H = jnp.swapaxes(res, -1, -2) @ H + post[..., None] * f[..., None, :]
    return H.sum(axis=-2)


def sinkhorn(logits, iters):
    M = jnp.exp(logits)
    for _ in range(iters):
        M = M / M.sum(axis=-2, keepdims=True)
        M = M / M.sum(axis=-1, keepdims=True)
    return M


def mhc(run, x):
    H, n = repeat_streams(run, x), run.cfg["residual"]["streams"]
    for l in run.subs:
        v = run.rms(H.reshape(*H.shape[:-2], -1))
        lin = {
            k: run.residual(l, f"{k}_scale") * (v @ run.residual(l, f"{k}_weight")) + run.residual(l, f"{k}_bias")
            for k in ("pre", "post", "res")
        }
        if run.cfg["residual"]["kind"] == "mhc":
            R = sinkhorn(lin["res"].reshape(*v.shape[:-1], n, n), run.cfg["residual"]["sinkhorn_iters"])
        else:
            matrices = np.stack([np.eye(n)[list(perm)] for perm in itertools.permutations(range(n))])
            R = jnp.einsum("btk,kij->btij", jax.nn.softmax(lin["res"], axis=-1), matrices)
        f = run.F(l, jnp.sum(jax.nn.sigmoid(lin["pre"])[..., None] * H, axis=-2))
        H = R @ H + 2 * jax.nn.sigmoid(lin["post"])[..., None] * f[..., None, :]
    return H.sum(axis=-2)


def pool(run, query, sources):
    """Softmax over the sources, scored by query . rms(source), of the sources themselves."""
    S = jnp.stack(sources, axis=-2)
    weights = jax.nn.softmax(run.rms(S) @ query, axis=-1)
    return jnp.sum(weights[..., None] * S, axis=-2)


def attnres(run, x):
    blocks, L = run.cfg["residual"]["blocks"], len(run.subs)
    size = math.ceil(L / blocks) if blocks else 1
    aggregate = lambda l, sources: pool(run, run.residual(l, "query") * run.residual(l, "key_norm"), sources)
    finished, partial = [x], []
    for l in run.subs:
        if l % size == 0:
            finished, partial = finished + partial, []
        f = run.F(l, aggregate(l, finished + partial) if l else x)
        partial = [partial[0] + f] if partial else [f]
    return aggregate("out", finished + partial)


def mgr(run, x):
    n, kappa = run.cfg["residual"]["streams"], 1 / math.sqrt(x.shape[-1])
    aggregate = lambda l, streams: pool(run, kappa * run.residual(l, "pool.weight"), streams)
    streams = [x]
    for l in run.subs:
        f = run.F(l, aggregate(l, streams) if l else x)
        if l < n - 1:
            streams = streams + [f]
            continue
        u = kappa * run.rms(jnp.stack(streams, axis=-2)) @ run.residual(l, "gate.weight")
        b = run.residual(l, "gate.bias")
        if run.cfg["residual"]["gate"] == "independent":
            beta = jax.nn.sigmoid(u + b)
        else:
            forget = jnp.broadcast_to(b[0], (*u.shape[:-1], 1))
            beta = jax.nn.softmax(jnp.concatenate([forget, u + b[1:]], axis=-1), axis=-1)[..., 1:]
        streams = [s + beta[..., i : i + 1] * (f - s) for i, s in enumerate(streams)]
    return aggregate("out", streams)


def nag(run, x):
    """Returns the direction r; the norm lane s is left in run.log_norm."""
    tau = run.cfg["residual"].get("skip_threshold", 0.0)
    norm = lambda v, eps=0.0: jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)
    r, s = x / norm(x), jnp.log(norm(x)) + run.params["residual.log_gain"]
    skipped = []
    for l in run.subs:
        gates = jax.nn.sigmoid(r @ run.residual(l, "directions").T + run.residual(l, "bias"))
        S = jnp.sum(jax.nn.softmax(run.residual(l, "mix")) * gates, axis=-1, keepdims=True)
        g = run.residual(l, "alpha") * jnp.maximum(S, 1e-6) ** jax.nn.softplus(run.residual(l, "sharpness"))
        # A skipped token still leaves its keys and values to the others, so the sub-layer runs on all tokens.
        f = run.sub(l, run.read(l, r))
        c = f - f.mean(axis=-1, keepdims=True)
        q = c - (c * r).sum(axis=-1, keepdims=True) / (r * r).sum(axis=-1, keepdims=True) * r
        y = r + g * q / norm(q, 1e-12)
        skip = jnp.abs(g) < tau
        r, s = jnp.where(skip, r, y / norm(y)), jnp.where(skip, s, s + 0.5 * jnp.log1p(g**2))
        skipped.append(skip.mean(dtype=r.dtype))
        run.gains.append(g)
    run.trace["skipped"] = jnp.stack(skipped)
    run.log_norm = s
    return r


KINDS = dict(
    prenorm=prenorm, lns=lns, postnorm=postnorm, deepnorm=deepnorm, mixln=mixln, highway=highway,
    denseformer=denseformer, siamese=siamese, hc=hc, mhc=mhc, mhc_lite=mhc, attnres=attnres, mgr=mgr, nag=nag,
)  # fmt: skip


# ---------------------------------------------------------------- model


def forward(run, input_ids):
    """Logits; leaves in run.trace what the trace records of the forward pass."""
    cfg, params = run.cfg, run.params
    kind = cfg["residual"]["kind"]
    out = KINDS[kind](run, params["embed.weight"][input_ids])
    final = out if kind in NO_FINAL_NORM else run.rms(out) * params["norm.weight"]
    logits = final @ params["embed.weight" if cfg["tie_embeddings"] else "head.weight"].T
    if kind == "nag":
        logits = jnp.exp(run.log_norm) * logits / cfg["d_model"]
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
    return result | {f"grad.{name}": grad for name, grad in grads.items()}


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
