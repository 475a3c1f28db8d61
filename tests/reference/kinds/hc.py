"""Hyper-connections."""

import jax.numpy as jnp
import numpy as np

from .kind import ATTENTION, BOTH, Kind, around, case, every, gain, sites, spread


def opened(run, x):
    """[B, T, d] -> [B, T, n, d]: copies, or each channel of each stream times a scale."""
    if run.cfg["residual"].get("stream_scale"):
        return x[..., None, :] * run.params["residual.stream_scale"]
    return jnp.repeat(x[..., None, :], run.cfg["residual"]["streams"], axis=-2)


def scales(cfg):
    """The scales that streams start with, if they have any."""
    shape = (cfg["residual"]["streams"], cfg["d_model"])
    return {"stream_scale": (shape, around(0.7, 0.3))} if cfg["residual"].get("stream_scale") else {}


class HyperConnections(Kind):
    kind = "hc"
    settings = {"streams": "n{}", "dynamic": {True: "dynamic", False: "static"}}
    optional = {"identity": {True: "identity"}, "stream_scale": {True: "scaled"}}
    cases = [
        case({"streams": 1, "dynamic": False}, n_layers=2, shape=(1, 2)),
        case({"streams": 2, "dynamic": False}, n_layers=4),
        case({"streams": 3, "dynamic": False}, n_layers=3, depth_kv=ATTENTION),
        case({"streams": 5, "dynamic": False}, n_layers=2, keep=True),
        case({"streams": 1, "dynamic": True}, n_layers=3),
        case({"streams": 2, "dynamic": True}, n_layers=3, depth_kv=BOTH),
        case({"streams": 3, "dynamic": True}, n_layers=1),
        case({"streams": 5, "dynamic": True}, n_layers=4, keep=True),
        case({"streams": 3, "dynamic": False, "identity": True}, n_layers=3),
        case({"streams": 2, "dynamic": True, "identity": True}, n_layers=2, depth_kv=BOTH),
        case({"streams": 3, "dynamic": True, "identity": True, "stream_scale": True}, n_layers=3, keep=True),
        case({"streams": 4, "dynamic": False, "stream_scale": True}, n_layers=2),
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
        each = static | (dynamic if cfg["residual"]["dynamic"] else {})
        if cfg["residual"].get("identity"):
            each = {name: value for name, value in each.items() if not name.startswith("res")}
        return every(sites(cfg), each) | scales(cfg)

    def forward(self, run, x):
        H, mixes = opened(run, x), not run.cfg["residual"].get("identity")
        for l in run.subs:
            pre, post = run.residual(l, "pre"), run.residual(l, "post")
            res = run.residual(l, "res") if mixes else None
            if run.cfg["residual"]["dynamic"]:
                N = run.rms(H) * run.residual(l, "norm")
                mix_scale, post_scale = run.residual(l, "mix_scale"), run.residual(l, "post_scale")
                pre = pre + mix_scale * jnp.tanh(N @ run.residual(l, "pre_weight"))
                if mixes:
                    res = res + mix_scale * jnp.tanh(N @ run.residual(l, "res_weight"))
                post = post + post_scale * jnp.tanh(N @ run.residual(l, "post_weight"))
            f = run.F(l, jnp.sum(pre[..., None] * H, axis=-2))
            H = (jnp.swapaxes(res, -1, -2) @ H if mixes else H) + post[..., None] * f[..., None, :]
        return H.sum(axis=-2)
