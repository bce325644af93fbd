"""The effect of another prior of a hyperparameter on a fit, by other weights of its nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp, softmax

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.summary import checked_prob, summaries, summarised
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn

FITTED = "as fitted"
"""Name of the prior that the model has."""

_FEW = 1.5  # nodes that count, of which one has most of the weight


@one_blas_thread()
def sensitivity(
    fit: Fitted,
    name: str,
    priors: Mapping[str, TensorVariable],
    *,
    names: str | Sequence[str] | None = None,
    ci_prob: float | None = None,
) -> pd.DataFrame:
    """Say how far effects and hyperparameters move under other priors of a hyperparameter.

    The nodes of the fit are given other weights, so that nothing is fitted again. Only priors whose mass is where
    the nodes are can be judged. The penalised complexity prior of a standard deviation that is above u with
    probability a is `pm.Exponential.dist(-log(a) / u)`.

    Parameters
    ----------
    name : str
        A hyperparameter, such as the standard deviation of groups.
    priors : dict of str to distribution
        Other priors of it by names of the caller's choice.
    names : str or sequence of str, optional
        See `summary`.
    ci_prob : float, optional
        See `summary`.

    Returns
    -------
    DataFrame
        The table of `summary` under each prior, "as fitted" first, by `prior` and `variable`. `shift` is the change
        of a mean in standard deviations of the fit; `effective_nodes` is the number of nodes that count.

    Raises
    ------
    ValueError
        If the fit has one node, if there is no such hyperparameter, or if a prior has no density at any node. The
        same if a prior is discrete, has another shape than the hyperparameter, or is called "as fitted".
    TypeError
        If priors are no dict of distributions.

    Warns
    -----
    UserWarning
        If one node has nearly all of the weight under a prior.

    Examples
    --------
    >>> fit.sensitivity("sigma", {"wide": pm.HalfNormal.dist(5), "PC": pm.Exponential.dist(-np.log(0.01) / 2)})
    """
    fit.log_posterior.check_effects("sensitivity")
    hyper, (effects, hyperparameters) = fit.hyper_posterior, summarised(fit.classifier, names)
    prob = checked_prob(ci_prob)
    if len(hyper) < 2:
        raise ValueError(
            f"hyper={hyper.name!r} has one value of the hyperparameters, which no prior moves. Fit with hyper='grid' "
            "or hyper='ccd'."
        )
    space = hyper.log_posterior.space
    rvs = {str(rv.name): rv for rv in space.classifier.hyperparameters}
    if name not in rvs:
        raise ValueError(
            f"{name!r} is not a hyperparameter. The hyperparameters are: {', '.join(map(repr, rvs))}."
            f"{did_you_mean([name], rvs)}"
        )
    _check_priors(priors, rvs[name])
    points, of_points = hyper.continuous
    thetas = np.concatenate([hyper.theta[:, : space.size], points])
    logs = np.split(_log_ratios(hyper, thetas, rvs[name], list(priors.values())), [len(hyper)], axis=1)
    weights = [(hyper.weights, of_points)]
    for prior, at_nodes, at_points in zip(priors, *logs, strict=True):
        both = np.log(hyper.weights) + at_nodes, np.log(of_points) + at_points
        if not all(np.isfinite(logsumexp(each)) for each in both):
            raise ValueError(f"The prior {prior!r} has no density where the fit has its nodes.")
        weights.append((softmax(both[0]), softmax(both[1])))
        if (count := _effective(weights[-1][0])) < _FEW <= _effective(hyper.weights):
            warn(
                f"Too few nodes of the fit are where the prior {prior!r} has its mass: they count as {count:.1f}. Its "
                "rows say little. Fit the model again with that prior."
            )
    tables = summaries(hyper, weights, effects, hyperparameters, prob)
    fitted = tables[0]
    for table, (own, _) in zip(tables, weights, strict=True):
        table["shift"] = (table["mean"] - fitted["mean"]) / fitted["sd"]
        table["effective_nodes"] = _effective(own)
    return pd.concat(dict(zip([FITTED, *priors], tables, strict=True)), names=["prior", "variable"])


def _effective(weights: Array) -> float:
    """Return the number of nodes that count."""
    return 1.0 / float((weights**2).sum())


def _check_priors(priors: Mapping[str, Any], rv: TensorVariable) -> None:
    """Raise an error unless priors are distributions of one value of a random variable, by names of their own."""
    such_as = 'such as {"wide": pm.HalfNormal.dist(5)}'
    if not isinstance(priors, Mapping):
        raise TypeError(f"priors is a {type(priors).__name__}. Give a dict of names to distributions, {such_as}.")
    if FITTED in priors:
        raise ValueError(f"{FITTED!r} is the name of the model's own prior. Give yours another name.")
    for name, prior in priors.items():
        if not isinstance(prior, TensorVariable) or prior.owner is None:
            raise TypeError(
                f"The prior {name!r} has the type {type(prior).__name__}. Give a distribution of PyMC, {such_as}."
            )
        if np.dtype(prior.dtype).kind != "f":
            raise ValueError(f"The prior {name!r} is discrete, but {rv.name!r} is continuous. Give a continuous prior.")
        own, shape = prior.type.shape, rv.type.shape
        unlike = any(None not in pair and len(set(pair)) > 1 for pair in zip(own, shape, strict=False))
        if own and (len(own) != len(shape) or unlike):
            raise ValueError(f"The prior {name!r} has shape {own}, but {rv.name!r} has {shape}. Leave out its shape.")


def _log_ratios(hyper: HyperPosterior, thetas: Array, rv: TensorVariable, priors: Sequence[TensorVariable]) -> Array:
    """Return log densities (p, s) of priors at flat vectors (s, d), less those of the prior of a random variable."""
    space = hyper.log_posterior.space
    model = space.classifier.model
    (natural,) = model.replace_rvs_by_values([rv])
    own = model.logp(vars=[rv], jacobian=False)
    wanted = [own, *(pm.logp(prior, natural).sum() for prior in priors)]
    function = space.functions(wanted)
    found = np.array([function(space.point(theta)) for theta in thetas])
    return np.asarray(found[:, 1:].T - found[:, 0])
