"""A norm before and after every sub-layer (Sandwich-LN, Peri-LN), and what Beam, Gemma 4 and Muse Spark make of it."""

import jax
import jax.numpy as jnp

from .kind import ATTENTION, BOTH, Kind, around, case, every, gain, sites, spread


class Sandwich(Kind):
    kind = "sandwich"
    optional = {
        "scaled": {True: "scaled"},
        "block_scale": {True: "blockscale"},
        "gate_temperature": "T{}",
        "embed_norm": {True: "embednorm"},
    }
    cases = [
        case(n_layers=1),
        case(n_layers=4, heads=(4, 2, 6), qk_norm=True),
        case(n_layers=3, depth_kv=ATTENTION),
        case(n_layers=3, depth_kv=BOTH, keep=True),
        case({"scaled": True}, n_layers=3),
        case({"block_scale": True}, n_layers=1),
        case({"gate_temperature": 0.5}, n_layers=3, depth_kv=ATTENTION),
        case({"scaled": True, "block_scale": True, "embed_norm": True}, n_layers=3, keep=True),
        case({"block_scale": True, "gate_temperature": 0.4, "embed_norm": True}, n_layers=2, depth_kv=BOTH, keep=True),
    ]

    def parameters(self, cfg):
        d, residual = (cfg["d_model"],), cfg["residual"]
        # Gates from closed to beyond the floor of what is carried.
        gate, post_norm = {"gate": (d, spread(0.8))}, {"post_norm": (d, gain)}
        found = every(sites(cfg), gate if "gate_temperature" in residual else post_norm)
        if residual.get("block_scale"):
            found |= {f"block.{i}.scale": ((1,), around(0.9, 0.2)) for i in range(1, cfg["n_layers"] + 1)}
        return found | ({"embed_norm": (d, gain)} if residual.get("embed_norm") else {})

    def forward(self, run, x):
        residual = run.cfg["residual"]
        if residual.get("embed_norm"):
            x = run.rms(x) * run.params["residual.embed_norm"]
        for l in run.subs:
            y = run.rms(run.F(l, x))
            if "gate_temperature" in residual:
                b = jax.nn.sigmoid(run.residual(l, "gate") / residual["gate_temperature"])
                x = jnp.sqrt(jnp.maximum(1 - b**2, 1e-3)) * x + b * y
            else:
                y = y * run.residual(l, "post_norm")
                x = (jnp.sqrt(l + 1.0) * x + y) / jnp.sqrt(l + 2.0) if residual.get("scaled") else x + y
            if l % 2 and residual.get("block_scale"):
                x = x * run.params[f"residual.block.{l // 2 + 1}.scale"]
        return x
