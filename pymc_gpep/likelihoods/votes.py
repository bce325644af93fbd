"""Votes of several classes at each point, with class probabilities by a softmax."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import MultinomialRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import gammaln, log_softmax

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.likelihoods.votes import along_line, curvature_slope, log_density
from pymc_gpep.kernels.methods.softmax_qep import votes_qep_update
from pymc_gpep.kernels.moments.softmax_quadrature import votes_log_normalisers
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.local_computations import CoupledCurvature, CoupledQuadrature
from pymc_gpep.likelihoods.observed import checked_counts, shape_text
from pymc_gpep.likelihoods.one_function import OneFunctionPerClass, softmax_argument
from pymc_gpep.likelihoods.softmax import class_nodes, softmax_probabilities

_NODES = 2000  # for a predictive density


@dataclass(frozen=True)
class VotesLikelihood(OneFunctionPerClass):
    """p(y | f) = N! / Π_a y_a! Π_a π_a^(y_a) of votes y (c,), N = Σ_a y_a of them, with π the softmax of f."""

    name: ClassVar[str] = "multinomial"
    written: ClassVar[str] = "pm.Multinomial(n=n, p=pm.math.softmax(f.T, axis=-1))"
    distributions: ClassVar[tuple[type[Op], ...]] = (MultinomialRV,)
    method: ClassVar[str] = "laplace"
    guide: ClassVar[str] = "laplace"
    ways: ClassVar[tuple[str, ...]] = ("average",)
    observed_axes: ClassVar[int] = 2
    largest_precision: ClassVar[float] = np.inf
    local: ClassVar[tuple[object, ...]] = (
        CoupledCurvature(log_density, along_line, curvature_slope),
        CoupledQuadrature(votes_qep_update, 0),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Read pm.Multinomial(n=n, p=softmax(...)): what the softmax is taken of, class axis last."""
        if not self.may_be(variable):
            return None
        totals, p = variable.owner.op.dist_params(variable.owner)
        argument = softmax_argument(p)
        return None if argument is None else Reading(argument, totals=cast(TensorVariable, totals))

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name = repr(variable.name)
        return (
            f"{name} is a Multinomial, but not of a softmax over classes at each point. Write pm.Multinomial({name}, "
            "n=n, p=pm.math.softmax(f.T, axis=-1)), where f has one row per class, and n is a number or one for each "
            "point."
        )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        self.check_functions(n_functions)
        given, shape = np.asarray(observed), (n_points, n_functions)
        if given.shape != shape:
            raise ValueError(
                f"{name} must be {shape_text(shape)}, the number of votes for each class at each point, but have shape "
                f"{shape_text(given.shape)}."
            )
        return checked_counts(given.ravel(), name).reshape(shape)

    def says_nothing(self, observed: Observed) -> NDArray[np.bool_]:
        return np.asarray(observed.sum(axis=1) == 0)

    def log_densities(self, f: Array, observed: Observed) -> Array:
        ways = gammaln(observed.sum(axis=1) + 1.0) - gammaln(observed + 1.0).sum(axis=1)
        with np.errstate(invalid="ignore"):
            terms = np.where(observed.T > 0, observed.T * log_softmax(f, axis=-2), 0.0)
        return np.asarray(ways + terms.sum(axis=-2))

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        return softmax_probabilities(mean, cov, tolerance=tolerance)

    def scores(self, observed: Observed, p: Array, moments: Array | None) -> dict[str, Array]:
        """The squared error of the shares of the classes, summed over these."""
        with np.errstate(invalid="ignore"):
            share = observed / observed.sum(axis=1, keepdims=True)
        return {"squared_error": ((share - p) ** 2).sum(axis=1)}

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        # Exact in the tails and everywhere else.
        mean, cov = np.ascontiguousarray(mean), np.ascontiguousarray(cov)
        out = np.empty(len(mean))
        votes_log_normalisers(mean, cov, np.ascontiguousarray(observed), *class_nodes(mean.shape[1], _NODES), out)
        return out
