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
    settings = {}
    optional = {"blocks": "N{}", "block_size": "S{}", "normed": {False: "raw", True: "normed"}, "ways": "w{}"}
    cases = [
        case({"blocks": 0}, n_layers=1),
        case({"blocks": 0}, n_layers=4, depth_kv=ATTENTION),
        case({"blocks": 1}, n_layers=3),
        case({"blocks": 2}, n_layers=3, depth_kv=BOTH),
        case({"blocks": 4}, n_layers=5),
        case({"blocks": 4}, n_layers=3),
        case({"blocks": 5}, n_layers=6, keep=True),
        case({"blocks": 5}, n_layers=2, shape=(3, 2)),
        case({"block_size": 4, "ways": 3}, n_layers=3, keep=True),
        case({"normed": True, "ways": 3}, n_layers=3, depth_kv=ATTENTION),
        case({"block_size": 3, "normed": True, "ways": 3}, n_layers=4, depth_kv=BOTH, keep=True),
    ]

    def apart(self, cfg, l):
        """Whether sub-layer l pools for query, key and value."""
        return cfg["residual"].get("ways", 1) == 3 and l != "out" and l > 0 and l % 2 == 0

    def parameters(self, cfg):
        d, found = cfg["d_model"], {}
        for l in [*sites(cfg)[1:], "out"]:
            apart = self.apart(cfg, l)
            own = {"query": ((3, d) if apart else (d,), spread(0.4))}
            if not cfg["residual"].get("normed", False):
                own["key_norm"] = ((d,), gain)
            if apart:
                own |= {"k_norm": ((d,), gain), "v_norm": ((d,), gain)}
            found |= every([l], own)
        return found

    def forward(self, run, x):
        residual, L = run.cfg["residual"], len(run.subs)
        blocks, normed = residual.get("blocks", 0), residual.get("normed", False)
        size = residual.get("block_size", 0) or (math.ceil(L / blocks) if blocks else 1)

        def read(l, sources, query):
            if not normed:
                return pool(run, query * run.residual(l, "key_norm"), sources)
            S = run.rms(jnp.stack(sources, axis=-2))
            weights = jax.nn.softmax(S @ query / math.sqrt(x.shape[-1]), axis=-1)
            return jnp.sum(weights[..., None] * S, axis=-2)

        finished, partial = [x], []
        for l in run.subs:
            if l % size == 0:
                finished, partial = finished + partial, []
            sources = finished + partial
            if not l:
                f = run.F(l, x)
            elif self.apart(run.cfg, l):
                f = run.attend_apart(l, *(read(l, sources, query) for query in run.residual(l, "query")))
            else:
                f = run.F(l, read(l, sources, run.residual(l, "query")))
            partial = [partial[0] + f] if partial else [f]
        return read("out", finished + partial, run.residual("out", "query"))
