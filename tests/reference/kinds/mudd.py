"""Averages over the outputs of all blocks with weights that each token computes."""

import math

import jax
import jax.numpy as jnp

from .kind import ATTENTION, BOTH, Kind, around, by_width, case, gain, spread


def gelu(x):
    return 0.5 * x * (1 + jax.scipy.special.erf(x / math.sqrt(2)))


class Mudd(Kind):
    kind = "mudd"
    settings = {"ways": "w{}"}
    optional = {"norms": {False: "bare", True: "norms"}}
    cases = [
        case({"ways": 1}, n_layers=1),
        case({"ways": 1}, n_layers=4, depth_kv=BOTH),
        case({"ways": 1, "norms": True}, n_layers=3, keep=True),
        case({"ways": 4}, n_layers=1, depth_kv=ATTENTION),
        case({"ways": 4}, n_layers=3),
        case({"ways": 4}, n_layers=4, depth_kv=ATTENTION),
        case({"ways": 4, "norms": True}, n_layers=3, depth_kv=BOTH, keep=True),
        case({"ways": 4, "norms": True}, n_layers=1),
    ]

    def ways(self, cfg, block):
        return 1 if block == cfg["n_layers"] else cfg["residual"]["ways"]

    def parameters(self, cfg):
        d, blocks, norms = cfg["d_model"], cfg["n_layers"], cfg["residual"].get("norms", False)
        found = {"block.0.source_norm": ((d,), gain)} if norms else {}
        for i in range(1, blocks + 1):
            ways = self.ways(cfg, i)
            m = ways * (i + 1)
            own = {
                "weights": ((ways, i + 1), around(0.4, 0.3)),
                "down": ((m, d), by_width),
                "up": ((m, m), spread(0.3)),
            }
            if norms:
                own |= {name: ((d,), gain) for name in ("source_norm", "weight_norm", "out_norm")}
            found |= {f"block.{i}.{name}": value for name, value in own.items()}
        if cfg["residual"]["ways"] == 4:
            found |= {f"{2 * i}.{part}_norm": ((d,), gain) for i in range(1, blocks) for part in "kv"}
        return found

    def averages(self, run, i, x, sources):
        """The ways behind block i, which produced x."""
        part = lambda name: run.params[f"residual.block.{i}.{name}"]
        norms = run.cfg["residual"].get("norms", False)
        seen = run.rms(x) * part("weight_norm") if norms else run.rms(x)
        A = gelu(seen @ part("down").T) @ part("up").T
        A = A.reshape(*x.shape[:2], -1, i + 1) + part("weights")
        ways = list(jnp.einsum("btwj,jbtd->wbtd", A, jnp.stack(sources)))
        if not norms:
            return ways
        return [x + way for way in ways[:-1]] + [x + part("out_norm") * run.rms(ways[-1])]

    def forward(self, run, x):
        norms = run.cfg["residual"].get("norms", False)
        source = lambda i, x: run.rms(x) * run.params[f"residual.block.{i}.source_norm"] if norms else x
        sources, apart = [source(0, x)], None
        for i in range(run.cfg["n_layers"]):
            if apart:
                x = x + run.attend_apart(2 * i, *apart, residual=x)
            else:
                x = x + run.F(2 * i, x)
            x = x + run.F(2 * i + 1, x)
            sources.append(source(i + 1, x))
            *apart, x = self.averages(run, i + 1, x, sources)
        return x
