"""Summaries of a fit in the form of `arviz.summary`, with skewed marginals.

At each node a variable t that is affine in the latent values has the mean and variance of the Gaussian posterior. Its
third cumulant follows from the third cumulants of the tilted distributions by regression: Σ_i A_i(k_i, k_i, k_i) with
k_i = Cov(f_i, t) (`pymc_gpep.approximations.cumulants`). With one function it is Σ_i (Cov(t, f_i) / Var f_i)³ κ₃ᵢ. The
marginal is the skew normal distribution with these three cumulants, averaged over the nodes.

Variances of EP lack the term of second order in the third cumulants (Opper, Paquet and Winther 2013). It is added; with
one function it is

    ½ Σ_{i≠j} A_i A_j Cov(t, f_i) Cov(f_i, f_j)² Cov(f_j, t),   A_i = κ₃ᵢ / (Var f_i)³.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csr_array
from scipy.special import logsumexp, ndtr, owens_t, softmax

from pymc_gpep.approximations.cumulants import third_cumulants
from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.fits.datasets import axes_that_fit
from pymc_gpep.fits.effects import Conditional, conditionals, finite_moments, names_of_effects, without_moments
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.latent.latent_prior import Joint
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn

_MOST_SKEWED = 0.99  # Largest absolute skewness of a marginal. The limit of skew normal distributions is 0.9953.
_HALVINGS = 60  # Number of bisections in the search of a quantile.
_RANGE = 12.0  # Half width of the range of that search, in standard deviations.
_MOST_VALUES = 3000  # Largest number of latent values with the term of second order, a sum over all pairs.
_NO_MOMENTS = "no mean or variance: the data do not inform it, and its prior has none"
_OF_TAILS = "no mean or variance: {} has a heavy tail", "no variance: {} has a heavy tail"
_AT_MAXIMUM, _OF_MAXIMUM = "at its maximum", "function of hyperparameters at their maximum"
_COLUMNS = 64  # Number of entries of variables in a block. A block's covariances with all rows are in memory.
# Largest number of covariances between entries and latent values, summed over the nodes with skewness.
_COVARIANCES = 30_000_000
_MOST_COVARIANCES = 2_000_000_000  # Largest number of such covariances at one node. Above it marginals are normal.


_LEVELS = ndtr(np.linspace(-4.5, 4.5, 181))  # Levels at which marginals that are not skew normal store their quantiles.
_MASSES = np.diff(np.r_[0.0, 0.5 * (_LEVELS[1:] + _LEVELS[:-1]), 1.0])


class SkewNormals(NamedTuple):
    """Mixtures of skew normal distributions, one for each of m numbers."""

    weights: Array
    """Weights of the parts, (s,); they sum to 1."""
    mean: Array
    """Means of the parts, (s, m)."""
    sd: Array
    """Standard deviations of the parts, (s, m)."""
    skewness: Array
    """Skewnesses of the parts, (s, m)."""
    tilted: Mapping[int, Array] = MappingProxyType({})
    """Quantiles (s, k) at the levels `_LEVELS` of numbers with other distributions, by position of the number."""

    def quantiles(self, p: float) -> Array:
        """Return the quantiles (m,) at probability p, by bisection."""
        size = np.cbrt(np.clip(self.skewness, -_MOST_SKEWED, _MOST_SKEWED) * 2.0 / (4.0 - np.pi))
        delta = size / np.sqrt(1.0 + size**2) * np.sqrt(np.pi / 2.0)  # δ of the skew normal distribution.
        alpha = delta / np.sqrt(1.0 - delta**2)
        scale = self.sd / np.sqrt(1.0 - 2.0 * delta**2 / np.pi)
        location = self.mean - scale * delta * np.sqrt(2.0 / np.pi)
        low, high = (self.mean - _RANGE * self.sd).min(axis=0), (self.mean + _RANGE * self.sd).max(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            for _ in range(_HALVINGS):
                middle = 0.5 * (low + high)
                z = (middle - location) / scale
                below = self.weights @ np.where(scale > 0.0, ndtr(z) - 2.0 * owens_t(z, alpha), middle >= location) < p
                low, high = np.where(below, middle, low), np.where(below, high, middle)
        found = np.asarray(0.5 * (low + high))
        masses = np.outer(self.weights, _MASSES).ravel()
        for place, own in self.tilted.items():
            found[place] = _quantiles(own.reshape(-1, 1), masses, p)[0]
        return found

    def moments(self) -> tuple[Array, Array]:
        """Return means and standard deviations (m,)."""
        mean = self.weights @ self.mean
        return mean, np.sqrt(self.weights @ (self.sd**2 + (self.mean - mean) ** 2))


@one_blas_thread()
def summary(
    fit: Fitted,
    names: str | Sequence[str] | None = None,
    *,
    ci_prob: float | None = None,
) -> pd.DataFrame:
    """Summarise effects and hyperparameters in a table with the columns of `arviz.summary`.

    Marginals of effects may be skewed. With up to 3000 latent values, standard deviations of `"ep"`, `"nested_ep"` and
    `"qep"` include a correction of second order; `std_data` does not include it. With many entries and rows, skewness
    is computed at the nodes with the largest weights. The other nodes use its average. Marginals of hyperparameters
    describe the draws of `sample`.

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
        rough marginals of hyperparameters, with the remedy.

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
    """Return the table of `Fit.summary` for each pair of weights.

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
        notes = [note or (*_OF_TAILS, "")[own].format(scales) for note, own in zip(notes, count, strict=True)]
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
    """Return how many moments (0, 1 or 2) each entry has, first of effects, then of hyperparameters."""
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
    """Return a note for each entry of hyperparameters that are at their maximum or have rough marginals; else ""."""
    natural = hyper.log_posterior.space.natural(hyper.theta[:, : hyper.log_posterior.space.size]) if names else {}
    spreads = [np.ptp(natural[name].reshape(len(hyper), -1), axis=0) for name in names]
    return [_AT_MAXIMUM if width == 0.0 else hyper.doubt for each in spreads for width in each]


def _notes_of_effects(hyper: HyperPosterior, mixture: SkewNormals, labels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a note for each entry that lacks moments or is a function of hyperparameters at their maximum; else ""."""
    classifier, held = hyper.log_posterior.classifier, set(hyper.at_maximum)
    behind = {name: ancestors([classifier.model[name]], blockers=classifier.prior.sources) for name in labels}
    known = {name: any(v.name in held for v in found) for name, found in behind.items()}
    fixed = ~mixture.sd.any(axis=0) & (np.ptp(mixture.mean, axis=0) == 0.0)
    fixed &= [known[name] for name, each in labels.items() for _ in each]
    unknown = np.isnan(mixture.mean).any(axis=0)
    return [_OF_MAXIMUM * bool(own) + _NO_MOMENTS * bool(no) for own, no in zip(fixed, unknown, strict=True)]


