"""Deep delta learning: a write replaces what the state holds along its direction."""

import jax
import jax.numpy as jnp

from .kind import ATTENTION, BOTH, Kind, around, by_height, by_width, case, every, sites, spread


class DeepDelta(Kind):
    kind = "ddl"
    optional = {"channels": "n{}", "target": ("sigmoid", "linear")}
    cases = [
        case({}, n_layers=2),
        case({"target": "linear"}, n_layers=3, depth_kv=BOTH, keep=True),
        case({"channels": 3}, n_layers=3, keep=True),
        case({"channels": 2, "target": "linear"}, n_layers=4),
        case({"channels": 5, "target": "sigmoid"}, n_layers=1, depth_kv=ATTENTION, shape=(3, 2)),
        case({"channels": 1, "target": "sigmoid"}, n_layers=4, depth_kv=ATTENTION),
    ]

    def parameters(self, cfg):
        n, d = cfg["residual"].get("channels", 1), cfg["d_model"]
        each = {"beta_weight": ((d,), by_height), "beta_bias": ((1,), around(0.2, 0.5)), "target_weight": ((n, d), by_width)}
        if cfg["residual"].get("target", "sigmoid") == "sigmoid":
            each["target_bias"] = ((n,), spread(0.5))
        reads = every([*sites(cfg), "out"], {"read": ((d, n), around(1 / n, 0.3))}) if n > 1 else {}
        return every(sites(cfg), each) | reads

    def forward(self, run, x):
        residual = run.cfg["residual"]
        n, linear = residual.get("channels", 1), residual.get("target", "sigmoid") == "linear"
        X = jnp.repeat(x[..., None], n, axis=-1)
        read = lambda l: jnp.sum(run.residual(l, "read") * X, axis=-1) if n > 1 else X[..., 0]
        for l in run.subs:
            h = run.read(l, read(l))
            c = run.norm(l, h)
            f = run.sub(l, c)
            k = (f / jnp.sqrt(jnp.sum(f**2, axis=-1, keepdims=True) + 1e-10))[..., None]
            beta = 2 * jax.nn.sigmoid(c @ run.residual(l, "beta_weight") + run.residual(l, "beta_bias"))[..., None, None]
            W = run.residual(l, "target_weight")
            v = c @ W.T if linear else 4 * jax.nn.sigmoid(h @ W.T + run.residual(l, "target_bias"))
            X = X + beta * k * (v[..., None, :] - jnp.sum(X * k, axis=-2, keepdims=True))
        return read("out")
