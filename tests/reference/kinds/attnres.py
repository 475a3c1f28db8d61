"""Attention over the writes of earlier sub-layers."""

import math

import jax
import jax.numpy as jnp

from .kind import ATTENTION, BOTH, Kind, around, case, every, gain, sites, spread


def pool(run, query, sources):
    """Softmax over the sources, scored by query . rms(source), of the sources themselves."""
    S = jnp.stack(sources, axis=-2)
    weights = jax.nn.softmax(run.rms(S) @ query, axis=-1)
    return jnp.sum(weights[..., None] * S, axis=-2)


def pool_in_groups(run, query, sources, heads):
    """A softmax for each group of neighbouring channels; the norm is that of all channels."""
    S = jnp.stack(sources, axis=-2)
    groups = lambda x: x.reshape(*x.shape[:-1], heads, -1)
    weights = jax.nn.softmax(jnp.einsum("btshc,hc->btsh", groups(run.rms(S)), groups(query)), axis=2)
    return jnp.einsum("btsh,btshc->bthc", weights, groups(S)).reshape(S[..., 0, :].shape)


def pool_of_normed(run, query, sources):
    """Keys and values are the same normalised sources."""
    N = run.rms(jnp.stack(sources, axis=-2))
    weights = jax.nn.softmax(N @ query / math.sqrt(N.shape[-1]), axis=-1)
    return jnp.sum(weights[..., None] * N, axis=-2)


class AttentionResiduals(Kind):
    kind = "attnres"
    settings = {}
    optional = {
        "blocks": "N{}",
        "block_size": "S{}",
        "heads": "m{}",
        "delta": {True: "delta"},
        "gated": {True: "gated"},
        "normed": {True: "normed"},
        "ways": "w{}",
    }
    cases = [
        case({"blocks": 0}, n_layers=1),
        case({"blocks": 0}, n_layers=4, depth_kv=ATTENTION),
        case({"blocks": 1}, n_layers=3),
        case({"blocks": 2}, n_layers=3, depth_kv=BOTH),
        case({"blocks": 4}, n_layers=5),
        case({"blocks": 4}, n_layers=3),
        case({"blocks": 5}, n_layers=6, keep=True),
        case({"blocks": 5}, n_layers=2, shape=(3, 2)),
        case({"block_size": 4}, n_layers=3),
        case({"block_size": 6}, n_layers=4, depth_kv=BOTH),
        case({"blocks": 0, "heads": 2}, n_layers=3, d_model=20),
        case({"block_size": 2, "heads": 5}, n_layers=4, d_model=20, keep=True),
        case({"block_size": 4, "normed": True}, n_layers=3, keep=True),
        case({"blocks": 0, "normed": True}, n_layers=2, depth_kv=ATTENTION),
        case({"blocks": 0, "delta": True}, n_layers=3),
        case({"block_size": 4, "delta": True}, n_layers=5, depth_kv=BOTH),
        case({"blocks": 3, "heads": 4, "delta": True, "gated": True}, n_layers=4, d_model=16, keep=True),
        case({"blocks": 0, "delta": True, "gated": True}, n_layers=3, depth_kv=ATTENTION),
        case({"block_size": 4, "ways": 3}, n_layers=3, keep=True),
        case({"normed": True, "ways": 3}, n_layers=3, depth_kv=ATTENTION),
        case({"block_size": 3, "normed": True, "ways": 3}, n_layers=4, depth_kv=BOTH, keep=True),
    ]

    def size(self, cfg):
        """Sub-layers to a block."""
        blocks = cfg["residual"].get("blocks", 0)
        return cfg["residual"].get("block_size", 0) or (math.ceil(len(sites(cfg)) / blocks) if blocks else 1)

    def apart(self, cfg, l):
        """Whether sub-layer l pools for query, key and value."""
        return cfg["residual"].get("ways", 1) == 3 and l != "out" and l > 0 and l % 2 == 0

    def parameters(self, cfg):
        residual, d, readers = cfg["residual"], cfg["d_model"], sites(cfg)[1:]
        normed, delta, found = residual.get("normed"), residual.get("delta"), {}
        for l in sites(cfg)[self.size(cfg) :] if delta else [*readers, "out"]:
            apart = self.apart(cfg, l)
            # The logit of the normed form is divided by the root of the width.
            own = {"query": ((3, d) if apart else (d,), spread(1.0 if normed else 0.4))}
            own |= {} if normed else {"key_norm": ((d,), gain)}
            own |= {"k_norm": ((d,), gain), "v_norm": ((d,), gain)} if apart else {}
            found |= every([l], own)
        gates = every(readers, {"gate": ((1,), around(0.6, 0.3))}) if residual.get("gated") else {}
        return found | gates

    def forward(self, run, x):
        residual, size = run.cfg["residual"], self.size(run.cfg)

        def aggregate(l, sources, query):
            if residual.get("normed"):
                return pool_of_normed(run, query, sources)
            query, heads = query * run.residual(l, "key_norm"), residual.get("heads", 1)
            return pool_in_groups(run, query, sources, heads) if heads > 1 else pool(run, query, sources)

        if residual.get("delta"):
            return self.delta(run, x, size, aggregate)
        finished, partial = [x], []
        for l in run.subs:
            if l % size == 0:
                finished, partial = finished + partial, []
            sources = finished + partial
            if not l:
                f = run.F(l, x)
            elif self.apart(run.cfg, l):
                f = run.attend_apart(l, *(aggregate(l, sources, query) for query in run.residual(l, "query")))
            else:
                f = run.F(l, aggregate(l, sources, run.residual(l, "query")))
            partial = [partial[0] + f] if partial else [f]
        return aggregate("out", finished + partial, run.residual("out", "query"))

    def delta(self, run, x, size, aggregate):
        """The stream stays; what the finished blocks left is added to what is read."""
        writes, finished, stream = [], [x], x
        for l in run.subs:
            if l and l % size == 0:
                finished, writes = [*finished, sum(writes)], []
            h = stream
            if l:
                many = len(finished) > 1
                pooled = aggregate(l, finished, run.residual(l, "query")) if many else finished[0]
                h = stream + (run.residual(l, "gate") * pooled if run.cfg["residual"].get("gated") else pooled)
            writes.append(run.F(l, h))
            stream = stream + writes[-1]
        return stream
