"""Importance sampling of the exact posterior of the latent values, and what it says about a fit.

Draws of q(f) have the weights p(f) p(y | f) / q(f), at the hyperparameters of the fit. Their mean is the evidence, and
how heavy their tail is, the Pareto k of Vehtari, Simpson, Gelman, Yao and Gabry (2024), says whether weighted draws of
q can stand for the posterior (Yao, Vehtari, Simpson and Gelman 2018).
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import softmax

from pymc_gpep.array_types import Array
from pymc_gpep.checks.annealing import importance_estimate
from pymc_gpep.fits.datasets import latent
from pymc_gpep.fits.fit import Fit

__all__ = [
    "ImportanceCheck",
    "ResampledDraws",
    "importance_check",
    "log_importance_weights",
    "resample",
    "resampled_draws",
    "smooth",
]


_FEWEST = 100  # with fewer draws the tail, a fifth of them, is too short to fit
_GOOD, _USABLE = 0.5, 0.7  # Pareto k below which the variance is finite; below which smoothing makes up for it
_ALIKE = 0.9  # share of the draws that those are worth whose weights hardly vary
_ENOUGH = 1000  # draws to weight where fewer are asked for
_CONSTANT = 1e-8  # a spread of log weights that is rounding


@dataclass(frozen=True, eq=False, repr=False)
class ImportanceCheck:
    """What importance sampling of the exact posterior of the latent values says about a fit.

    Attributes
    ----------
    method : str
        Name of the approximation.
    log_weights : array (draws,)
        log p(f) p(y | f) / q(f) of each draw, Pareto-smoothed: the log of their mean is `log_evidence`.
    pareto_k : float
        How heavy their tail is. −inf if the weights do not vary, inf if all but a few are zero beside the largest.
    log_evidence : float
        Exact but for Monte Carlo error where `pareto_k` is low; where it is high as a rule too low.
    standard_error : float
        Of it, on the log scale, by the delta method: √(1 / effective size − 1 / draws). The Monte Carlo error of each
        `mean_shift` is the same. Too small where `pareto_k` is high.
    fitted_log_evidence : float
        The approximation's own.
    effective_size : float
        (Σw)² / Σw²: how many draws of equal weight these are worth.
    mean_shift : xarray.DataArray (point, class), or (point) where a point has one latent function
        Means of the latent values with weights less those without, in standard deviations of q.
    """

    method: str
    log_weights: Array
    pareto_k: float
    log_evidence: float
    standard_error: float
    fitted_log_evidence: float
    effective_size: float
    mean_shift: xr.DataArray

    @property
    def usable(self) -> bool:
        """Whether weighted draws are of use, that is, whether the verdict on them is not "do not use"."""
        return self.verdict != "do not use"

    @property
    def verdict(self) -> str:
        """On weighted draws: "good" (Pareto k below 0.5), "look closer" (below 0.7) or "do not use".

        The Pareto k does not know the scale of the tail. Where weights are so alike that draws are worth 0.9 of their
        number a tail of any finite mean (k below 1) carries little, and they are "good".
        """
        alike = self.pareto_k < 1.0 and self.effective_size > _ALIKE * len(self.log_weights)
        if self.pareto_k < _GOOD or alike:
            return "good"
        return "look closer" if self.pareto_k < _USABLE else "do not use"

    def __repr__(self) -> str:
        """One sentence."""
        return str(self)

    def __str__(self) -> str:
        """One sentence."""
        start = f"{self.method}: Pareto k {self.pareto_k:.2f}, {self.verdict}: "
        if not self.usable:
            return (
                f"{start}weighted draws do not stand for the exact posterior, and neither evidence nor means from them "
                f"are reliable; for {self.mean_shift.size} latent values together that is easily so and does not say "
                "how good the fit is for each, which a sampler does."
            )
        moved = float(np.sqrt((self.mean_shift**2).mean()))
        return (
            f"{start}by weighted draws, worth {self.effective_size:.0f} of {len(self.log_weights)}, log evidence is "
            f"{self.log_evidence:.3f} ± {self.standard_error:.3f} ({self.fitted_log_evidence:.3f} by the fit), and "
            f"latent means are {moved:.2f} standard deviations off (root mean square, of which "
            f"{self.standard_error:.2f} can be chance)."
        )


class ResampledDraws(NamedTuple):
    """Draws of a fit, resampled by their weights."""

    values: Mapping[str, Array]
    """(chains, draws, ...) by name of the model's variable."""
    log_weights: Array
    """That each had, (chains, draws)."""
    check: ImportanceCheck

    def chain(self, chain: int) -> dict[str, Array]:
        """The values of one chain, by name."""
        return {name: value[chain] for name, value in self.values.items()}

    def labelled_weights(self, coords: Mapping[Hashable, xr.DataArray]) -> xr.DataArray:
        """The log weights, with the coordinates of draws."""
        dims = ("chain", "draw")
        return xr.DataArray(self.log_weights, dims=dims, coords={dim: coords[dim] for dim in dims})

    @property
    def attrs(self) -> dict[str, float]:
        """What the weights say as a whole."""
        return {name: getattr(self.check, name) for name in ("pareto_k", "effective_size", "log_evidence")}


