"""What a kind says of itself, and how the random values of its parameters are drawn."""

import math

import numpy as np

ATTENTION, BOTH = "attention", "attention+mlp"
KINDS = {}


class Kind:
    """What every kind says of itself. `kind` is its name in configs; the rest has defaults."""

    kind = None
    # Keys of "residual", and optional ones. The value says which values there are, and how a directory's name tells
    # them: a format for numbers, a tuple of words, or words by value.
    settings, optional = {}, {}
    # Whether the model has a norm before the head, and norms in its blocks.
    final_norm, block_norms = True, True
    # Parameters whose name has this part get no gradient from the loss.
    without_gradient = None
    # Fields of a case that are no config fields: `settle` acts on them, and they end the directory's name.
    marks = ()
    cases = []

    def __init_subclass__(cls):
        KINDS[cls.kind] = cls()

    def parameters(self, cfg):
        """Name behind "residual." -> (shape, how its values are drawn)."""
        return {}

    def head_values(self, z):
        """The values of an untied head."""
        return 2 * z / math.sqrt(z.shape[1])

    def forward(self, run, x):
        """From the embedding to what the final norm reads, or the head if there is none."""
        raise NotImplementedError

    def logits(self, run, logits):
        """Logits from the head's product."""
        return logits

    def settle(self, cfg, params, marks, gains):
        """Changes config or parameters of a case after the draw. `gains(cfg, params)` are the gains of a forward pass."""

    def label(self, field, value):
        shown = (self.settings | self.optional)[field]
        if isinstance(shown, str):
            return shown.format(value)
        return shown[value] if isinstance(shown, dict) else value

    def wrong_settings(self, residual):
        given = set(residual) - {"kind"}
        wrong = list((given - set(self.optional)) ^ set(self.settings))
        for field in given & set(self.settings):
            shown = self.settings[field]
            wrong += [field] if not isinstance(shown, str) and residual[field] not in shown else []
        return wrong


def case(settings=None, keep=False, **fixed):
    """A golden directory: the kind's settings, and config fields that are not drawn. `keep` puts it in tests/golden-ours."""
    return settings or {}, fixed, keep


def every(sites, parameters):
    """The same parameters at each of these sites."""
    return {f"{l}.{name}": value for l in sites for name, value in parameters.items()}


def sites(cfg):
    return range(2 * cfg["n_layers"])


# ---------------------------------------------------------------- values of parameters, from normal values z


def gain(z):
    return 1 + 0.3 * np.clip(z, -2.5, 2.5)


def spread(std):
    return lambda z: std * z


def around(mean, std):
    return lambda z: mean + std * z


def by_width(z):
    """A vector as it is; the rows of a matrix divided by the root of what they are multiplied with."""
    return z if z.ndim == 1 else z / math.sqrt(z.shape[1])


def by_height(z):
    return z / math.sqrt(len(z))
