"""Summaries of a fit in the form of `arviz.summary`, with skewed marginals."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp, softmax

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.fits.datasets import axes_that_fit
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.marginals import (
    SkewNormals,
    entries_of,
    finite_moments,
    mixture_of,
    of_priors,
    quantiles_of,
    without_moments,
)
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import names_of_effects
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn

# Notes are short. A long note would hide other columns of the table in a narrow console.
_NO_MOMENTS, _OF_TAILS = "its prior has no moments", "heavy tail of {}"
_AT_MAXIMUM, _OF_MAXIMUM, _ROUGH = "at its maximum", "function of maxima", "rough: see print(fit)"


@one_blas_thread()
def summary(
    fit: Fitted,
    names: str | Sequence[str] | None = None,
    *,
    ci_prob: float | None = None,
) -> pd.DataFrame:
    """Summarise effects and hyperparameters in a table with the columns of `arviz.summary`.

    Marginals of effects may be skewed. With up to 3000 latent values, standard deviations of `"ep"`, `"nested_ep"` and
    `"qep"` include a correction of second order. `std_data` and draws do not include it. Marginals far from normal,
    such as between the bounds of a `pm.Uniform`, are computed from all rows given the effect, if possible by EP. With
    many entries and rows, corrections are computed at the nodes with the largest weights, and averaged for the other
    nodes. Marginals of hyperparameters describe the draws of `sample`.

    Parameters
    ----------
    names : str or sequence of str, optional
        Names of effects and hyperparameters. The default is all effects (see `effects`) and all hyperparameters.
    ci_prob : float, optional
        Probability of the equal-tailed interval; by default ArviZ's `stats.ci_prob`.

    Returns
    -------
    DataFrame
        Columns `mean`, `sd`, and the ends of the interval, such as `eti95_lb` and `eti95_ub`. Rows have the names of
        ArviZ. `sd` and interval are NaN for a hyperparameter at its maximum, and for functions of such hyperparameters.
        A mean or variance that does not exist is NaN as well. A column `note` then states the reasons. It also marks
        rough marginals of hyperparameters; `print(fit)` states the remedy.

    Raises
    ------
    ValueError
        If a variable is not affine in the integrated variables, or not in the model. If `ci_prob` is not between 0 and
        1.

    Examples
    --------
    >>> fit.summary(ci_prob=0.95)
    >>> fit.summary(["level", "sigma"])
    """
    fit.log_posterior.check_effects("summary")
    hyper = fit.hyper_posterior
    weights = [(hyper.weights, hyper.continuous[1])]
    return summaries(hyper, weights, *summarised(fit.classifier, names), checked_prob(ci_prob))[0]


def summarised(classifier: GPClassifier, names: str | Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split names into effects and hyperparameters; None stands for all names."""
    known = [str(rv.name) for rv in classifier.hyperparameters]
    given = [*names_of_effects(classifier), *known] if names is None else names
    given = [given] if isinstance(given, str) else list(given)
    if not given:
        raise ValueError("names is empty. Leave it out to summarise all variables.")
    return [name for name in given if name not in known], [name for name in given if name in known]


def summaries(
    hyper: HyperPosterior,
    weights: Sequence[tuple[Array, Array]],
    names: Sequence[str],
    hyperparameters: Sequence[str],
    ci_prob: float,
) -> list[pd.DataFrame]:
    """Return a list of tables as in `Fit.summary`, one table for each pair of weights.

    A pair is the weights (s,) of the nodes and the weights (m,) of the points of `HyperPosterior.continuous`. Each
    array sums to 1.
    """
    tails = 0.5 * (1.0 - ci_prob), 0.5 * (1.0 + ci_prob)
    ends = [f"eti{round(100 * ci_prob)}_{end}" for end in ("lb", "ub")]
    natural = hyper.log_posterior.space.natural(hyper.continuous[0]) if hyperparameters else {}
    mixture, labels = _of_effects(hyper, names) if names else (None, {})
    notes = _notes_of_hyperparameters(hyper, hyperparameters)
    if mixture is not None:
        notes = _notes_of_effects(hyper, mixture, labels) + notes
    count = _finite_moments(hyper, labels, hyperparameters)
    if hyper.tails:
        scales = ", ".join(dict.fromkeys(repr(name) for tail in hyper.tails for name in tail.names))
        notes = [note or _OF_TAILS.format(scales) * bool(own < 2) for note, own in zip(notes, count, strict=True)]
    tables = []
    for own, of_points in weights:
        found = []
        if mixture is not None:
            mixed = mixture._replace(weights=own)
            rows = np.column_stack([*mixed.moments(), *map(mixed.quantiles, tails)])
            found.append(pd.DataFrame(rows, index=[label for each in labels.values() for label in each]))
        if hyperparameters:
            found.append(_of_hyperparameters(hyper, natural, of_points, hyperparameters, tails))
        table = pd.concat(found).set_axis(["mean", "sd", *ends], axis=1)
        for lowest, column in enumerate(("mean", "sd"), start=1):
            table.loc[count < lowest, column] = np.nan
        tables.append(_noted(table, notes))
    return tables


