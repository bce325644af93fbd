"""Long chains of census models, stored as means and standard deviations: `python -m tests.census.chains NAME ...`.

NUTS samples each named model and replaces its entry in `chains.json`. Models whose chains mix badly are left out. After
`--non-centred`, chains move standard normals in place of effects with a learned scale. The model is the same.
"""

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.census.test_census import declared

STORED = Path(__file__).with_name("chains.json")
LEAST = 1000
"""Smallest effective number of draws of any variable that is accepted."""


_NORMAL = pm.Normal


class NonCentred(_NORMAL):
    """`pm.Normal` as location and scale of a standard normal variable, if the scale is a random variable."""

    def __new__(cls, name, mu=0.0, sigma=None, *, tau=None, observed=None, shape=None, **kwargs):
        if observed is not None or shape is None or not isinstance(sigma if tau is None else tau, pt.TensorVariable):
            return _NORMAL(name, mu, sigma, tau=tau, observed=observed, shape=shape, **kwargs)
        scale = sigma if tau is None else 1.0 / pt.sqrt(tau)
        return pm.Deterministic(name, mu + scale * _NORMAL(f"{name}_standard", shape=shape, **kwargs))


@contextmanager
def non_centred(apply):
    """Within this context `pm.Normal` declares effects with a learned scale as non-centred, if `apply` is true."""
    with patch.object(pm, "Normal", NonCentred if apply else _NORMAL):
        yield


def sampled(name, apart=False):
    """Return the effective number of draws, and means and standard deviations of each free variable."""
    with non_centred(apart):
        model = declared(name)
    asked = [rv.name for rv in declared(name).free_RVs if not rv.name.endswith("_unobserved")]
    with model:
        draws = pm.sample(2000, tune=1000, chains=4, cores=1, target_accept=0.9, random_seed=1, progressbar=False)
    effective = az.ess(draws, var_names=asked)
    values = {each: draws.posterior[each].stack(all=("chain", "draw")) for each in asked}
    moments = {
        each: [np.round(getattr(own, moment)("all").values, 5).tolist() for moment in ("mean", "std")]
        for each, own in values.items()
    }
    return {"effective": round(min(float(effective[each].min()) for each in asked)), "moments": moments}


if __name__ == "__main__":
    stored = json.loads(STORED.read_text())
    names = [each for each in sys.argv[1:] if each != "--non-centred"]
    found = {name: sampled(name, apart=len(names) < len(sys.argv) - 1) for name in names}
    stored |= {name: own for name, own in found.items() if own["effective"] >= LEAST}
    lines = [f"{json.dumps(name)}: {json.dumps(stored[name])}" for name in sorted(stored)]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