def _of_effects(hyper: HyperPosterior, names: Sequence[str]) -> tuple[SkewNormals, dict[str, list[str]]]:
    """Return marginals of the concatenated entries of variables, and names of the entries by variable."""
    log_posterior = hyper.log_posterior
    joint = log_posterior.space.variables.affine(names)
    means, variances = [], []
    corrections = np.full((len(hyper), 2, 0), np.nan)
    shapes: dict[str, tuple[int, ...]] = {}
    for s, each in enumerate(conditionals(hyper)):
        own = joint(each.point, each.functions)
        shapes = {name: np.shape(own.means[name]) for name in names}
        means.append(np.concatenate([np.ravel(own.means[name]) for name in names]))
        of_each = own.variances()
        variances.append(np.concatenate([np.ravel(of_each[name]) for name in names]))
        if s == 0:
            corrections = np.full((len(hyper), 2, means[0].size), np.nan)
            looked_at = _looked_at(hyper, own, means[0].size, each.solution.mean.size if log_posterior.joint else 0)
        if s in looked_at:
            added, third = _beyond_gaussian(own, names, each, log_posterior)
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.nan_to_num(np.maximum(added / variances[-1], -0.5))
                skewness = np.nan_to_num(third / (variances[-1] * (1.0 + share)) ** 1.5, posinf=0.0, neginf=0.0)
            corrections[s] = share, skewness
    known = ~np.isnan(corrections[:, 0, 0]) if means[0].size else np.zeros(len(hyper), bool)
    mean_correction = np.tensordot(hyper.weights[known], corrections[known], 1) / max(
        hyper.weights[known].sum(), 1e-300
    )
    corrections[~known] = mean_correction
    sd = np.sqrt(np.array(variances) * (1.0 + corrections[:, 0]))
    labels = {name: _labels(hyper, name, shapes[name]) for name in names}
    mean, skewness = np.array(means), corrections[:, 1]
    lacking = without_moments(hyper, names)
    if lacking:
        unknown = np.concatenate([lacking.get(name, np.zeros(len(labels[name]), bool)) for name in names])
        mean[:, unknown] = sd[:, unknown] = np.nan
    return SkewNormals(hyper.weights, mean, sd, skewness, _of_priors(hyper, labels)), labels


def _of_priors(hyper: HyperPosterior, labels: Mapping[str, Sequence[str]]) -> dict[int, Array]:
    """Return quantiles (s, k) of effects with non-normal priors, by their positions among all entries."""
    if labels.keys().isdisjoint(hyper.log_posterior.classifier.effects_by_factors):
        return {}
    of_nodes = [each.quantiles_of_priors(_LEVELS) for each in conditionals(hyper)]
    starts = dict(zip(labels, np.cumsum([0, *map(len, labels.values())]), strict=False))
    return {
        int(starts[name]) + i: np.array([own[name][:, i] for own in of_nodes])
        for name in of_nodes[0]
        if name in labels
        for i in range(len(labels[name]))
    }


