"""An adapter in numpy, forward only: prenorm and hyper-connections (`hc`), written from the contract alone.

    python check.py --forward example_numpy.py ../golden/prenorm ../golden/hc-static ../golden/hc-dynamic
"""

import numpy as np


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Body:
    """Attention and MLPs, which are the same for every stream."""

    def __init__(self, config, weights):
        self.config, self.weights, self.eps = config, weights, config["norm_eps"]

    def __call__(self, l, h):
        """F_l(h): sub-layer l of the normalised input."""
        half = "attn" if l % 2 == 0 else "mlp"
        x = rms(h, self.eps) * self.weights[f"layers.{l // 2}.{half}_norm.weight"]
        return self.attention(l // 2, x) if half == "attn" else self.mlp(l // 2, x)

    def mlp(self, i, x):
        w = lambda name: self.weights[f"layers.{i}.mlp.{name}.weight"]
        up = x @ w("up").T
        if self.config["mlp"] == "relu2":
            return np.maximum(up, 0) ** 2 @ w("down").T
        gate = x @ w("gate").T
        return (gate / (1 + np.exp(-gate)) * up) @ w("down").T

    def attention(self, i, x):
        c, w = self.config, lambda name: self.weights[f"layers.{i}.attn.{name}.weight"]
        heads, groups, width = c["n_heads"], c["n_kv_heads"], c["head_dim"]
        split = lambda y, n: y.reshape(*y.shape[:2], n, width).transpose(0, 2, 1, 3)
        q, k, v = split(x @ w("q").T, heads), split(x @ w("k").T, groups), split(x @ w("v").T, groups)
        if c["qk_norm"]:
            q, k = rms(q, self.eps) * w("q_norm"), rms(k, self.eps) * w("k_norm")
        q, k = self.rotate(q), np.repeat(self.rotate(k), heads // groups, axis=1)
        v = np.repeat(v, heads // groups, axis=1)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(width)
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        mixed = softmax(np.where(seen, scores, -np.inf)) @ v
        return mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], heads * width) @ w("o").T

    def rotate(self, x):
        half = x.shape[-1] // 2
        frequencies = self.config["rope_theta"] ** (-np.arange(half) / half)
        angle = np.arange(x.shape[-2])[:, None] * frequencies
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def prenorm(x, F, sites, settings, weights, eps, seen):
    """x += F_l(x)"""
    for l in range(sites):
        seen[f"h.{l}"] = x
        x = x + F(l, x)
    return x


def hc(x, F, sites, settings, weights, eps, seen):
    """h = sum_i pre_i H_i; H'_j = sum_i res_ij H_i + post_j F_l(h); out = sum_i H_i"""
    H = np.repeat(x[:, :, None], settings["streams"], axis=2)
    for l in range(sites):
        w = lambda name: weights[f"residual.{l}.{name}"]
        pre, res, post = w("pre"), w("res"), w("post")
        if settings["dynamic"]:
            N = rms(H, eps) * w("norm")
            pre = pre + w("mix_scale") * np.tanh(N @ w("pre_weight"))
            res = res + w("mix_scale") * np.tanh(N @ w("res_weight"))
            post = post + w("post_scale") * np.tanh(N @ w("post_weight"))
        h = np.sum(pre[..., None] * H, axis=2)
        seen[f"h.{l}"] = h
        H = np.swapaxes(res, -1, -2) @ H + post[..., None] * F(l, h)[:, :, None]
    return H.sum(axis=2)


STREAMS = {"prenorm": prenorm, "hc": hc}


def run(config, weights, input_ids, target_ids):
    settings = config["residual"]
    if settings["kind"] not in STREAMS or config["depth_kv"] != "none":
        raise NotImplementedError(f"this example knows {', '.join(STREAMS)}, not {settings['kind']}")
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    eps, found = config["norm_eps"], {}
    x = weights["embed.weight"][input_ids]
    stream = STREAMS[settings["kind"]]
    out = stream(x, Body(config, weights), 2 * config["n_layers"], settings, weights, eps, found)
    found["out"] = out
    head = weights["embed.weight" if config["tie_embeddings"] else "head.weight"]
    logits = rms(out, eps) * weights["norm.weight"] @ head.T
    found["logits"] = logits
    if target_ids is not None:
        shifted = logits - logits.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        found["loss"] = -np.take_along_axis(log_p, target_ids[..., None].astype(np.int64), -1).mean()
    return found
