"""Hyper-connections whose streams are mixed by doubly stochastic matrices."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from .hc import repeat_streams
from .kind import ATTENTION, BOTH, Kind, by_height, case, every, gain, sites, spread


class ManifoldHyperConnections(Kind):
    kind = "mhc"
    settings = {"streams": "n{}", "sinkhorn_iters": "t{}"}
    cases = [
        case({"streams": 1, "sinkhorn_iters": 5}, n_layers=2),
        case({"streams": 2, "sinkhorn_iters": 1}, n_layers=3, keep=True),
        case({"streams": 2, "sinkhorn_iters": 20}, n_layers=1, shape=(2, 3)),
        case({"streams": 3, "sinkhorn_iters": 1}, n_layers=4),
        case({"streams": 3, "sinkhorn_iters": 5}, n_layers=3, depth_kv=BOTH),
        case({"streams": 3, "sinkhorn_iters": 20}, n_layers=3, depth_kv=ATTENTION),
    ]

    def mixing_scores(self, n):
        """How many scores say how the streams are mixed."""
        return n * n

    def mixing(self, run, scores, n):
        """Sinkhorn's iterations: columns and rows sum to one in turn."""
        M = jnp.exp(scores.reshape(*scores.shape[:-1], n, n))
        for _ in range(run.cfg["residual"]["sinkhorn_iters"]):
            M = M / M.sum(axis=-2, keepdims=True)
            M = M / M.sum(axis=-1, keepdims=True)
        return M

    def parameters(self, cfg):
        d, n = cfg["d_model"], cfg["residual"]["streams"]
        each = {}
        for name, m in {"pre": n, "post": n, "res": self.mixing_scores(n)}.items():
            each[f"{name}_weight"] = ((n * d, m), by_height)
            each[f"{name}_bias"] = ((m,), spread(0.5))
            each[f"{name}_scale"] = ((1,), gain)
        return every(sites(cfg), each)

    def forward(self, run, x):
        H, n = repeat_streams(run, x), run.cfg["residual"]["streams"]
        for l in run.subs:
            v = run.rms(H.reshape(*H.shape[:-2], -1))
            lin = {
                k: run.residual(l, f"{k}_scale") * (v @ run.residual(l, f"{k}_weight")) + run.residual(l, f"{k}_bias")
                for k in ("pre", "post", "res")
            }
            R = self.mixing(run, lin["res"], n)
            f = run.F(l, jnp.sum(jax.nn.sigmoid(lin["pre"])[..., None] * H, axis=-2))
            H = R @ H + 2 * jax.nn.sigmoid(lin["post"])[..., None] * f[..., None, :]
        return H.sum(axis=-2)


class ManifoldLite(ManifoldHyperConnections):
    kind = "mhc_lite"
    settings = {"streams": "n{}"}
    cases = [
        case({"streams": 1}, n_layers=2),
        case({"streams": 2}, n_layers=4),
        case({"streams": 3}, n_layers=3, depth_kv=BOTH),
        case({"streams": 4}, n_layers=3, keep=True),
        case({"streams": 2}, n_layers=3, depth_kv=ATTENTION),
    ]

    def mixing_scores(self, n):
        return math.factorial(n)

    def mixing(self, run, scores, n):
        """A mean of all permutations."""
        matrices = np.stack([np.eye(n)[list(perm)] for perm in itertools.permutations(range(n))])
        return jnp.einsum("btk,kij->btij", jax.nn.softmax(scores, axis=-1), matrices)
