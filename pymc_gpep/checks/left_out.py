"""Leave-one-out cross-validation without draws, by rows and by groups of rows.

Latent values f = μ + R ε of the rows of a group have the posterior q = N(μ, R Rᵀ). It is the normalised product of the
sites exp(νᵀf − ½ fᵀΠf) of these rows and of q₋, the posterior given the labels of all other groups. With b = ν − Πμ,
E = I − RᵀΠR, and the labels y_I of the group

    r(ε) = q₋ / q = |E|^½ exp(−½ bᵀR E⁻¹ Rᵀb − bᵀR ε + ½ εᵀRᵀΠR ε),   p(y_I | y_-I) = ⟨∏ p(y_i | f_i) r⟩_q.

Let p = ∏ p(y_i | f_i). Weights p r hardly vary between most draws of q, since sites resemble the likelihood. But r is
unbounded, so the variance of the weights is usually infinite. Therefore half of the draws are from q₋. Weights for the
mixture of q and q₋, 2 p r / (1 + r), are at most twice the largest density of the labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.special import logsumexp

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.weights import USABLE, excess_of_tail, importance_estimate, smooth
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.log_posteriors.latent_functions import GroupOfRows, Labelled
from pymc_gpep.reading import GPClassifier

_SEED = 20_161_018  # Fixed seed of the draws: equal fits return equal results.
_EXACT = 1e-5  # Sites equal the likelihood if log likelihood minus log sites varies less, relative to its size.
ROUGH = 0.3
"""At rows with a larger `p_loo_i`, leave-one-out densities of methods that do not match moments are inaccurate."""
_NEGLIGIBLE = 0.02  # The Pareto k of a group is −inf if `excess_of_tail` is below this number.


def harmonic(log_weights: Array, log_densities: Array) -> Array:
    """Return leave-one-out log densities (n,), averaged over hyperparameters θ with log weights of p(θ | y).

    `log_densities` (s, n) are log p(y_i | y_-i, θ). The weights of θ leave the label out as well: p(θ | y_-i) is
    proportional to p(θ | y) / p(y_i | y_-i, θ).
    """
    return -logsumexp(log_weights - log_densities, axis=0)


class Groups(NamedTuple):
    """Groups of rows that are left out together."""

    name: str
    """Name of the axis over groups."""
    labels: NDArray[np.generic]
    """Names of the groups, (g,)."""
    rows: Sequence[NDArray[np.intp]]
    """Rows of each group."""


class LeftOutGroup(NamedTuple):
    """Joint log densities of the labels of a group."""

    without: float
    """Log density given the labels of all other groups; NaN if the posterior without the group's sites is improper."""
    within: float
    """Log density under the full posterior."""
    error: float
    """Standard error of `without`; 0 without sampling."""
    pareto_k: float
    """Pareto k of the weights of draws; −inf without sampling, or if the tail of the weights is negligible. It is high
    if the labels are likely under few draws.
    """