def _finite_moments(
    hyper: HyperPosterior, labels: Mapping[str, Sequence[str]], hyperparameters: Sequence[str]
) -> NDArray[np.int64]:
    """Return the number of finite moments (0, 1 or 2) of each entry, first of effects, then of hyperparameters."""
    found = finite_moments(hyper, list(labels))
    owners = np.array(hyper.log_posterior.space.owners)
    of_elements = np.full(owners.size, 2)
    for tail in hyper.tails:
        of_elements[list(tail.places)] = np.minimum(of_elements[list(tail.places)], tail.moments)
    parts = [found.get(name, np.full(len(each), 2)) for name, each in labels.items()]
    return np.concatenate([*parts, *(of_elements[owners == name] for name in hyperparameters)])


def _noted(table: pd.DataFrame, notes: Sequence[str]) -> pd.DataFrame:
    """Add a column of notes. Entries at a maximum have NaN in all other columns but the mean."""
    if not any(notes):
        return table
    has_note = np.isin(notes, [_AT_MAXIMUM, _OF_MAXIMUM])
    table.loc[has_note, table.columns[1:]] = np.nan
    return table.assign(note=notes)


def _notes_of_hyperparameters(hyper: HyperPosterior, names: Sequence[str]) -> list[str]:
    """Return a note for each entry of a hyperparameter: at its maximum, rough marginal, or else ""."""
    natural = hyper.log_posterior.space.natural(hyper.theta[:, : hyper.log_posterior.space.size]) if names else {}
    spreads = [np.ptp(natural[name].reshape(len(hyper), -1), axis=0) for name in names]
    return [_AT_MAXIMUM if width == 0.0 else _ROUGH * bool(hyper.doubt) for each in spreads for width in each]


