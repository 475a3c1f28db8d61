"""Hyper-connections whose streams are mixed by doubly stochastic matrices."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from .hc import opened, scales
from .kind import ATTENTION, BOTH, Kind, by_height, case, every, gain, sites, spread

FORMS = {
    "epsilon": "e{}",
    "post_epsilon": "pe{}",
    "post_multiplier": "pm{}",
    "readout": ("sum", "mean", "gated"),
    "single_pass": {True: "single"},
    "stream_scale": {True: "scaled"},
}


class ManifoldHyperConnections(Kind):
    kind = "mhc"
    settings = {"streams": "n{}"}
    optional = FORMS | {"sinkhorn_iters": "t{}", "identity": {True: "identity"}}
    cases = [
        case({"streams": 1, "sinkhorn_iters": 5}, n_layers=2),
        case({"streams": 2, "sinkhorn_iters": 1}, n_layers=3, keep=True),
        case({"streams": 2, "sinkhorn_iters": 20}, n_layers=1, shape=(2, 3)),
        case({"streams": 3, "sinkhorn_iters": 1}, n_layers=4),
        case({"streams": 3, "sinkhorn_iters": 5}, n_layers=3, depth_kv=BOTH),
        case({"streams": 3, "sinkhorn_iters": 20}, n_layers=3, depth_kv=ATTENTION),
        case({"streams": 3, "sinkhorn_iters": 3}, n_layers=3, depth_kv=ATTENTION, value_residual="learned", keep=True),
        case({"streams": 1, "sinkhorn_iters": 2, "epsilon": 0.05, "readout": "gated"}, n_layers=2),
        case({"streams": 2, "sinkhorn_iters": 1, "epsilon": 0.05}, n_layers=3),
        case({"streams": 5, "sinkhorn_iters": 3, "epsilon": 1e-6, "readout": "gated"}, n_layers=2, depth_kv=BOTH),
        case({"streams": 2, "sinkhorn_iters": 7, "readout": "mean", "stream_scale": True}, n_layers=3),
        case({"streams": 3, "sinkhorn_iters": 2, "epsilon": 0.02, "single_pass": True, "stream_scale": True}, n_layers=3, keep=True),
        case({"streams": 3, "sinkhorn_iters": 4, "single_pass": True}, n_layers=1),
        case({"streams": 2, "identity": True, "single_pass": True, "post_multiplier": 1.3}, n_layers=4, depth_kv=ATTENTION),
        case({"streams": 5, "identity": True, "epsilon": 0.03, "post_epsilon": 0.04, "readout": "gated"}, n_layers=3, keep=True),
        case({"streams": 3, "identity": True, "readout": "mean", "post_multiplier": 0.7}, n_layers=2),
    ]

    def mixing_scores(self, n):
        """How many scores say how the streams are mixed."""
        return n * n

    def mixing(self, run, scores, n):
        """Sinkhorn's iterations: columns and rows sum to one in turn. An epsilon stands behind the first columns' and in
        every later sum."""
        e = run.cfg["residual"].get("epsilon", 0)
        M = jnp.exp(scores.reshape(*scores.shape[:-1], n, n))
        for t in range(run.cfg["residual"]["sinkhorn_iters"]):
            M = M / (M.sum(axis=-2, keepdims=True) + e) if t else M / M.sum(axis=-2, keepdims=True) + e
            M = M / (M.sum(axis=-1, keepdims=True) + e)
        return M

    def parameters(self, cfg):
        residual, d = cfg["residual"], cfg["d_model"]
        n = residual["streams"]

        def maps(parts):
            each = {}
            for name, m in parts.items():
                each[f"{name}_weight"] = ((n * d, m), by_height)
                each[f"{name}_bias"] = ((m,), spread(0.5))
                each[f"{name}_scale"] = ((1,), gain)
            return each

        mixed = {} if residual.get("identity") else {"res": self.mixing_scores(n)}
        out = every(["out"], maps({"pre": n})) if residual.get("readout") == "gated" else {}
        return every(sites(cfg), maps({"pre": n, "post": n} | mixed)) | out | scales(cfg)

    def forward(self, run, x):
        residual, H = run.cfg["residual"], opened(run, x)
        n, e = residual["streams"], residual.get("epsilon", 0)
        m, p = residual.get("post_multiplier", 2), residual.get("post_epsilon", 0)

        def lin(l, k):
            v = run.rms(H.reshape(*H.shape[:-2], -1))
            return run.residual(l, f"{k}_scale") * (v @ run.residual(l, f"{k}_weight")) + run.residual(l, f"{k}_bias")

        weigh = lambda weights: jnp.sum(weights[..., None] * H, axis=-2)
        handed_on = jnp.eye(n)[0]
        for l in run.subs:
            pre, post = jax.nn.sigmoid(lin(l, "pre")) + e, m * jax.nn.sigmoid(lin(l, "post")) + p
            f = run.F(l, weigh(handed_on if residual.get("single_pass") else pre))
            handed_on = pre
            mixed = H if residual.get("identity") else self.mixing(run, lin(l, "res"), n) @ H
            H = mixed + post[..., None] * f[..., None, :]
        if residual.get("single_pass"):
            return weigh(handed_on)
        if residual.get("readout") == "gated":
            return weigh(jax.nn.sigmoid(lin("out", "pre")) + e)
        return H.mean(axis=-2) if residual.get("readout") == "mean" else H.sum(axis=-2)


class ManifoldLite(ManifoldHyperConnections):
    kind = "mhc_lite"
    optional = FORMS
    cases = [
        case({"streams": 1}, n_layers=2),
        case({"streams": 2}, n_layers=4),
        case({"streams": 3}, n_layers=3, depth_kv=BOTH),
        case({"streams": 4}, n_layers=3, keep=True),
        case({"streams": 2}, n_layers=3, depth_kv=ATTENTION),
        case({"streams": 3, "epsilon": 0.02, "readout": "gated", "stream_scale": True}, n_layers=2, keep=True),
        case({"streams": 2, "single_pass": True, "post_multiplier": 1.5, "post_epsilon": 0.1}, n_layers=3),
        case({"streams": 3, "readout": "mean"}, n_layers=2, depth_kv=BOTH),
    ]

    def mixing_scores(self, n):
        return math.factorial(n)

    def mixing(self, run, scores, n):
        """A mean of all permutations."""
        matrices = np.stack([np.eye(n)[list(perm)] for perm in itertools.permutations(range(n))])
        return jnp.einsum("btk,kij->btij", jax.nn.softmax(scores, axis=-1), matrices)