def _looked_at(hyper: HyperPosterior, own: Joint, entries: int, values: int) -> frozenset[int]:
    """Return the nodes with the largest weights, at which skewness and second-order terms are computed.

    Other nodes use the averages over these nodes.
    """
    if not hyper.log_posterior.joint:  # Skewness needs the latent values of all rows.
        return frozenset()
    cost = (entries + (own.size if values <= _MOST_VALUES else 0)) * values
    count = 0 if cost > _MOST_COVARIANCES else max(1, _COVARIANCES // max(cost, 1))
    return frozenset(np.argsort(-hyper.weights, kind="stable")[:count].tolist())


def _beyond_gaussian(own: Joint, names: Sequence[str], each: Conditional, log_posterior: LogPosterior) -> Array:
    """Return variance corrections and third cumulants (2, m) of all entries of variables.

    For few entries the term of second order of one function is, with f = J z and a = A k,

        ½ (tr(BVBV) − Σ_i a_i² (Var f_i)²),   B = Jᵀ diag(a) J,

    with the posterior covariance V of z, which is smaller than the covariance matrix of f.
    """
    solution, functions = each.solution, each.functions
    weights = third_cumulants(solution)
    parts = [
        (name, slice(start, min(start + _COLUMNS, np.size(own.means[name]))))
        for name in names
        for start in range(0, np.size(own.means[name]), _COLUMNS)
    ]
    entries = sum(some.stop - some.start for _, some in parts)
    if weights is None:
        return np.zeros((2, entries))
    by_normals = not log_posterior.classifier.prior.samples_values
    image = functions.of_normals if by_normals else lambda each: each
    c, n = solution.mean.shape
    covs = [image(own.moved(own.columns(name, some))).reshape(c, n, -1) for name, some in parts]
    third = [np.einsum("iabd,ait,bit,dit->t", weights, along, along, along, optimize=True) for along in covs]
    if not log_posterior.approximator.matches_moments or c * n > _MOST_VALUES:
        return np.stack([np.zeros(entries), np.concatenate(third)])
    blocks = [np.eye(own.size, min(_COLUMNS, own.size - start), -start) for start in range(0, own.size, _COLUMNS)]
    if by_normals and c == 1 and entries * own.size**2 <= n**2:
        cov = np.concatenate([own.moved(unit) for unit in blocks], axis=1)
        a = weights.reshape(n, 1) * np.concatenate([along[0] for along in covs], axis=1)
        moved = [csr_array(functions.gram(each)) @ cov for each in a.T]
        added = 0.5 * (np.array([(m * m.T).sum() for m in moved]) - (a.T * solution.cov[:, 0, 0]) ** 2 @ np.ones(n))
        return np.stack([added, np.concatenate(third)])
    cov = np.zeros((c * n, c * n))
    for unit in blocks:
        cov += image(own.moved(unit)) @ image(unit).T
    pairs = second_order(weights, cov.reshape(c, n, c, n))
    flat = [along.swapaxes(0, 1).reshape(c * n, -1) for along in covs]
    added = np.concatenate([np.einsum("it,it->t", each, pairs @ each) for each in flat])
    return np.stack([added, np.concatenate(third)])


def second_order(weights: Array, cov: Array) -> Array:
    """Return the matrix M (nc, nc) of the term of second order kᵀMk, with zero blocks on the diagonal.

    Its blocks are ½ A_i(·, b, e) C_ij(b, f) C_ij(e, g) A_j(·, f, g), summed over repeated indices.

    Parameters
    ----------
    weights : array (n, c, c, c)
        Third cumulants A of each row, in units of its precision.
    cov : array (c, n, c, n)
        Posterior covariance of latent values.
    """
    c, n = cov.shape[:2]
    if c == 1:
        own, pairs = weights.reshape(n), cov.reshape(n, n)
        pairs = 0.5 * own * pairs * pairs
        pairs *= own[:, None]
        np.fill_diagonal(pairs, 0.0)
        return pairs
    found = np.empty((n, c, n, c))
    for i, own in enumerate(weights):
        with_others = cov[:, i]
        half = np.einsum("aefj,egj->afgj", np.tensordot(own, with_others, 1), with_others)
        found[i] = 0.5 * np.einsum("afgj,jdfg->ajd", half, weights)
        found[i, :, i] = 0.0
    return found.reshape(n * c, n * c)


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
        rows.append(np.column_stack([mean, sd, *(_quantiles(flat, weights, p) for p in tails)]))
        labels += _labels(hyper, name, natural[name].shape[1:])
    return pd.DataFrame(np.concatenate(rows), index=labels)


def _quantiles(values: Array, weights: Array, p: float) -> Array:
    """Return the quantiles (k,) of weighted values (m, k), counting half of the weight of each value as below it."""
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]
    ordered = np.take_along_axis(values, order, axis=0)
    return np.array([np.interp(p, below[:, k], ordered[:, k]) for k in range(values.shape[1])])


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
    import arviz as az

    found = float(az.rcParams["stats.ci_prob"]) if ci_prob is None else ci_prob
    if not 0.0 < found < 1.0:
        raise ValueError(f"ci_prob is {found}, but must be between 0 and 1.")
    return found


FITTED = "as fitted"
"""Row label of the model's prior in tables."""

_FEW = 1.5  # Effective number of nodes below which one node has most of the weight.


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
    """Return the effective number of weighted nodes."""
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
