"""Gates between the stream and the write."""

import math

import jax

from .kind import ATTENTION, BOTH, Kind, around, by_width, case, every, sites


class Highway(Kind):
    kind = "highway"
    settings = {"gate": ("vector", "scalar")}
    cases = [
        case({"gate": "vector"}),
        case({"gate": "vector"}, n_layers=3, depth_kv=BOTH, keep=True),
        case({"gate": "scalar"}),
        case({"gate": "scalar"}, n_layers=4, depth_kv=ATTENTION),
    ]

    def parameters(self, cfg):
        d, vector = cfg["d_model"], cfg["residual"]["gate"] == "vector"
        weight, bias = ((d, d), (d,)) if vector else ((d,), (1,))
        return every(sites(cfg), {"gate.weight": (weight, by_width), "gate.bias": (bias, around(-0.5, 0.5))})

    def forward(self, run, x):
        for l in run.subs:
            w, b = run.residual(l, "gate.weight"), run.residual(l, "gate.bias")
            if run.cfg["residual"]["gate"] == "vector":
                g = jax.nn.sigmoid(run.rms(x) @ w.T + b)
            else:
                g = jax.nn.sigmoid((run.rms(x) @ w)[..., None] / math.sqrt(x.shape[-1]) + b)
            x = (1 - g) * x + g * run.F(l, x)
        return x
