"""Importance sampling of the exact posterior of the latent values, for all points together and for blocks of points.

Draws of q(f) have the weights p(f) p(y | f) / q(f), at the hyperparameters of the fit. The mean weight estimates the
evidence. The Pareto k of Vehtari, Simpson, Gelman, Yao and Gabry (2024) measures the tail of the weights. It shows
whether weighted draws of q represent the posterior (Yao, Vehtari, Simpson and Gelman 2018).

A joint weight is a product over all points. With many points the tail of the weights is heavy even if the fit is good
at each point. Therefore `block_check` also weights the draws by blocks. A block is a point with its most correlated
points. Likelihoods replace the sites of a block, and all other sites stay. The weights of a block change the
probability of the label of its point. This change is the local part of the error of the fit. A block of a single point
would not show this error, since expectation propagation matches the moments of a point.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import softmax

from pymc_gpep.approximations import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.weights import importance_estimate, smooth, smooth_each, stand_for_posterior
from pymc_gpep.log_posteriors.latent_functions import without_common

_SIZES = (16, 8, 4)
"""Numbers of points in a block, in order. The first number with usable weights is used."""
_ENTRIES = 1_000_000  # Largest size of a temporary array.


class BlockCheck(NamedTuple):
    """Changes of the probabilities of labels by the weights of blocks, at n points."""

    shift: Array
    """Probability (or density) of the label by weighted draws minus the probability by the fit, (n,)."""
    standard_error: Array
    """Monte Carlo standard error of the shift, (n,)."""
    pareto_k: Array
    """Pareto k of the block's weights, (n,)."""
    size: NDArray[np.int64]
    """Number of points in the block, (n,); 0 if weights are unusable for all sizes."""


def block_check(log_likelihood: Array, log_sites: Array, x: Array) -> BlockCheck:
    """Weight draws of a fit by the block of each point.

    Parameters
    ----------
    log_likelihood, log_sites : array (draws, n)
        Log likelihood and log site of each point, up to a constant.
    x : array (draws, c, n)
        Latent values. If the likelihood depends only on differences of functions, their mean is subtracted.
    """
    draws, n = log_likelihood.shape
    log_ratio = log_likelihood - log_sites
    top = log_likelihood.max(axis=0)
    relative = np.exp(log_likelihood - top)
    fitted = relative.mean(axis=0)
    near = _near(x, min(n, _SIZES[0]))
    shift, error, pareto_k, size = nothing_known(n)
    step = max(1, _ENTRIES // (draws * _SIZES[0]))
    for points in _SIZES:
        left = np.flatnonzero(size == 0)
        for rows in (left[start : start + step] for start in range(0, left.size, step)):
            block = near[rows, :points]
            smoothed, pareto_k[rows] = smooth_each(log_ratio[:, block].sum(axis=2))
            weights = softmax(smoothed, axis=0)
            excess = weights - 1.0 / draws
            worth = 1.0 / (weights**2).sum(axis=0)
            usable = [stand_for_posterior(*each, draws) for each in zip(pareto_k[rows], worth, strict=True)]
            known, excess = rows[usable], excess[:, usable]
            shift[known] = (excess * relative[:, known]).sum(axis=0)
            error[known] = np.sqrt(((excess * (relative[:, known] - fitted[known])) ** 2).sum(axis=0))
            size[known] = block.shape[1]
    scale = np.exp(top)
    return BlockCheck(shift * scale, error * scale, pareto_k, size)


def nothing_known(n: int) -> BlockCheck:
    """Return the check of n points if all weights are unusable."""
    return BlockCheck(np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))


