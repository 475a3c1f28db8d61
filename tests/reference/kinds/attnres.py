"""Attention over the writes of earlier sub-layers."""

import math

import jax
import jax.numpy as jnp

from .kind import ATTENTION, BOTH, Kind, case, every, gain, sites, spread


def pool(run, query, sources):
    """Softmax over the sources, scored by query . rms(source), of the sources themselves."""
    S = jnp.stack(sources, axis=-2)
    weights = jax.nn.softmax(run.rms(S) @ query, axis=-1)
    return jnp.sum(weights[..., None] * S, axis=-2)


class AttentionResiduals(Kind):
    kind = "attnres"
    settings = {"blocks": "N{}"}
    cases = [
        case({"blocks": 0}, n_layers=1),
        case({"blocks": 0}, n_layers=4, depth_kv=ATTENTION),
        case({"blocks": 1}, n_layers=3),
        case({"blocks": 2}, n_layers=3, depth_kv=BOTH),
        case({"blocks": 4}, n_layers=5),
        case({"blocks": 4}, n_layers=3),
        case({"blocks": 5}, n_layers=6, keep=True),
        case({"blocks": 5}, n_layers=2, shape=(3, 2)),
    ]

    def parameters(self, cfg):
        d = cfg["d_model"]
        return every([*sites(cfg)[1:], "out"], {"query": ((d,), spread(0.4)), "key_norm": ((d,), gain)})

    def forward(self, run, x):
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