def left_out_group(group: GroupOfRows, draws: int, tolerance: float) -> LeftOutGroup:
    """Return the log densities of the labels of a group that is left out.

    Parameters
    ----------
    group : GroupOfRows
        Posterior of the m rows of the group, their sites, and the left-out observations. Sites may also represent
        observations that stay. Then it has the densities of these.
    draws : int
        Number of draws of latent values, if the group has more than one row.
    tolerance : float
        See `Fit.loo`.
    """
    c, m, p = group.root.shape
    if p > c * m:  # c * m standard normals determine the latent values of the group.
        p = c * m
        group = group._replace(root=np.linalg.qr(group.root.reshape(p, -1).T, mode="r").T.reshape(c, m, p))
    pulls = group.sites.product(group.root.transpose(2, 0, 1))
    curvature = np.tensordot(pulls, group.root, axes=((1, 2), (0, 1)))
    force = np.tensordot(group.weights, group.root, axes=2)
    bend, pull = (
        curvature,
        force,
    )  # Curvature and slope of the removed factors. By default these are all sites of the rows.
    if group.removed is not None:
        bend = np.einsum("mp,m,mq->pq", group.root[0], group.removed[0], group.root[0])
        pull = group.removed[1] @ group.root[0]
    try:
        factor = cholesky(np.eye(p) - bend, lower=True)
    except (LinAlgError, ValueError):  # For example, values are not finite.
        return LeftOutGroup(np.nan, np.nan, np.nan, np.nan)
    solved = cho_solve((factor, True), pull)
    if m == 1:
        half, mean = group.root[:, 0], group.mean.T
        outside = mean - half @ solved, half @ cho_solve((factor, True), half.T)

        def of_labels(of: Labelled, centre: Array, cov: Array) -> float:
            return float(log_predictive(of.likelihood, centre, cov[None], of.labels, tolerance=tolerance)[0])

        if group.whole is None:
            without = of_labels(group.own, *outside)
        else:
            ((_, others),) = group.kept
            without = of_labels(group.whole, *outside) - of_labels(others, *outside)
        return LeftOutGroup(without, of_labels(group.own, mean, half @ half.T), 0.0, -np.inf)
    rng = np.random.default_rng(_SEED)
    half = _pairs(rng, draws // 4, p)
    outside = solve_triangular(factor, _pairs(rng, draws // 4, p).T, lower=True, trans=1).T - solved
    noise = np.concatenate([half, outside])
    x = (noise @ group.root.reshape(c * m, p).T).reshape(-1, c, m)
    f = group.mean + x
    log_own = group.own.likelihood.log_density(f[..., : len(group.own.labels)], group.own.labels)
    log_others = np.zeros(len(f))
    for places, kept in group.kept:
        log_others += kept.likelihood.log_density(f[..., places], kept.labels)
    log_p = log_own + log_others
    log_sites = _log_sites(noise, force, curvature)
    scale = float(np.log(factor.diagonal()).sum()) - 0.5 * float(pull @ solved)
    level = log_p - log_sites
    if not group.kept and np.ptp(level) < _EXACT * (1.0 + abs(level[0])):  # Sites equal the likelihood.
        root = cholesky(np.eye(p) + curvature, lower=True)
        within = 0.5 * float(force @ cho_solve((root, True), force)) - float(np.log(root.diagonal()).sum())
        return LeftOutGroup(float(level[0]) + scale, float(level[0]) + within, 0.0, -np.inf)
    log_ratio = scale - (log_sites if group.removed is None else _log_sites(noise, pull, bend))
    # `log_ratio` is the log of r = q₋ / q. Half of the draws are from q₋, so their density is (½ + r/2) q.
    log_weights = level + scale - np.logaddexp(-np.log(2.0), -np.log(2.0) + log_ratio)
    inside = log_own[: len(half)]
    within = float(logsumexp(inside)) - float(np.log(len(inside)))
    average, _ = importance_estimate(log_weights)
    if not np.isfinite(average.value):
        return LeftOutGroup(average.value, within, np.nan, np.inf)
    pareto_k = -np.inf if excess_of_tail(log_weights) < _NEGLIGIBLE else smooth(log_weights)[1]
    weights = np.exp(log_weights - average.value)
    value = average.value
    if group.kept:
        log_weights = log_weights - log_own
        of_others, _ = importance_estimate(log_weights)
        weights = weights - np.exp(log_weights - of_others.value)
        value -= of_others.value
    # Both halves have the same fixed number of draws. So the difference of their means adds no error.
    halves = weights.reshape(2, -1)
    error = float(np.sqrt(halves.var(axis=1, ddof=1).sum() / halves.shape[1])) / 2.0
    return LeftOutGroup(value, within, error, pareto_k)


def _log_sites(noise: Array, force: Array, curvature: Array) -> Array:
    """Return log Gaussian factors (s,) at standard normals `noise` (s, p). They are 0 at the posterior mean."""
    return np.asarray(noise @ force - 0.5 * np.einsum("sp,pq,sq->s", noise, curvature, noise, optimize=True))


def _pairs(rng: np.random.Generator, count: int, size: int) -> Array:
    """Return standard normals and their negatives, (2 count, size)."""
    noise = rng.standard_normal((count, size))
    return np.concatenate([noise, -noise])


@cache
def _class_of_results() -> Any:
    """Return the class `LeaveOneOut`, created at its first use."""
    from arviz import ELPDDataLOO  # This import is slow.

    @dataclass(kw_only=True, repr=False)
    class LeaveOneOut(ELPDDataLOO):
        """Result of leave-one-out cross-validation by cavities, with the interface of ArviZ's PSIS-LOO result.

        Attributes
        ----------
        method : str
            Name of the approximation.
        n_refitted : int
            Number of points for which the solve was repeated without the point.
        groups : str or None
            Name of the groups that were left out; each group is a point of the result.
        error_i : xarray.DataArray or None
            Monte Carlo standard error of `elpd_i`, if it is sampled.
        pit_i : xarray.DataArray or None
            Probability integral transforms, if they were requested.
        n_rough : int
            Number of points with a `p_loo_i` above 0.3, for which cavities of the approximation are rough.

        Examples
        --------
        >>> loo = ep.loo()
        >>> loo.elpd, loo.elpd_i
        """

        method: str
        n_refitted: int = 0
        groups: str | None = None
        error_i: xr.DataArray | None = None
        pit_i: xr.DataArray | None = None
        n_rough: int = 0

        def _header(self) -> str:
            if self.groups is not None:
                return f"Computed from the sites of {self.method} outside each of {self.n_data_points} groups."
            again = f", and from fits without each of {self.n_refitted} of them" if self.n_refitted else ""
            rough = (
                f" {self.n_rough} observations have p_loo_i above {ROUGH}, where cavities of {self.method} have errors "
                f"of some tenths or more. Refit without each of them: loo(refit_above={ROUGH})."
            ) * bool(self.n_rough)
            return f"Computed from the cavities of {self.method} at {self.n_data_points} observations{again}.{rough}"

    LeaveOneOut.__qualname__ = LeaveOneOut.__name__
    return LeaveOneOut


def __getattr__(name: str) -> Any:
    """Return the class `LeaveOneOut`, for annotations, pickles and documentation."""
    if name == "LeaveOneOut":
        return _class_of_results()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def groups_summed_up(
    classifier: GPClassifier,
    method: str,
    groups: Groups,
    lpd: Array,
    elpd: Array,
    sampled: tuple[Array, Array],
    converged: bool,
    draws: int,
) -> Any:
    """Return a `LeaveOneOut` from log densities (g,) of groups: `lpd` given all labels, `elpd` given other groups.

    `sampled` are the standard errors (g,) of `elpd`, and the Pareto k (g,).
    """

    def by_group(values: Array) -> xr.DataArray:
        return xr.DataArray(values, dims=[groups.name], coords={groups.name: groups.labels}, name=classifier.response)

    found = _totals(by_group, lpd, elpd, converged)
    error, pareto_k = map(by_group, sampled)
    return _class_of_results()(
        method=method, groups=groups.name, error_i=error, pareto_k=pareto_k, n_samples=draws, good_k=USABLE, **found
    )


def summed_up(
    classifier: GPClassifier,
    method: str,
    lpd: Array,
    elpd: Array,
    converged: bool,
    n_refitted: int = 0,
    named: bool = True,
    pit: Array | None = None,
    n_rough: int = 0,
) -> Any:
    """Return a `LeaveOneOut` from log densities (n,) of labels: `lpd` given all labels, `elpd` given other labels.

    If `named`, points have the coords of the model.
    """
    name = classifier.response
    dim = classifier.point_dim or f"{name}_dim_0"
    labels = classifier.coords_of_points() if named else None
    coords: dict[str, Any] = {dim: np.arange(len(elpd)) if labels is None else labels}
    if (responses := classifier.responses_of_points()) is not None:
        coords["response"] = (dim, responses)

    def by_point(values: Array) -> xr.DataArray:
        return classifier.in_axes(xr.DataArray(values, dims=[dim], coords=coords, name=name), dim)

    found = _totals(by_point, lpd, elpd, converged)
    pit_i = None if pit is None else by_point(pit)
    return _class_of_results()(
        method=method, n_refitted=n_refitted, n_rough=n_rough, pit_i=pit_i, n_samples=0, good_k=None, **found
    )


def _totals(of_each: Callable[[Array], xr.DataArray], lpd: Array, elpd: Array, converged: bool) -> dict[str, Any]:
    """Return the fields of a `LeaveOneOut` from log densities of rows or groups: totals, and values of each."""
    return {
        "elpd": float(elpd.sum()),
        "se": float(np.sqrt(len(elpd) * elpd.var())),
        "p": float((lpd - elpd).sum()),
        "n_data_points": len(elpd),
        "scale": "log",
        "warning": not converged,
        "elpd_i": of_each(elpd),
        "p_loo_i": of_each(lpd - elpd),
    }
