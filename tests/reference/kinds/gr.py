"""Gated residual: streams that are added to, read through a gate for each channel of each stream."""

import jax
import jax.numpy as jnp

from .kind import ATTENTION, BOTH, Kind, case, every, sites, spread


def several(z):
    """Rows whose products with normalised streams are far from zero, so that gates are not alike."""
    return 3 * z / z.shape[1] ** 0.5


class GatedResidual(Kind):
    kind = "gr"
    settings = {"streams": "n{}"}
    optional = {"rank": "r{}"}
    final_norm, block_norms = False, False
    cases = [
        case({"streams": 1}, n_layers=2),
        case({"streams": 2, "rank": 1}, n_layers=3),
        case({"streams": 3}, n_layers=3, depth_kv=BOTH, keep=True),
        case({"streams": 4, "rank": 5}, n_layers=2, depth_kv=ATTENTION, keep=True),
        case({"streams": 2, "rank": 17}, n_layers=4),
        case({"streams": 5}, n_layers=1, shape=(3, 2)),
    ]

    def parameters(self, cfg):
        n, d = cfg["residual"]["streams"], cfg["d_model"]
        r = cfg["residual"].get("rank", d // 8)
        # Products are divided by n.
        matrix = lambda rows, columns: ((rows, columns), lambda z: n * several(z))
        reads = {"gamma": ((n, d), spread(0.3)), "read_down": matrix(r, n * d), "read_up": ((n * d, r), several)}
        return every([*sites(cfg), "out"], reads) | every(sites(cfg), {"write": matrix(n, n * d)})

    def forward(self, run, x):
        n = run.cfg["residual"]["streams"]
        H = jnp.repeat(x[..., None, :], n, axis=-2)

        def read(l):
            """What is read, and all normalised streams in one row."""
            N = run.rms(H) * (1 + run.residual(l, "gamma"))
            v = N.reshape(*x.shape[:-1], -1)
            low = jax.nn.silu(v @ run.residual(l, "read_down").T / n)
            G = jax.nn.sigmoid(low @ run.residual(l, "read_up").T).reshape(N.shape)
            return jnp.mean(G * N, axis=-2), v

        for l in run.subs:
            h, v = read(l)
            s = 2 * jax.nn.sigmoid(v @ run.residual(l, "write").T / n)
            H = H + s[..., None] * run.sub(l, run.read(l, h))[..., None, :]
        return read("out")[0]
