"""Counts that vary more than a Poisson distribution allows, with a logarithmic link."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import NegBinomialRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import betainc, betaln, expit, psi

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.scalar.poisson import NO_EXPOSURE
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.log_rate import read_log_odds
from pymc_gpep.likelihoods.observed_numbers import checked_counts, rows_text
from pymc_gpep.likelihoods.standard_density import LOGISTIC_POWERS, StandardForm, standard_computations
from pymc_gpep.likelihoods.standard_likelihood import StandardLikelihood, log_normal_moments, reading_of


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha = parameters
    # Γ(y + α) / (Γ(α) y!), by the beta function, whose digits do not cancel where α is large.
    constant = np.where(y >= 0, -np.log(y + alpha) - betaln(alpha, y + 1.0), np.nan)
    return StandardForm(np.ones(len(y)), offset, np.stack([y.astype(np.float64), alpha]), constant)


def _slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
    _, alpha = parameters
    shape = (2, len(y))
    of_offset, of_shapes, of_constant = np.zeros(shape), np.zeros((2, *shape)), np.zeros(shape)
    of_offset[0] = 1.0
    of_shapes[1, 1] = 1.0
    of_constant[1] = psi(y + alpha) - psi(alpha)
    return StandardForm(np.zeros(shape), of_offset, of_shapes, of_constant)


@dataclass(frozen=True)
class NegativeBinomialLikelihood(StandardLikelihood):
    """p(y | f) = Γ(y + α) / (Γ(α) y!) σ(g)ʸ σ(−g)^α, g = f + o: the mean is α exp(f + o).

    Parameters are o, the logarithm of an exposure over α, and the dispersion α; with α → ∞ it is Poisson's.
    """

    name: ClassVar[str] = "negative_binomial"
    written: ClassVar[str] = "pm.NegativeBinomial(mu=pm.math.exp(f + offset), alpha=alpha)"
    distributions: ClassVar[tuple[type[Op], ...]] = (NegBinomialRV,)
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset", "alpha")
    positive: ClassVar[tuple[str, ...]] = ("alpha",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOGISTIC_POWERS, _form, _slopes)

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
            f"{name} is a NegativeBinomial, but its mean is not the exponential of one latent function and what is "
            f"added to it: write pm.NegativeBinomial({name}, mu=pm.math.exp(f + offset), alpha=alpha), with "
            "alpha a hyperparameter."
        )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        return checked_counts(self.checked_shape(observed, n_functions, n_points, name), name)

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        super().check_parameters(observed, name)
        if observed is not None and (bad := (self.row("offset") <= NO_EXPOSURE) & (observed > 0)).any():
            raise ValueError(
                f"The exposure of {name} is 0 in {rows_text(bad)}, where the count is more than 0, which cannot be."
            )

    def says_nothing(self, observed: NDArray[Any]) -> NDArray[np.bool_]:
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
