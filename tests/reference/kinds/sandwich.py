"""A norm before and after every sub-layer (Sandwich-LN, Peri-LN)."""

from .kind import ATTENTION, BOTH, Kind, case, every, gain, sites


class Sandwich(Kind):
    kind = "sandwich"
    cases = [
        case(n_layers=1),
        case(n_layers=4, heads=(4, 2, 6), qk_norm=True),
        case(n_layers=3, depth_kv=ATTENTION),
        case(n_layers=3, depth_kv=BOTH, keep=True),
    ]

    def parameters(self, cfg):
        return every(sites(cfg), {"post_norm": ((cfg["d_model"],), gain)})

    def forward(self, run, x):
        for l in run.subs:
            x = x + run.rms(run.F(l, x)) * run.residual(l, "post_norm")
        return x
