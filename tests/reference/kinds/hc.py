"""Hyper-connections."""

import jax.numpy as jnp
import numpy as np

from .kind import ATTENTION, BOTH, Kind, around, case, every, gain, sites, spread


def repeat_streams(run, x):
    """[B, T, d] -> [B, T, n, d], the same in every stream."""
    return jnp.repeat(x[..., None, :], run.cfg["residual"]["streams"], axis=-2)


class HyperConnections(Kind):
    kind = "hc"
    settings = {"streams": "n{}", "dynamic": {True: "dynamic", False: "static"}}
    cases = [
        case({"streams": 1, "dynamic": False}, n_layers=2, shape=(1, 2)),
        case({"streams": 2, "dynamic": False}, n_layers=4),
        case({"streams": 3, "dynamic": False}, n_layers=3, depth_kv=ATTENTION),
        case({"streams": 5, "dynamic": False}, n_layers=2, keep=True),
        case({"streams": 1, "dynamic": True}, n_layers=3),
        case({"streams": 2, "dynamic": True}, n_layers=3, depth_kv=BOTH),
        case({"streams": 3, "dynamic": True}, n_layers=1),
        case({"streams": 5, "dynamic": True}, n_layers=4, keep=True),
    ]

    def parameters(self, cfg):
        d, n = cfg["d_model"], cfg["residual"]["streams"]
        mixing = lambda z: 0.5 * np.eye(len(z)) + 0.3 * z
        scale = lambda z: 0.4 * gain(z)
        static = {"pre": ((n,), around(0.6, 0.3)), "res": ((n, n), mixing), "post": ((n,), around(0.6, 0.3))}
        dynamic = {
            "norm": ((d,), gain),
            "pre_weight": ((d,), spread(0.3)),
            "res_weight": ((d, n), spread(0.3)),
            "post_weight": ((d,), spread(0.3)),
            "mix_scale": ((1,), scale),
            "post_scale": ((1,), scale),
        }
        return every(sites(cfg), static | (dynamic if cfg["residual"]["dynamic"] else {}))

    def forward(self, run, x):
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
