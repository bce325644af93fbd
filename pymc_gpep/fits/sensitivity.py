"""The effect of another prior of a hyperparameter on a fit, by other weights of its nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp

from pymc_gpep.array_types import Array
from pymc_gpep.fits.summary import summaries
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.structure.interpreted import graph_function

__all__ = ["FITTED", "sensitivity"]

FITTED = "as fitted"
"""Name of the prior that the model has."""


def sensitivity(
    hyper: HyperPosterior,
    name: str,
    priors: Mapping[str, Any],
    names: Sequence[str],
    hyperparameters: Sequence[str],
    ci_prob: float,
) -> pd.DataFrame:
    """Summarise a fit under other priors of a hyperparameter; see `Fit.sensitivity`."""
    if len(hyper) < 2:
        raise ValueError(
            f"hyper={hyper.name!r} has one value of the hyperparameters, which no prior moves. Fit with hyper='grid' "
            "or hyper='ccd'."
        )
    space = hyper.log_posterior.space
    rvs = {str(rv.name): rv for rv in space.classifier.hyperparameters}
    if name not in rvs:
        raise ValueError(f"{name!r} is no hyperparameter; there are {', '.join(map(repr, rvs))}.")
    logs = _log_ratios(hyper, rvs[name], list(priors.values()))
    weights = [hyper.weights]
    for prior, own in zip(priors, np.log(hyper.weights) + logs, strict=True):
        total = logsumexp(own)
        if not np.isfinite(total):
            raise ValueError(f"The prior {prior!r} has no density where the fit has its nodes.")
        weights.append(np.exp(own - total))
    tables = summaries(hyper, weights, names, hyperparameters, ci_prob, seed=0)
    fitted = tables[0]
    for table, own in zip(tables, weights, strict=True):
        table["shift"] = (table["mean"] - fitted["mean"]) / fitted["sd"]
        table["effective_nodes"] = 1.0 / float((own**2).sum())
    return pd.concat(dict(zip([FITTED, *priors], tables, strict=True)), names=["prior", "variable"])


def _log_ratios(hyper: HyperPosterior, rv: TensorVariable, priors: Sequence[TensorVariable]) -> Array:
    """Return log densities (p, s) of priors at the nodes, less those of the prior of a random variable."""
    space = hyper.log_posterior.space
    model = space.classifier.model
    (natural,) = model.replace_rvs_by_values([rv])
    own = model.logp(vars=[rv], jacobian=False)
    wanted = [own, *(pm.logp(prior, natural).sum() for prior in priors)]
    function = graph_function(model, space.value_vars, graph_replace(wanted, space.data, strict=False))
    found = np.array([function(*(hyper.point(s)[v.name] for v in space.value_vars)) for s in range(len(hyper))])
    return np.asarray(found[:, 1:].T - found[:, 0])
