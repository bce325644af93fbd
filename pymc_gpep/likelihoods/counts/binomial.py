"""How many of a number of trials succeed, with a logistic link."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import BinomialRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import betainc, betaln, expit

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.link import argument_of, behind
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.likelihoods.observed_numbers import checked_counts, rows_text
from pymc_gpep.likelihoods.standard_density import LOGISTIC_POWERS, StandardForm, standard_computations
from pymc_gpep.likelihoods.standard_likelihood import StandardLikelihood, reading_of


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    (trials,) = parameters
    failures = trials - y
    log_ways = -np.log1p(trials) - betaln(y + 1.0, failures + 1.0)
    constant = np.where((y >= 0) & (failures >= 0.0), log_ways, np.nan)
    return StandardForm(np.ones(len(y)), np.zeros(len(y)), np.stack([y.astype(np.float64), failures]), constant)


def _slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
    # Trials are data.
    n = len(y)
    return StandardForm(np.zeros((1, n)), np.zeros((1, n)), np.zeros((1, 2, n)), np.zeros((1, n)))


@dataclass(frozen=True)
class BinomialLikelihood(StandardLikelihood):
    """p(y | f) = C(N, y) σ(f)ʸ σ(−f)^(N − y), with the number of trials N, which is data, as its one parameter."""

    name: ClassVar[str] = "binomial"
    written: ClassVar[str] = "pm.Binomial(n=trials, logit_p=f)"
    distributions: ClassVar[tuple[type[Op], ...]] = (BinomialRV,)
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("trials",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOGISTIC_POWERS, _form, _slopes)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        trials, p = variable.owner.op.dist_params(variable.owner)
        argument = argument_of(p, expit)
        return None if argument is None else reading_of(argument, trials)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        _, p = variable.owner.op.dist_params(variable.owner)
        name, of = repr(variable.name), " and ".join(map(repr, behind(p))) or "numbers alone"
        return (
            f"{name} is a Binomial, but its probability, made of {of}, is not the logistic function of one variable: "
            f"write pm.Binomial({name}, n=trials, logit_p=f). For another link give each trial a row with a label 0 or "
            "1: X=np.repeat(X, trials, axis=0), and labels np.concatenate([np.arange(m) < k for k, m in "
            "zip(successes, trials)])."
        )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        return checked_counts(self.checked_shape(observed, n_functions, n_points, name), name)

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        (trials,) = self.parameters
        if (bad := ~((trials >= 0.0) & (trials == np.round(trials)))).any():
            raise ValueError(f"Numbers of trials of {name} must be 0, 1, 2, ..., but are not in {rows_text(bad)}.")
        if observed is not None and (bad := observed > trials).any():
            raise ValueError(f"{name} counts more successes than trials in {rows_text(bad)}.")

    def says_nothing(self, observed: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(self.parameters[0] == 0.0)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        (trials,) = self.parameters
        count = np.floor(y)
        # By the regularised beta function of the probability to fail.
        below = betainc(np.maximum(trials - count, 1e-300), count + 1.0, expit(-f))
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