def _near(x: Array, count: int) -> NDArray[np.intp]:
    """Return indices (n, count) of the points with the largest correlation to each point, the point itself first."""
    draws, c, n = x.shape
    standard = x - x.mean(axis=0)
    spread = standard.std(axis=0)
    standard /= np.where(spread > 0.0, spread, 1.0)
    near = np.empty((n, count), dtype=np.intp)
    for start in range(0, n, step := max(1, _ENTRIES // n)):
        own = np.arange(start, min(start + step, n))
        strength = sum((standard[:, k, own].T @ standard[:, k] / draws) ** 2 for k in range(c))
        strength[np.arange(own.size), own] = np.inf
        some = np.sort(np.argpartition(-strength, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(strength, some, axis=1), axis=1, kind="stable")
        near[own] = np.take_along_axis(some, order, axis=1)
    return near


_FEWEST = 100  # Smallest number of draws. The Pareto fit uses a fifth of them, the tail.
_GOOD = 0.5  # The variance of the weights is finite if the Pareto k is lower.
_MANY = 100.0  # Smallest effective number of draws for which means are reported.
_CLOSE = 0.03  # Root mean square errors of probabilities up to this number count as small.
_KNOWN = 0.75  # Smallest share of points with usable weights for a verdict on the fit.


@dataclass(frozen=True, eq=False, repr=False)
class ImportanceCheck:
    """Comparison of a fit with the exact posterior of the latent values, by importance sampling.

    Attributes
    ----------
    method : str
        Name of the approximation.
    log_weights : array (draws,)
        Pareto-smoothed log weights log p(f) p(y | f) / q(f) of the draws. The log of the mean weight is `log_evidence`.
    pareto_k : float
        Pareto k of the weights. It is −inf for constant weights, and inf if nearly all weights are negligible.
    log_evidence : float
        Estimated log evidence. It is exact up to Monte Carlo error for a low `pareto_k`, and usually too low otherwise.
    standard_error : float
        Standard error of `log_evidence`, on the log scale, by the delta method: √(1 / effective size − 1 / draws). It
        is also the Monte Carlo error of each `mean_shift`. It is too small if `pareto_k` is high.
    fitted_log_evidence : float
        Log evidence of the approximation.
    effective_size : float
        Effective number of draws, (Σw)² / Σw².
    mean_shift : xarray.DataArray (point, class), or (point) for one latent function
        Differences between means of the latent values with and without weights, in standard deviations of q.
    points : xarray.Dataset (point)
        Changes by weights on blocks of correlated points, for each point. `shift` is the probability of its label by
        weighted draws minus the probability by the fit, and `standard_error` is its error. `pareto_k` is the Pareto k
        of the weights. `size` is the number of points in the block, or 0 if weights are unusable.

    Examples
    --------
    >>> check = ep.importance(1000)
    >>> check.fit_verdict, check.points
    """

    method: str
    log_weights: Array
    pareto_k: float
    log_evidence: float
    standard_error: float
    fitted_log_evidence: float
    effective_size: float
    mean_shift: xr.DataArray
    points: xr.Dataset

    @property
    def usable(self) -> bool:
        """Whether weighted draws are usable: their verdict is not "do not use"."""
        return self.draws_verdict != "do not use"

    @property
    def draws_verdict(self) -> str:
        """Verdict on weighted draws: "good" (Pareto k below 0.5), "look closer" (below 0.7), "few" or "do not use".

        "few" means that usable draws have an effective size below 100. If the effective size is above 0.9 times the
        number of draws, a Pareto k below 1 is "good".
        """
        draws = len(self.log_weights)
        if not stand_for_posterior(self.pareto_k, self.effective_size, draws):
            return "do not use"
        if self.effective_size < min(_MANY, 0.5 * draws):
            return "few"
        good = stand_for_posterior(self.pareto_k, self.effective_size, draws, limit=_GOOD)
        return "good" if good else "look closer"

    @property
    def known(self) -> float:
        """Share of points with usable weights on blocks."""
        return float((self.points["size"] > 0).mean())

    @property
    def probability_shift(self) -> float:
        """Root mean square `shift` of points with usable weights: the error of the fit's probabilities."""
        return float(np.sqrt((self.points["shift"] ** 2).mean()))

    @property
    def fit_verdict(self) -> str:
        """Verdict on the fit: "close" (`probability_shift` up to 0.03) or "off"; "unknown" if weights often fail."""
        if self.known < _KNOWN:
            return "unknown"
        return "close" if self.probability_shift <= _CLOSE else "off"

    def __repr__(self) -> str:
        """Return the text of `str`."""
        return str(self)

    def __str__(self) -> str:
        """Return a sentence on weighted draws, and a sentence on the fit."""
        return f"{self.about_draws} {self.about_fit}"

    @property
    def about_draws(self) -> str:
        """Sentence on the quality of the weighted draws."""
        start = (
            f"{self.method}: weighted draws, effective size {self.effective_size:.0f} of {len(self.log_weights)} "
            f"(Pareto k {self.pareto_k:.2f}), {self.draws_verdict}: "
        )
        if not self.usable:
            return (
                f"{start}they do not represent the exact joint posterior of {self.mean_shift.size} latent values, so "
                "their evidence and means are unreliable."
            )
        moved = float(np.sqrt((self.mean_shift**2).mean()))
        return (
            f"{start}log evidence is {self.log_evidence:.3f} ± {self.standard_error:.3f} "
            f"({self.fitted_log_evidence:.3f} by the fit), and its latent means are off by {moved:.2f} standard "
            f"deviations (root mean square, of which {self.standard_error:.2f} can be chance)."
        )

    @property
    def about_fit(self) -> str:
        """Sentence on the quality of the fit at points."""
        sizes = self.points["size"].values
        known = sizes > 0
        start = f"The fit, {self.fit_verdict}: "
        if not known.any():
            return f"{start}importance weights of blocks of points are unusable; use a sampler."
        chance = float(np.sqrt((self.points["standard_error"] ** 2).mean()))
        return (
            f"{start}by importance weights of blocks of {np.median(sizes[known]):.0f} points, usable at {known.sum()} "
            f"of {len(sizes)}, the probabilities of the labels are off by {self.probability_shift:.3f} (root mean "
            f"square, of which {chance:.3f} can be chance)"
            + ("; use a sampler." if self.fit_verdict == "unknown" else ".")
        )


class ResampledDraws(NamedTuple):
    """Draws of a fit, resampled by importance weights."""

    values: Mapping[str, Array]
    """Draws (chains, draws, ...) by name of the model's variable."""
    log_weights: Array
    """Log weight of each draw before resampling, (chains, draws)."""
    check: ImportanceCheck

    def chain(self, chain: int) -> dict[str, Array]:
        """Return the values of one chain, by name."""
        return {name: value[chain] for name, value in self.values.items()}


def importance_check(method: str, solution: Solution, f: Array, mean: xr.DataArray) -> ImportanceCheck:
    """Compare a solution with the exact posterior, by importance weights of draws from the solution.

    Parameters
    ----------
    method : str
        Name of the approximation.
    solution : Solution
    f : array (draws, c, n)
        Draws of latent values from the posterior of the solution.
    mean : DataArray (point, class) or (point)
        Array with the shape, dims and coords of `mean_shift`.

    Returns
    -------
    ImportanceCheck

    Raises
    ------
    ValueError
        If there are fewer than 100 draws, or if the density of a draw is not finite.
    """
    count = len(f)
    if count < _FEWEST:
        raise ValueError(
            f"draws must be at least {_FEWEST}, so that the tail of the weights can be fitted, but is {count}."
        )
    log_likelihood, log_sites, x = _pointwise(solution, f)
    raw = _log_weights(solution, log_likelihood, x)
    if not np.isfinite(raw).all():
        raise ValueError(
            f"{method} has draws without a finite density: {solution.convergence}. Their weights are undefined."
        )
    log_weights, pareto_k = smooth(raw)
    estimate, effective = importance_estimate(log_weights)
    excess = softmax(log_weights) - 1.0 / len(raw)
    shift, cov, seen = np.tensordot(excess, x, 1).T, solution.cov, x
    if not solution.likelihood.sees_common:
        seen = x - x.mean(axis=1, keepdims=True)
        shift, cov = without_common(shift, cov)
    std = np.sqrt(cov.diagonal(axis1=1, axis2=2))
    mean_shift = mean.copy(
        data=np.divide(shift, std, out=np.zeros_like(shift), where=std > 0.0).reshape(mean.shape)
    ).rename("mean_shift")
    pointwise = solution.posterior.sites.pointwise
    blocks = block_check(log_likelihood, log_sites, seen) if pointwise else nothing_known(x.shape[-1])
    point = mean_shift.dims[0]
    return ImportanceCheck(
        method=method,
        log_weights=log_weights,
        pareto_k=pareto_k,
        log_evidence=estimate.value,
        standard_error=estimate.error,
        fitted_log_evidence=solution.evidence,
        effective_size=effective,
        mean_shift=mean_shift,
        points=xr.Dataset(
            {name: (point, array) for name, array in blocks._asdict().items()},
            coords={point: mean_shift[point]} if point in mean_shift.coords else None,
        ),
    )


def log_importance_weights(solution: Solution, f: Array) -> tuple[Array, Array]:
    """Return log weights log p(f) p(y | f) / q(f) (draws,) of draws, and the draws minus their mean (draws, c, n)."""
    log_likelihood, _, x = _pointwise(solution, f)
    return _log_weights(solution, log_likelihood, x), x


def _log_weights(solution: Solution, log_likelihood: Array, x: Array) -> Array:
    """Return log weights (draws,).

    The prior cancels: q(f) is prior times sites, divided by a normaliser. Sites are 1 at the mean, to avoid
    cancellation.
    """
    posterior = solution.posterior
    total: Array = log_likelihood.sum(axis=1)
    return posterior.relative_log_normaliser + total - posterior.relative_site_log_density(x)


def _pointwise(solution: Solution, f: Array) -> tuple[Array, Array, Array]:
    """Return log likelihoods and log sites of draws at points, (draws, n) each, and draws minus their mean.

    Sites are scaled to be 1 at the mean.
    """
    posterior = solution.posterior
    x = f - posterior.mean
    log_likelihood = solution.likelihood.log_densities(f, solution.labels)
    log_sites: Array = ((posterior.weights - 0.5 * posterior.sites.product(x)) * x).sum(axis=1)
    return log_likelihood, log_sites, x


def resample(log_weights: Array, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return indices (count,) of resampled draws, in random order.

    Systematic resampling selects a draw with the normalised weight w for count · w times, rounded up or down.
    """
    bounds = np.cumsum(softmax(log_weights))
    marks = (np.arange(count) + rng.random()) / count * bounds[-1]
    chosen = np.minimum(np.searchsorted(bounds, marks, side="right"), len(bounds) - 1)
    return rng.permutation(chosen)


def resampled_draws(
    check: ImportanceCheck, pool: Mapping[str, Array], shape: tuple[int, int], rng: np.random.Generator
) -> ResampledDraws:
    """Return draws that are resampled by the weights of a check, in chains of `shape` (chains, draws)."""
    chains, draws = shape
    chosen = resample(check.log_weights, chains * draws, rng).reshape(shape)
    return ResampledDraws({name: value[chosen] for name, value in pool.items()}, check.log_weights[chosen], check)
