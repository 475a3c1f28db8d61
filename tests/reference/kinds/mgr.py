"""Multi-gate residuals."""

import math

import jax
import jax.numpy as jnp

from .attnres import pool
from .kind import ATTENTION, BOTH, Kind, around, by_width, case, every, sites


class MultiGate(Kind):
    kind = "mgr"
    settings = {"streams": "n{}", "gate": ("independent", "competitive")}
    cases = [
        case({"streams": 1, "gate": "independent"}, n_layers=3, keep=True),
        case({"streams": 1, "gate": "competitive"}, n_layers=2, keep=True),
        case({"streams": 2, "gate": "independent"}, n_layers=1),
        case({"streams": 2, "gate": "competitive"}, n_layers=4, depth_kv=BOTH),
        case({"streams": 3, "gate": "independent"}, n_layers=5, depth_kv=ATTENTION),
        case({"streams": 3, "gate": "competitive"}, n_layers=2),
        case({"streams": 6, "gate": "independent"}, n_layers=4),
        case({"streams": 6, "gate": "competitive"}, n_layers=3, keep=True),
        case({"streams": 6, "gate": "independent"}, n_layers=2, keep=True),
        case({"streams": 7, "gate": "competitive"}, n_layers=3),
    ]

    def parameters(self, cfg):
        d, n = cfg["d_model"], cfg["residual"]["streams"]
        biases = n + (cfg["residual"]["gate"] == "competitive")
        gates = {"gate.weight": ((d,), by_width), "gate.bias": ((biases,), around(-0.5, 0.5))}
        pools = every([*sites(cfg)[1:], "out"], {"pool.weight": ((d,), by_width)})
        return pools | every(sites(cfg)[n - 1 :], gates)

    def forward(self, run, x):
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
