"""Mixture-of-Depths."""

import jax
import jax.numpy as jnp

from .kind import Kind, by_width, case, every, spread


class MixtureOfDepths(Kind):
    """Tokens that the predictor sends past a routed block keep their stream, and leave no keys there."""

    kind = "mod"
    settings = {"capacity": "c{}"}
    optional = {"every": "every{}"}
    without_gradient = ".predictor."
    cases = [
        case({"kind": "prenorm", "capacity": 0.5}, n_layers=4, shape=(3, 7), keep=True),
        case({"kind": "prenorm", "capacity": 0.5}, n_layers=4, shape=(2, 9), value_residual="learned", keep=True),
        case({"kind": "prenorm", "capacity": 0.25, "every": 3}, n_layers=3, shape=(1, 17), qk_norm=True),
    ]

    def routed(self, cfg, block):
        return (block + 1) % cfg["residual"].get("every", 2) == 0

    def parameters(self, cfg):
        d = cfg["d_model"]
        blocks = [i for i in range(cfg["n_layers"]) if self.routed(cfg, i)]
        hidden = {"predictor.hidden.weight": ((32, d), by_width), "predictor.hidden.bias": ((32,), spread(0.5))}
        out = {"predictor.out.weight": ((32,), spread(0.5)), "predictor.out.bias": ((1,), spread(0.1))}
        return every(blocks, {"router.weight": ((d,), spread(0.4))} | hidden | out)

    def forward(self, run, x):
        skipped = []
        for i in range(run.cfg["n_layers"]):
            if not self.routed(run.cfg, i):
                x = x + run.F(2 * i, x)
                x = x + run.F(2 * i + 1, x)
                skipped += [0.0, 0.0]
                continue
            of = lambda name: run.residual(i, name)
            weight = (x @ of("router.weight"))[..., None]
            hidden = jax.nn.relu(run.rms(x) @ of("predictor.hidden.weight").T + of("predictor.hidden.bias"))
            runs = (hidden @ of("predictor.out.weight"))[..., None] + of("predictor.out.bias") > 0
            a = jnp.where(runs, run.F(2 * i, x, exists=runs), 0)
            x = jnp.where(runs, x + weight * (a + run.F(2 * i + 1, x + a)), x)
            skipped += 2 * [1 - runs.mean(dtype=x.dtype)]
        run.trace["skipped"] = jnp.asarray(skipped)
        return x
