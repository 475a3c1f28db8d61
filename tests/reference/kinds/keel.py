"""Norms before and after every sub-layer, and a heavy carry (KEEL)."""

from .kind import ATTENTION, BOTH, Kind, case, every, gain, sites


class Keel(Kind):
    kind = "keel"
    final_norm = False
    optional = {"alpha": "a{}"}
    cases = [
        case(n_layers=1),
        case(n_layers=5),
        case(n_layers=3, depth_kv=BOTH, mlp="swiglu", keep=True),
        case({"alpha": 1.5}, n_layers=4, keep=True),
        case({"alpha": 4.0}, n_layers=2, depth_kv=ATTENTION),
    ]

    def parameters(self, cfg):
        return every(sites(cfg)[1:], {"post_norm": ((cfg["d_model"],), gain)})

    def forward(self, run, x):
        alpha = run.cfg["residual"].get("alpha", len(run.subs))
        for l in run.subs:
            x = (alpha if l > 1 else 1) * x + run.F(l, x)
            if l:
                x = run.rms(x) * run.residual(l, "post_norm")
        return x
