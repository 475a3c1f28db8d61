"""A direction that each write rotates, and a lane for its norm."""

import jax
import jax.numpy as jnp
import numpy as np

from .kind import ATTENTION, BOTH, Kind, around, by_width, case, every, sites, spread


class NormAgnostic(Kind):
    """The read-out is the direction r; the norm lane s is left in run.log_norm and scales the logits."""

    kind = "nag"
    settings, optional = {"directions": "C{}"}, {"skip_threshold": "tau{}"}
    final_norm = block_norms = False
    marks = ("floor",)
    cases = [
        case({"directions": 1}, n_layers=2, tie_embeddings=True, shape=(3, 4)),
        case({"directions": 4}, n_layers=4, tie_embeddings=False),
        case({"directions": 32}, n_layers=3, tie_embeddings=False, depth_kv=ATTENTION, qk_norm=True),
        case({"directions": 1, "skip_threshold": None}, n_layers=3, tie_embeddings=False, shape=(2, 9)),
        case({"directions": 4, "skip_threshold": None}, n_layers=4, tie_embeddings=True, shape=(1, 17)),
        case({"directions": 4, "skip_threshold": None}, n_layers=3, depth_kv=BOTH, qk_norm=True, shape=(2, 9), keep=True),
        case({"directions": 32, "skip_threshold": None}, n_layers=2, depth_kv=ATTENTION, shape=(3, 6)),
        case({"directions": 4}, n_layers=2, shape=(3, 6), floor=True, keep=True),
        case({"directions": 4, "skip_threshold": None}, n_layers=3, shape=(2, 9), value_residual="learned", keep=True),
    ]

    def parameters(self, cfg):
        C, d = cfg["residual"]["directions"], cfg["d_model"]
        each = {
            "alpha": ((1,), lambda z: np.sign(z) * (0.5 + 0.06 * np.abs(z))),
            "directions": ((C, d), by_width),
            "bias": ((C,), spread(0.4)),
            "mix": ((C,), spread(0.4)),
            "sharpness": ((1,), around(0.5, 0.12)),
        }
        return every(sites(cfg), each) | {"log_gain": ((1,), spread(0.4))}

    def head_values(self, z):
        return 0.9 * z

    def forward(self, run, x):
        tau = run.cfg["residual"].get("skip_threshold", 0.0)
        norm = lambda v, eps=0.0: jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)
        r, s = x / norm(x), jnp.log(norm(x)) + run.params["residual.log_gain"]
        skipped = []
        for l in run.subs:
            gates = jax.nn.sigmoid(r @ run.residual(l, "directions").T + run.residual(l, "bias"))
            S = jnp.sum(jax.nn.softmax(run.residual(l, "mix")) * gates, axis=-1, keepdims=True)
            g = run.residual(l, "alpha") * jnp.maximum(S, 1e-6) ** jax.nn.softplus(run.residual(l, "sharpness"))
            # A skipped token still leaves its keys and values to the others, so the sub-layer runs on all tokens.
            f = run.sub(l, run.read(l, r))
            c = f - f.mean(axis=-1, keepdims=True)
            q = c - (c * r).sum(axis=-1, keepdims=True) / (r * r).sum(axis=-1, keepdims=True) * r
            y = r + g * q / norm(q, 1e-12)
            skip = jnp.abs(g) < tau
            r, s = jnp.where(skip, r, y / norm(y)), jnp.where(skip, s, s + 0.5 * jnp.log1p(g**2))
            skipped.append(skip.mean(dtype=r.dtype))
            run.gains.append(g)
        run.trace["skipped"] = jnp.stack(skipped)
        run.log_norm = s
        return r

    def logits(self, run, logits):
        return jnp.exp(run.log_norm) * logits / run.cfg["d_model"]

    def settle(self, cfg, params, marks, gains):
        if "floor" in marks:
            self.push_to_floor(cfg, params, gains)
        if "skip_threshold" in cfg["residual"]:
            cfg["residual"]["skip_threshold"] = self.choose_threshold(cfg, params, gains)

    def choose_threshold(self, cfg, params, gains):
        """The threshold that splits the tokens at the most sub-layers, then the one that the gains stay furthest away from."""
        with_threshold = lambda tau: cfg | {"residual": cfg["residual"] | {"skip_threshold": tau}}
        best = (0, 0.0, None)
        for tau in np.unique(gains(with_threshold(0.0), params).round(3)):
            seen = gains(with_threshold(tau), params)
            share, margin = (seen < tau).mean(axis=(1, 2, 3)), np.abs(seen - tau).min()
            if 0.2 <= share.mean() <= 0.6 and margin > 2e-4:
                best = max(best, (int(((share > 0) & (share < 1)).sum()), float(margin), float(tau)))
        return best[-1]

    def push_to_floor(self, cfg, params, gains):
        """Moves the gate of sub-layer 1 to where S meets its floor of 1e-6 for some tokens; a small power keeps g visible."""
        params["residual.1.bias"] -= np.float32(14.9)
        params["residual.1.sharpness"][:] = -2.2
        alpha, power = np.abs(params["residual.1.alpha"]), np.log1p(np.exp(-2.2))
        S = (gains(cfg, params)[1] / alpha) ** (1 / power)
        floored = S < 1.001e-6
        assert 0.2 < floored.mean() < 0.8 and S[~floored].min() > 1.02e-6, (floored.mean(), S.min())
