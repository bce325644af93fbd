"""Binary problems, and approximations for likelihoods of one latent function, for tests of binary classifiers."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations import EP, KL, Approximator, QuadraticVB, ScalarLaplace
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.factorial_variational import FactorialVariational
from pymc_gpep.rivals.label_regression import LabelRegression
from pymc_gpep.rivals.naive_tap import NaiveTAP
from tests.reference.binary_links import LINKS, Link
from tests.reference.data import squared_exponential

__all__ = ["KINDS", "METHODS", "BinaryProblem", "Kind", "random_binary", "regimes"]

Array = NDArray[np.float64]

METHODS: dict[str, type[Approximator]] = {
    kind.name: kind for kind in (ScalarLaplace, EP, KL, QuadraticVB, FactorialVariational, LabelRegression, NaiveTAP)
}


class Kind(NamedTuple):
    """A likelihood, and the link function of the dense references."""

    likelihood: Likelihood
    link: Link

    def __str__(self) -> str:
        return self.likelihood.name


KINDS = [Kind(likelihood, LINKS[likelihood.name]) for likelihood in LIKELIHOODS if likelihood.name in LINKS]


class BinaryProblem(NamedTuple):
    """A prior of one function, and labels 0 and 1. The dense references take labels as signs."""

    k: Array
    """Prior covariance (n, n)."""
    mean: Array
    """Prior mean (1, n)."""
    y: NDArray[np.int64]

    @property
    def signs(self) -> Array:
        return 2.0 * self.y - 1.0

    @property
    def reference(self) -> tuple[Array, Array, Array]:
        """Covariance, labels as signs, and mean (n,), in the order of the arguments of the dense references."""
        return self.k, self.signs, self.mean[0]


def regimes() -> Iterator[BinaryProblem]:
    """The nine regimes of figure 3 of Nickisch and Rasmussen (2008): two points of different classes."""
    x = np.array([[np.sqrt(2.0)], [-np.sqrt(2.0)]])
    for log_magnitude in (1.5, 0.0, -1.5):
        for log_lengthscale in (0.0, 1.0, 2.5):
            k = squared_exponential(x, variance=np.exp(2 * log_magnitude), lengthscale=np.exp(log_lengthscale))
            yield BinaryProblem(k, np.zeros((1, 2)), np.array([1, 0]))


def random_binary(
    seed: int, n: int, *, variance: float = 2.0, jitter: float = 1e-8, with_mean: bool = True
) -> BinaryProblem:
    """Labels drawn from a probit model at random inputs in the plane."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    k = squared_exponential(X, variance=variance, lengthscale=1.2) + jitter * variance * np.eye(n)
    mean = rng.normal(scale=0.7, size=(1, n)) if with_mean else np.zeros((1, n))
    f = mean[0] + np.linalg.cholesky(k + 1e-9 * variance * np.eye(n)) @ rng.normal(size=n)
    return BinaryProblem(k, mean, (f + rng.normal(size=n) > 0).astype(np.int64))