def importance_check(fit: Fit, values: Mapping[str, Array]) -> ImportanceCheck:
    """Weight draws of a fit.

    Parameters
    ----------
    fit : Fit
    values : mapping
        Draws from it, (draws, ...) by name of the model's variable; only latent values are looked at.

    Returns
    -------
    ImportanceCheck

    Raises
    ------
    ValueError
        If there are fewer than 100 draws, or if the density of one is not finite.
    """
    solution = fit.solution
    method = fit.approximator.name
    raw, x = log_importance_weights(fit, values)
    if len(raw) < _FEWEST:
        raise ValueError(f"draws must be at least {_FEWEST}, for their weights to have a tail, but is {len(raw)}.")
    if not np.isfinite(raw).all():
        raise ValueError(f"{method} has draws without a finite density: {solution.convergence}. None can be weighted.")
    log_weights, pareto_k = smooth(raw)
    estimate, effective = importance_estimate(log_weights)
    excess = softmax(log_weights) - 1.0 / len(raw)
    std = np.sqrt(solution.cov.diagonal(axis1=1, axis2=2).T)
    shift, labelled = (np.tensordot(excess, x, 1) / std).T, latent(fit)["mean"]
    return ImportanceCheck(
        method=method,
        log_weights=log_weights,
        pareto_k=pareto_k,
        log_evidence=estimate.value,
        standard_error=estimate.error,
        fitted_log_evidence=solution.evidence,
        effective_size=effective,
        mean_shift=labelled.copy(data=shift.reshape(labelled.shape)).rename("mean_shift"),
    )


def log_importance_weights(fit: Fit, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """Log p(f) p(y | f) / q(f) (draws,) as they are; and the latent values less their mean under q, (draws, c, n).

    q(f) is the prior times sites over a normaliser, so that the prior cancels, and the sites are 1 at the mean, so that
    no large numbers are subtracted. Labels are those that were fitted.
    """
    classifier, solution = fit.classifier, fit.solution
    f = np.empty((len(values[classifier.latents[0].f.name]), *solution.mean.shape))
    for part in classifier.latents:
        f[:, part.rows] = values[part.f.name]
    posterior = solution.posterior
    x = f - posterior.mean
    log_likelihood = solution.likelihood.log_density(f, solution.labels)
    return posterior.relative_log_normaliser + log_likelihood - posterior.relative_site_log_density(x), x


def smooth(log_weights: Array) -> tuple[Array, float]:
    """Pareto-smooth log weights (draws,), their normaliser kept; and the Pareto k."""
    import arviz  # noqa: F401  # for the accessor `azstats`

    count = len(log_weights)
    tail = int(min(0.2 * count, 3.0 * np.sqrt(count)))  # as in the paper
    if np.ptp(np.sort(log_weights)[-tail:]) < _CONSTANT:
        return log_weights, -np.inf
    ratios: Any = xr.DataArray(-log_weights, dims=["draw"])
    smoothed, pareto_k = (result.to_numpy() for result in ratios.azstats.psislw(dim="draw"))
    # What has been normalised is known from the smallest, which is not in the tail.
    lowest = np.argmin(log_weights)
    smoothed = smoothed + (log_weights[lowest] - smoothed[lowest])
    # Where most of the tail underflows beside the largest weight, nothing can be fitted to it.
    return smoothed, np.inf if np.isnan(pareto_k) else float(pareto_k)


def resample(log_weights: Array, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Numbers (count,) of the draws to take, in random order.

    By systematic resampling: of a draw with the share w of all weights there are count · w, up or down to an integer.
    """
    bounds = np.cumsum(softmax(log_weights))
    marks = (np.arange(count) + rng.random()) / count * bounds[-1]
    chosen = np.minimum(np.searchsorted(bounds, marks, side="right"), len(bounds) - 1)
    return rng.permutation(chosen)


def resampled_draws(
    fit: Fit,
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> ResampledDraws:
    """Draw from a fit, at least 1000 times, and resample to a number of chains and draws."""
    chains, draws = shape
    pool = fit.draw_at_maximum(max(chains * draws, _ENOUGH), rng)
    check = importance_check(fit, pool)
    chosen = resample(check.log_weights, chains * draws, rng).reshape(shape)
    return ResampledDraws({name: value[chosen] for name, value in pool.items()}, check.log_weights[chosen], check)
