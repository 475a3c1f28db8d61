"""Writes tests/scipy.json: what scipy says of recorded samples. Needs numpy and scipy; `python3 scipy.py`."""

import sys
from pathlib import Path

# This file must not be taken for the library of the same name.
here = Path(__file__).resolve().parent
sys.path = [place for place in sys.path if Path(place or ".").resolve() != here]

import json

import numpy as np
import scipy
from scipy import stats

rng = np.random.default_rng(5)
samples = {
    "two pairs": ([1.31, 1.27], [1.33, 1.35]),
    "three pairs": ([1.011, 1.034, 0.998], [1.020, 1.049, 1.013]),
    "five pairs, mixed signs": ([2.1, 2.4, 1.9, 2.2, 2.0], [2.0, 2.5, 1.9, 2.1, 2.2]),
    "one pair far away": ([0.0, 0.1, -0.1, 0.05, 9.0], [0.0, 0.0, 0.0, 0.0, 0.0]),
    "twelve normal pairs": (rng.normal(1, 0.1, 12), rng.normal(1.05, 0.1, 12)),
    "eighty skewed pairs": (rng.exponential(1.0, 80), rng.exponential(1.2, 80)),
    "hundreds, tiny p": (rng.normal(0, 1, 300), rng.normal(1, 1, 300)),
}
pairs = []
for name, (a, b) in samples.items():
    a, b = np.array(a, float), np.array(b, float)
    test = stats.ttest_rel(a, b)
    low, high = test.confidence_interval(0.95)
    own = stats.t.interval(0.95, len(a) - 1, loc=a.mean(), scale=stats.sem(a))
    boot = stats.bootstrap((a - b,), np.mean, n_resamples=200_000, method="percentile", rng=1)
    centred = (a - b) - (a - b).mean()
    means = rng.choice(centred, (200_000, len(a))).mean(axis=1)
    pairs.append({
        "name": name, "a": list(a), "b": list(b),
        "mean": a.mean(), "sd": a.std(ddof=1), "interval": list(map(float, own)),
        "difference": float((a - b).mean()), "p": float(test.pvalue), "difference_interval": [float(low), float(high)],
        "bootstrap_interval": [float(boot.confidence_interval.low), float(boot.confidence_interval.high)],
        "bootstrap_p": float((np.abs(means) >= abs((a - b).mean()) - 1e-12).mean()),
    })

degrees = [1, 2, 3, 4.5, 10, 29, 100, 1000, 100000]
cdf = [[t, v, float(stats.t.cdf(t, v))] for v in degrees for t in (-40, -3.3, -1, -1e-4, 0, 0.5, 2, 12.7)]
quantiles = [[p, v, float(stats.t.ppf(p, v))] for v in degrees for p in (1e-9, 0.025, 0.3, 0.5, 0.75, 0.975, 0.9995)]
p = [0.01, 0.04, 0.03, 0.005, 0.9]
order = np.argsort(p)
# statsmodels' multipletests(method="holm") says the same; here by its definition.
holm = np.empty(len(p))
holm[order] = np.minimum(1, np.maximum.accumulate(np.array(p)[order] * (len(p) - np.arange(len(p)))))
recorded = {"scipy": scipy.__version__, "pairs": pairs, "cdf": cdf, "quantiles": quantiles,
            "holm": {"p": p, "corrected": list(map(float, holm))}}
(here / "scipy.json").write_text(json.dumps(recorded, indent=1) + "\n")
