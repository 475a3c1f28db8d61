"""A norm behind every sub-layer and none before it (OLMo 2)."""

from .kind import ATTENTION, BOTH, Kind, case


class OutNorm(Kind):
    kind = "outnorm"
    cases = [
        case(n_layers=1),
        case(n_layers=4, heads=(4, 2, 8), qk_norm=True),
        case(n_layers=2, depth_kv=ATTENTION),
        case(n_layers=3, depth_kv=BOTH, mlp="swiglu", keep=True),
    ]

    def forward(self, run, x):
        for l in run.subs:
            # The norm that prenorm has before the sub-layer.
            x = x + run.norm(l, run.sub(l, run.read(l, x)))
        return x
