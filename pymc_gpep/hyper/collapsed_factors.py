"""Searches that end where a standard deviation of `pm.LKJCholeskyCov` is 0, and there is no maximum.

PyMC keeps the logarithms of the diagonal of a Cholesky factor, and all else of it as it is. In these values, and where
correlations are 0, the density of row i > 1 is that of its standard deviation σ times σ^(2 − i). Where σ has a density
at 0 the log posterior has no maximum there. It rises to a bound for i = 2, and without one for i > 2.
"""

import numpy as np
from pymc.distributions.transforms import CholeskyCovPacked

from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.optimum import Searched

__all__ = ["collapsed"]

_NOTHING = -6.0  # logarithm of a standard deviation that is hardly one of data
_FURTHER = 0.5  # a step towards 0, in logarithms
_FALLS = 1e-3  # of the log posterior over this step, and much more at a maximum


def collapsed(space: Hyperparameters, log_posterior: Searched, best: Evaluation) -> str:
    """Return which Cholesky factors lost a row, where the log posterior does not fall; empty if none did.

    Parameters
    ----------
    space : Hyperparameters
    log_posterior : Searched
        Log posterior that was searched.
    best : Evaluation
        Evaluation at which the search ended.
    """
    model, point = space.classifier.model, space.point(best.theta)
    further = {name: np.array(value, dtype=np.float64) for name, value in point.items()}
    found = {}
    for rv in space.classifier.hyperparameters:
        if not isinstance(model.rvs_to_transforms[rv], CholeskyCovPacked):
            continue
        rows = further[model.rvs_to_values[rv].name]
        n = int((np.sqrt(8 * rows.shape[-1] + 1) - 1) / 2)
        ends = np.cumsum(np.arange(1, n + 1)) - 1
        gone = rows[..., ends] < _NOTHING
        gone[..., 0] = False  # the first row is a logarithm alone
        if not gone.any():
            continue
        found[str(rv.name)] = float(np.exp(rows[..., ends][gone].min()))
        for i in range(1, n):
            away = gone[..., i]
            rows[away, ends[i]] -= _FURTHER
            rows[away, ends[i - 1] + 1 : ends[i]] *= np.exp(-_FURTHER)
    if not found:
        return ""
    beside = log_posterior(space.flat(further), best.start).log_posterior
    if not beside > best.log_posterior - _FALLS:
        return ""
    where = " and ".join(f"a standard deviation of {name!r} ran to {value:.1g}" for name, value in found.items())
    return (
        f"{where}, where the log posterior of what PyMC keeps of pm.LKJCholeskyCov does not fall, so that there is "
        "no maximum. Give it an sd_dist without density at 0, such as pm.LogNormal.dist(-1, 1) or "
        "pm.InverseGamma.dist(3, 1), or leave out effects that vary by nothing. "
        "pm.sample(model=gpep.marginalize(model)) needs no maximum"
    )
