"""Likelihoods of counts: Poisson, binomial, negative binomial. The latent value is the log rate or the log odds."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import BinomialRV, NegBinomialRV, PoissonRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import betainc, betaln, expit, gammaln, log_ndtr, ndtr, pdtr, psi

from pymc_gpep.argument_types import rows_text
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.averages_over_cells import computations_of
from pymc_gpep.likelihoods.links import NO_EXPOSURE, Reading, argument_of, behind, read_log_odds, read_log_rate
from pymc_gpep.likelihoods.local_computations import GaussianAverage, ParameterSlopes
from pymc_gpep.likelihoods.standard_density import (
    LOG_RATE,
    LOGISTIC_POWERS,
    StandardForm,
    StandardLikelihood,
    log_normal_moments,
    no_slopes,
    reading_of,
    standard_computations,
)

# Series replace differences at rates below the first number. Log rates are clipped at the second number.
_SMALL_RATE, _LARGEST_LOG_RATE = 1e-4, 700.0


def _form_of_counts(y: NDArray[Any], parameters: Array) -> StandardForm:
    (offset,) = parameters
    possible = (y == 0) | ((y > 0) & (offset > NO_EXPOSURE))
    shapes = np.stack([y.astype(np.float64), np.zeros(len(y))])
    return StandardForm(np.ones(len(y)), np.where(possible, offset, np.nan), shapes, -gammaln(y + 1.0))


def _slopes_of_counts(y: NDArray[Any], parameters: Array) -> StandardForm:
    return no_slopes(1, 2, len(y))._replace(offset=np.ones((1, len(y))))


@dataclass(frozen=True)
class PoissonLikelihood(StandardLikelihood):
    """p(y | f) = Poisson(y; exp(f + o)). The parameter is the offset o, the logarithm of an exposure.

    For an exposure of 0 the offset is `NO_EXPOSURE`. A row with exposure 0 and count 0 has no effect.
    """

    name: ClassVar[str] = "poisson"
    written: ClassVar[str] = "pm.Poisson(mu=pm.math.exp(f + offset))"
    distributions: ClassVar[tuple[type[Op], ...]] = (PoissonRV,)
    guide: ClassVar[str] = "laplace"
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOG_RATE, _form_of_counts, _slopes_of_counts)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        op = variable.owner.op
        (rate,) = op.dist_params(variable.owner)
        return read_log_rate(rate, latents)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        return (
            f"{variable.name!r} is a Poisson, but its rate is not the exponential of one latent function plus an "
            f"offset. Write pm.Poisson({variable.name!r}, mu=pm.math.exp(f + offset))."
        )

    def check_parameters(self, observed: NDArray[np.int64] | None, name: str) -> None:
        (offset,) = self.parameters
        if (bad := ~(offset < np.inf)).any():
            raise ValueError(
                f"Exposures of {name} must be numbers of at least 0, and offsets must be less than infinity. Correct "
                f"the values in {rows_text(bad)}."
            )
        if observed is not None and (bad := (offset <= NO_EXPOSURE) & (observed > 0)).any():
            raise ValueError(
                f"The exposure of {name} is 0 in {rows_text(bad)}, but the count is more than 0. Correct the exposure, "
                "or remove these rows from the counts and from the inputs of the latent function."
            )

    def is_uninformative(self, observed: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.parameters[0] <= NO_EXPOSURE)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        return np.asarray(pdtr(np.floor(y), np.exp(f + self.parameters[0])))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        variance = cov[:, 0, 0]
        log_rate = mean[:, 0] + self.parameters[0] + 0.5 * variance
        with np.errstate(over="ignore"):  # Overflow of the mean returns infinity.
            first = np.exp(log_rate)
            return np.stack([first, first + np.exp(2.0 * log_rate + variance)])


def _form_of_trials(y: NDArray[Any], parameters: Array) -> StandardForm:
    (trials,) = parameters
    failures = trials - y
    log_ways = -np.log1p(trials) - betaln(y + 1.0, failures + 1.0)
    constant = np.where((y >= 0) & (failures >= 0.0), log_ways, np.nan)
    return StandardForm(np.ones(len(y)), np.zeros(len(y)), np.stack([y.astype(np.float64), failures]), constant)


def _slopes_of_trials(y: NDArray[Any], parameters: Array) -> StandardForm:
    return no_slopes(1, 2, len(y))  # Slopes are 0, since trials are data.


@dataclass(frozen=True)
class BinomialLikelihood(StandardLikelihood):
    """Binomial with logistic σ: p(y | f) = C(N, y) σ(f)ʸ σ(−f)^(N − y). The parameter N, the trials, is data."""

    name: ClassVar[str] = "binomial"
    written: ClassVar[str] = "pm.Binomial(n=trials, logit_p=f)"
    distributions: ClassVar[tuple[type[Op], ...]] = (BinomialRV,)
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("trials",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOGISTIC_POWERS, _form_of_trials, _slopes_of_trials)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        trials, p = variable.owner.op.dist_params(variable.owner)
        argument = argument_of(p, self.link)
        return None if argument is None else reading_of(argument, trials)

    def link(self, f: Array) -> Array:
        """Return the probability of a success, given latent values f."""
        return np.asarray(expit(f))

    def failure(self, f: Array) -> Array:
        """Return the probability of a failure, given latent values f. Small probabilities are accurate."""
        return np.asarray(expit(-f))

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        _, p = variable.owner.op.dist_params(variable.owner)
        name, of = repr(variable.name), " and ".join(map(repr, behind(p))) or "numbers alone"
        return (
            f"{name} is a Binomial, but its probability, made of {of}, is not the logistic function of one variable: "
            f"write pm.Binomial({name}, n=trials, logit_p=f). For another link give each trial a row with a label 0 or "
            "1: X=np.repeat(X, trials, axis=0), and labels np.concatenate([np.arange(m) < k for k, m in "
            "zip(successes, trials)])."
        )

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        (trials,) = self.parameters
        if (bad := ~((trials >= 0.0) & (trials == np.round(trials)))).any():
            raise ValueError(f"Numbers of trials of {name} must be 0, 1, 2, ..., but are not in {rows_text(bad)}.")
        if observed is not None and (bad := observed > trials).any():
            raise ValueError(f"{name} counts more successes than trials in {rows_text(bad)}.")

    def is_uninformative(self, observed: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(self.parameters[0] == 0.0)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        (trials,) = self.parameters
        count = np.floor(y)
        # Distribution function as a regularised beta function of the probability of failure.
        below = betainc(np.maximum(trials - count, 1e-300), count + 1.0, self.failure(f))
        return np.where(count >= trials, 1.0, np.where(count < 0.0, 0.0, below))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        (trials,) = self.parameters
        variance = np.ascontiguousarray(cov[:, 0, 0])
        terms = np.empty((5, len(mean)))
        powers = []
        for power in (1.0, 2.0):
            given = np.full((1, len(mean)), power)
            self.computation(GaussianAverage).terms(
                np.ascontiguousarray(mean[:, 0]), variance, np.full(len(mean), int(power)), given, terms
            )
            powers.append(np.exp(terms[0]))
        return np.stack([trials * powers[0], trials * powers[0] + trials * (trials - 1.0) * powers[1]])


def _by_link(terms: Callable[[Array], tuple[Array, Array]]) -> tuple[object, ...]:
    """Return local computations of a binomial. `terms` returns log p and log(1 − p), each with 3 derivatives (4, n)."""

    def log_density(f: Array, y: Observed, parameters: Array) -> Array:
        (trials,) = parameters
        success, failure = terms(f)
        found = y * success + (trials - y) * failure
        found[0] += _form_of_trials(np.asarray(y), parameters).constant
        return found

    def nothing(*arrays: Array) -> None:  # Slopes are 0, since trials are data.
        arrays[-1][:] = 0.0

    return *computations_of(log_density), ParameterSlopes(nothing, nothing, nothing)


def _probit_terms(f: Array) -> tuple[Array, Array]:
    success, failure = (np.stack(_log_ndtr_terms(sign * f)) for sign in (1.0, -1.0))
    failure[1::2] *= -1.0
    return success, failure


def _log_ndtr_terms(x: Array) -> tuple[Array, Array, Array, Array]:
    value = log_ndtr(x)
    hazard = np.exp(-0.5 * x**2 - 0.5 * np.log(2.0 * np.pi) - value)
    second = -hazard * (x + hazard)
    return value, hazard, second, -second * (x + hazard) - hazard * (1.0 + second)


def _log_log_terms(f: Array) -> tuple[Array, Array]:
    rate = np.exp(np.minimum(f, _LARGEST_LOG_RATE))
    small = rate < _SMALL_RATE
    safe = np.where(small, 1.0, rate)
    first = safe / np.expm1(np.minimum(safe, _LARGEST_LOG_RATE))
    second = first * (1.0 - safe - first)
    third = second * (1.0 - safe - first) - first * (safe + second)
    series = f - rate / 2, 1.0 - rate / 2 + rate**2 / 12, -rate / 2 + rate**2 / 6, -rate / 2 + rate**2 / 3
    success = np.where(small, np.stack(series), np.stack([np.log(-np.expm1(-safe)), first, second, third]))
    return success, np.tile(-rate, (4, 1))


@dataclass(frozen=True)
class ProbitTrialsLikelihood(BinomialLikelihood):
    """Binomial with the probit link: p(y | f) = C(N, y) Φ(f)ʸ Φ(−f)^(N − y) for N trials."""

    name: ClassVar[str] = "binomial_probit"
    written: ClassVar[str] = "pm.Binomial(n=trials, p=pm.math.invprobit(f))"
    local: ClassVar[tuple[object, ...]] = _by_link(_probit_terms)

    def link(self, f: Array) -> Array:
        return np.asarray(ndtr(f))

    def failure(self, f: Array) -> Array:
        return np.asarray(ndtr(-f))


@dataclass(frozen=True)
class ComplementaryLogLogTrialsLikelihood(BinomialLikelihood):
    """Binomial with N trials and the complementary log-log link: C(N, y) (1 − exp(−eᶠ))ʸ exp(−(N − y) eᶠ)."""

    name: ClassVar[str] = "binomial_log_log"
    written: ClassVar[str] = "pm.Binomial(n=trials, p=1 - pm.math.exp(-pm.math.exp(f)))"
    local: ClassVar[tuple[object, ...]] = _by_link(_log_log_terms)

    def link(self, f: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(-np.expm1(-np.exp(f)))

    def failure(self, f: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(-np.exp(f)))


def _form_of_overdispersed(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha = parameters
    # Γ(y + α) / (Γ(α) y!) is computed by the beta function. A difference of logarithms would lose digits for large α.
    constant = np.where(y >= 0, -np.log(y + alpha) - betaln(alpha, y + 1.0), np.nan)
    return StandardForm(np.ones(len(y)), offset, np.stack([y.astype(np.float64), alpha]), constant)


def _slopes_of_overdispersed(y: NDArray[Any], parameters: Array) -> StandardForm:
    _, alpha = parameters
    found = no_slopes(2, 2, len(y))
    found.offset[0], found.shapes[1, 1], found.constant[1] = 1.0, 1.0, psi(y + alpha) - psi(alpha)
    return found


@dataclass(frozen=True)
class NegativeBinomialLikelihood(StandardLikelihood):
    """p(y | f) = Γ(y + α) / (Γ(α) y!) σ(g)ʸ σ(−g)^α, for g = f + o and the logistic function σ. The mean is α exp(g).

    Parameters are the offset o = log(exposure / α) and the dispersion α. In the limit α → ∞ counts are Poisson.
    """

    name: ClassVar[str] = "negative_binomial"
    written: ClassVar[str] = "pm.NegativeBinomial(mu=pm.math.exp(f + offset), alpha=alpha)"
    distributions: ClassVar[tuple[type[Op], ...]] = (NegBinomialRV,)
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset", "alpha")
    positive: ClassVar[tuple[str, ...]] = ("alpha",)
    local: ClassVar[tuple[object, ...]] = standard_computations(
        LOGISTIC_POWERS, _form_of_overdispersed, _slopes_of_overdispersed
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        alpha, p = variable.owner.op.dist_params(variable.owner)
        reading = read_log_odds(p, latents)
        if reading is None or reading.parameters is None:
            return None
        return reading_of(reading.argument, reading.parameters[0], alpha)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name = repr(variable.name)
        return (
            f"{name} is a NegativeBinomial, but its mean is not the exponential of one latent function plus an "
            f"offset. Write pm.NegativeBinomial({name}, mu=pm.math.exp(f + offset), alpha=alpha), with "
            "alpha a hyperparameter."
        )

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        super().check_parameters(observed, name)
        if observed is not None and (bad := (self.row("offset") <= NO_EXPOSURE) & (observed > 0)).any():
            raise ValueError(
                f"The exposure of {name} is 0 in {rows_text(bad)}, but the count is more than 0. Correct the exposure."
            )

    def is_uninformative(self, observed: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(self.row("offset") <= NO_EXPOSURE)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        offset, alpha = self.parameters
        below = betainc(alpha, np.maximum(np.floor(y) + 1.0, 1e-300), expit(-f - offset))
        return np.where(y < 0.0, 0.0, below)

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        offset, alpha = self.parameters
        log_rate, variance = mean[:, 0] + offset + np.log(alpha), cov[:, 0, 0]
        first, second = (log_normal_moments(log_rate, variance, power) for power in (1.0, 2.0))
        return np.stack([first, first + (1.0 + 1.0 / alpha) * second])
