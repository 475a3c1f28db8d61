"""One stream to which sub-layers add: prenorm, lns, postnorm, deepnorm, mixln."""

import math

from .kind import ATTENTION, BOTH, Kind, case


class PreNorm(Kind):
    kind = "prenorm"
    optional = {"multiplier": "m{}"}
    cases = [
        case(n_layers=1),
        case(n_layers=6),
        case(heads=(6, 2, 4), qk_norm=True, depth_kv=ATTENTION, n_layers=3),
        case(heads=(4, 1, 6), qk_norm=True, depth_kv=BOTH, n_layers=4),
        case(depth_kv=BOTH, n_layers=1),
        case(depth_kv=BOTH, n_layers=3, shape=(3, 1), qk_norm=True, keep=True),
        case(value_residual="learned", n_layers=4, heads=(6, 2, 4), mlp="relu2", keep=True),
        case(value_residual="fixed", n_layers=3, depth_kv=BOTH, keep=True),
        case(value_residual="learned", n_layers=1),
        case({"multiplier": 0.3}, n_layers=4, depth_kv=ATTENTION),
        case({"multiplier": 1.7}, n_layers=2, mlp="swiglu", keep=True),
    ]

    def forward(self, run, x):
        for l in run.subs:
            x = x + run.cfg["residual"].get("multiplier", 1.0) * run.F(l, x)
        return x


class LayerNormScaling(Kind):
    kind = "lns"
    cases = [
        case(n_layers=5),
        case(n_layers=3, depth_kv=ATTENTION),
        case(n_layers=4, depth_kv=BOTH, keep=True),
        case(n_layers=4, value_residual="fixed", heads=(4, 1, 6)),
    ]

    def forward(self, run, x):
        for l in run.subs:
            block = l // 2 + 1
            x = x + run.sub(l, run.norm(l, run.read(l, x)) / math.sqrt(block))
        return x


class PostNorm(Kind):
    kind = "postnorm"
    final_norm = False
    cases = [
        case(n_layers=1, shape=(1, 1)),
        case(n_layers=4, depth_kv=BOTH, qk_norm=True),
        case(n_layers=3, depth_kv=ATTENTION),
    ]

    def forward(self, run, x):
        for l in run.subs:
            x = run.post(l, x)
        return x


class DeepNorm(Kind):
    kind = "deepnorm"
    final_norm = False
    cases = [
        case(n_layers=5),
        case(n_layers=2, depth_kv=ATTENTION),
        case(n_layers=3, depth_kv=BOTH),
    ]

    def forward(self, run, x):
        for l in run.subs:
            x = run.post(l, x, carry=len(run.subs) ** 0.25)
        return x


class MixLn(Kind):
    kind = "mixln"
    settings = {"post_fraction": "p{}"}
    cases = [
        case({"post_fraction": 0.0}, n_layers=2),
        case({"post_fraction": 0.25}, n_layers=4),
        case({"post_fraction": 0.25}, n_layers=6, depth_kv=ATTENTION),
        case({"post_fraction": 0.5}, n_layers=5, depth_kv=BOTH),
        case({"post_fraction": 1.0}, n_layers=3, keep=True),
    ]

    def forward(self, run, x):
        post_blocks = math.floor(run.cfg["residual"]["post_fraction"] * run.cfg["n_layers"])
        for l in run.subs:
            x = run.post(l, x) if l // 2 < post_blocks else x + run.F(l, x)
        return x
