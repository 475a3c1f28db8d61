"""A post-norm and a pre-norm stream that share their sub-layers."""

import math

from .kind import ATTENTION, BOTH, Kind, case, every, gain, sites


class SiameseNorm(Kind):
    kind = "siamese"
    cases = [
        case(n_layers=1, shape=(2, 1)),
        case(n_layers=4),
        case(n_layers=3, depth_kv=BOTH, keep=True),
        case(n_layers=2, depth_kv=ATTENTION),
    ]

    def parameters(self, cfg):
        norm = ((cfg["d_model"],), gain)
        return every([*sites(cfg), "out"], {"post_norm": norm, "pre_norm": norm})

    def forward(self, run, x):
        y = x
        normed = lambda l, name, v: run.rms(v) * run.residual(l, name)
        for l in run.subs:
            x = normed(l, "post_norm", x)
            z = run.F(l, x + normed(l, "pre_norm", y))
            x, y = x + z / math.sqrt(2 * (l // 2 + 1)), y + z
        return normed("out", "post_norm", x) + normed("out", "pre_norm", y)
