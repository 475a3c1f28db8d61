"""The residual kinds in float64, each in one place: settings, parameters, forward pass and golden cases.

A kind is one subclass of Kind in a file of this folder, and registers itself. reference.py and generate.py read KINDS and
have no other list. Written from docs/checkpoints.md and the papers, not from hadal's code.
"""

import importlib
import pkgutil

from .kind import KINDS

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")


def kind_of(residual):
    """The kind that a config's "residual" means. Older files spell Mixture-of-Depths as a prenorm with a capacity."""
    name = residual["kind"]
    return KINDS["mod" if name == "prenorm" and "capacity" in residual else name]