def _notes_of_effects(hyper: HyperPosterior, mixture: SkewNormals, labels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a note for each entry of an effect: no moments, function of fixed hyperparameters, or else ""."""
    classifier, held = hyper.log_posterior.classifier, set(hyper.at_maximum)
    behind = {name: ancestors([classifier.model[name]], blockers=classifier.prior.sources) for name in labels}
    known = {name: any(v.name in held for v in found) for name, found in behind.items()}
    fixed = ~mixture.sd.any(axis=0) & (np.ptp(mixture.mean, axis=0) == 0.0)
    fixed &= [known[name] for name, each in labels.items() for _ in each]
    unknown = np.isnan(mixture.mean).any(axis=0)
    return [_OF_MAXIMUM * bool(own) + _NO_MOMENTS * bool(no) for own, no in zip(fixed, unknown, strict=True)]


def _of_effects(hyper: HyperPosterior, names: Sequence[str]) -> tuple[SkewNormals, dict[str, list[str]]]:
    """Return marginals of all entries of the variables, and names of the entries, by name of variable."""
    mixture, heaviest = mixture_of(hyper, entries_of(hyper, names))
    labels = {name: _labels(hyper, name, np.shape(heaviest.joint.means[name])) for name in names}
    if lacking := without_moments(hyper, names):
        unknown = np.concatenate([lacking.get(name, np.zeros(len(labels[name]), bool)) for name in names])
        mixture.mean[:, unknown] = mixture.sd[:, unknown] = np.nan
    sizes = {name: len(each) for name, each in labels.items()}
    return mixture._replace(tilted=of_priors(hyper, sizes) | dict(mixture.tilted)), labels


def _of_hyperparameters(
    hyper: HyperPosterior,
    natural: dict[str, Array],
    weights: Array,
    names: Sequence[str],
    tails: tuple[float, float],
) -> pd.DataFrame:
    """Return means, standard deviations and quantiles of weighted values (m, ...) of hyperparameters."""
    rows, labels = [], []
    for name in names:
        flat = natural[name].reshape(len(weights), -1)
        mean = weights @ flat
        sd = np.sqrt(weights @ (flat - mean) ** 2)
        rows.append(np.column_stack([mean, sd, *(quantiles_of(flat, weights, p) for p in tails)]))
        labels += _labels(hyper, name, natural[name].shape[1:])
    return pd.DataFrame(np.concatenate(rows), index=labels)


def _labels(hyper: HyperPosterior, name: str, shape: tuple[int, ...]) -> list[str]:
    """Return ArviZ's names of the entries of a variable."""
    if not shape:
        return [name]
    classifier = hyper.log_posterior.classifier
    axes = [labels for _, labels in axes_that_fit(classifier.model, name, shape, classifier.coords)]
    return [f"{name}[{', '.join(map(str, labels))}]" for labels in product(*axes)]


def checked_prob(ci_prob: float | None) -> float:
    """Check the probability of an interval and return it; for None return the default of ArviZ.

    Raises
    ------
    ValueError
        If it is not between 0 and 1.
    """
    from arviz_base import rcParams

    found = float(rcParams["stats.ci_prob"]) if ci_prob is None else ci_prob
    if not 0.0 < found < 1.0:
        raise ValueError(f"ci_prob is {found}, but must be between 0 and 1.")
    return found


FITTED = "as fitted"
"""Row label of the model's prior in tables."""

_FEW = 1.5  # With a smaller effective number of nodes, one node has most of the weight.


@one_blas_thread()
def sensitivity(
    fit: Fitted,
    name: str,
    priors: Mapping[str, TensorVariable],
    *,
    names: str | Sequence[str] | None = None,
    ci_prob: float | None = None,
) -> pd.DataFrame:
    """Return the summary of the fit under other priors of a hyperparameter.

    The nodes of the fit are weighted again; the model is not fitted again. This works for priors with mass at the
    nodes. The penalised complexity prior with P(σ > u) = a of a standard deviation σ is `pm.Exponential.dist(-log(a) /
    u)`.

    Parameters
    ----------
    name : str
        Name of a hyperparameter, such as the standard deviation of groups.
    priors : dict of str to distribution
        Alternative priors of the hyperparameter, by names of your choice.
    names : str or sequence of str, optional
        See `summary`.
    ci_prob : float, optional
        See `summary`.

    Returns
    -------
    DataFrame
        The tables of `summary` under each prior, indexed by `prior` and `variable`. The first prior, "as fitted", is
        the prior of the model. `shift` is the change of a mean in standard deviations of the fit. `effective_nodes` is
        the effective number of nodes.

    Raises
    ------
    ValueError
        If the fit has one node, the hyperparameter does not exist, or a prior has zero density at all nodes. If a prior
        is discrete, has another shape than the hyperparameter, or has the name "as fitted".
    TypeError
        If `priors` is not a dict of distributions.

    Warns
    -----
    UserWarning
        If one node has nearly all the weight under a prior.

    Examples
    --------
    >>> fit.sensitivity("sigma", {"wide": pm.HalfNormal.dist(5), "PC": pm.Exponential.dist(-np.log(0.01) / 2)})
    """
    fit.log_posterior.check_effects("sensitivity")
    hyper, (effects, hyperparameters) = fit.hyper_posterior, summarised(fit.classifier, names)
    prob = checked_prob(ci_prob)
    if len(hyper) < 2:
        raise ValueError(
            f"hyper={hyper.name!r} has a single value of the hyperparameters. Fit with hyper='grid' or hyper='ccd'."
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
            raise ValueError(f"The prior {prior!r} has zero density at all nodes of the fit.")
        weights.append((softmax(both[0]), softmax(both[1])))
        if (count := _effective(weights[-1][0])) < _FEW <= _effective(hyper.weights):
            warn(
                f"The prior {prior!r} has its mass at too few nodes of the fit (effectively {count:.1f}). "
                "Its rows are inaccurate. Fit the model again with that prior."
            )
    tables = summaries(hyper, weights, effects, hyperparameters, prob)
    fitted = tables[0]
    for table, (own, _) in zip(tables, weights, strict=True):
        table["shift"] = (table["mean"] - fitted["mean"]) / fitted["sd"]
        table["effective_nodes"] = _effective(own)
    return pd.concat(dict(zip([FITTED, *priors], tables, strict=True)), names=["prior", "variable"])


def _effective(weights: Array) -> float:
    """Return the effective number of nodes with these weights."""
    return 1.0 / float((weights**2).sum())


def _check_priors(priors: Mapping[str, Any], rv: TensorVariable) -> None:
    """Check that priors are a dict of continuous distributions with the shape of a random variable."""
    such_as = 'such as {"wide": pm.HalfNormal.dist(5)}'
    if not isinstance(priors, Mapping):
        raise TypeError(f"priors is a {type(priors).__name__}. Give a dict of names to distributions, {such_as}.")
    if FITTED in priors:
        raise ValueError(f"{FITTED!r} is the name of the model's own prior. Choose another name.")
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
    """Return log ratios (p, s) of alternative priors to the prior of a hyperparameter, at flat vectors (s, d)."""
    space = hyper.log_posterior.space
    model = space.classifier.model
    (natural,) = model.replace_rvs_by_values([rv])
    own = model.logp(vars=[rv], jacobian=False)
    wanted = [own, *(pm.logp(prior, natural).sum() for prior in priors)]
    function = space.functions(wanted)
    found = np.array([function(space.point(theta)) for theta in thetas])
    return np.asarray(found[:, 1:].T - found[:, 0])
