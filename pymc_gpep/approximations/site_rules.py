"""Rules that factorise a likelihood for EP with inducing inputs.

A rule defines the factors of a point and the form of their sites. A scalar site depends on one latent function.
`Nested` has sites that couple the functions of a point, computed by inner EP.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    GaussianAverage,
    NoisyDifferenceFactors,
    PairFactors,
    PointFactor,
    TabulatedFactor,
)
from pymc_gpep.solvers.sparse_ep import CoupledFactors, LikelihoodFactors, Tilted
from pymc_gpep.solvers.sparse_sweeps import PointSites


class SiteRule(ABC):
    """Rule that factorises the likelihood of a point."""

    name: ClassVar[str]
    """Name of the rule in `sites=`."""
    needs: ClassVar[tuple[type, ...]]
    """Types of the local computations that a likelihood must have."""
    follows_parameters: ClassVar[bool] = False
    """Whether likelihoods with parameters are supported. The parameters must be numbers, not hyperparameters."""
    exact: ClassVar[bool]
    """Whether the product of the factors is the likelihood. Then EP's evidence approximates the model's evidence."""

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Return whether this rule can factorise a likelihood."""
        follows = cls.follows_parameters or not likelihood.has_parameters
        return follows and all(likelihood.offers(kind) for kind in cls.needs)

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        """Return whether this rule is the default for c functions, each with `size` inducing inputs."""
        return False

    @abstractmethod
    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> PointSites:
        """Return the sites of all points of c functions, for the solver."""


class ScalarSites(SiteRule):
    """Factors of the likelihood of a point, with a scalar site for each function on which a factor depends.

    A point has d sites. Latent values of different functions are independent under such sites.
    """

    @abstractmethod
    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        """Return the index of the function of each site, (n, d)."""

    @abstractmethod
    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        """Return log normalisers of tilted distributions and their derivatives at B points.

        Parameters
        ----------
        likelihood : Likelihood
            Likelihood at these points.
        mean, variance : array (B, d)
            Cavity moments of the latent value of each site.
        labels : array (B,)
        """

    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> LikelihoodFactors:
        return LikelihoodFactors(
            self.functions(labels, c),
            lambda rows, mean, variance: self.tilted(likelihood.at(rows), mean, variance, labels[rows]),
            not likelihood.sees_common,
            log_concave=likelihood.log_concave,
        )


class Pairs(ScalarSites):
    """Product of pairwise factors Φ((f_y − f_k) / √2), k ≠ y, in place of the multinomial probit of label y.

    The factor of class k is the probability that utility y exceeds utility k. Utilities are latent values plus unit
    normal noise. These events are positively associated: all depend on the noise of y. Therefore the product is a lower
    bound of their joint probability, and its sum over labels is below 1. The product is equation 6 of Villacampa-Calvo
    and Hernández-Lobato (2017). For the step likelihood the factors are Θ(f_y − f_k), without label noise.
    """

    name: ClassVar[str] = "pairwise"
    needs: ClassVar[tuple[type, ...]] = (PairFactors,)
    follows_parameters: ClassVar[bool] = True  # The factors do not contain the label noise.
    exact: ClassVar[bool] = False

    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        observed = np.repeat(labels[:, None], c - 1, axis=1)
        others = np.arange(c - 1) + (np.arange(c - 1) >= labels[:, None])
        return np.concatenate([observed, others], axis=1)

    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        n, d = mean.shape
        pairs = n, 2, d // 2
        found = Tilted(np.empty(n), np.empty(pairs), np.empty(pairs))
        likelihood.computation(PairFactors).derivatives(mean.reshape(pairs), variance.reshape(pairs), *found)
        return Tilted(found.log_z, found.rho.reshape(n, d), found.gamma.reshape(n, d))


class WholePoint(ScalarSites):
    """A single factor for each point. Accurate quadrature computes its log normaliser, a one-dimensional integral."""

    name: ClassVar[str] = "quadrature"
    needs: ClassVar[tuple[type, ...]] = (PointFactor,)
    follows_parameters: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        return True

    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        return np.tile(np.arange(c), (labels.size, 1))

    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        found = Tilted(np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean))
        if likelihood.offers(TabulatedFactor):
            likelihood.computation(TabulatedFactor).derivatives(mean, variance, labels, *found)
            return found
        likelihood.computation(PointFactor).derivatives(mean, variance, labels, likelihood.parameters, *found)
        return found


class OneFunctionSite(ScalarSites):
    """A single factor of one function, with a log normaliser in closed form or by the likelihood's quadrature.

    Observations are integers. Parameters of a likelihood are numbers, equal for all rows.
    """

    name: ClassVar[str] = "quadrature"
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    follows_parameters: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        whole = likelihood.observed_dtype == "int64" and likelihood.observed_axes == 1
        return whole and super().fits(likelihood)

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        return True

    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        return np.zeros((labels.size, 1), np.int64)

    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        terms = np.empty((5, len(mean)))
        given = mean[:, 0].copy(), variance[:, 0].copy(), labels, likelihood.parameters
        likelihood.computation(GaussianAverage).terms(*given, terms)
        return Tilted(terms[0], terms[1][:, None], -terms[2][:, None])


_LARGEST = 4000  # Largest size of a matrix that is factorised in each sweep by default.
_MOST = 6  # Largest number c of functions by default: a sweep takes c² products of matrices.


class Nested(SiteRule):
    """Sites of nested EP (Riihimäki, Jylänki and Vehtari 2013), which couple the functions of a point."""

    name: ClassVar[str] = "nested"
    needs: ClassVar[tuple[type, ...]] = (NoisyDifferenceFactors,)
    exact: ClassVar[bool] = True

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        return 2 < c <= _MOST and c * size <= _LARGEST

    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> CoupledFactors:
        local = likelihood.computation(NoisyDifferenceFactors)
        return CoupledFactors(labels, c, local.update, local.site_parameters)


RULES: tuple[type[SiteRule], ...] = (Nested, WholePoint, OneFunctionSite, Pairs)
"""All rules in order of preference. Several rules with one name support different likelihoods."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def site_rule(name: str, likelihood: Likelihood) -> SiteRule:
    """Return the rule with this name for a likelihood.

    Raises
    ------
    ValueError
        If no rule with this name supports the likelihood.
    """
    fitting = _fitting(likelihood)
    if name not in fitting:
        known = " and ".join(map(repr, fitting))
        raise ValueError(
            f"sites is {name!r}, but EP of a {likelihood.name} likelihood with inducing inputs supports {known}."
            f"{did_you_mean([name], fitting)}"
        )
    return fitting[name]()


def chosen_rule(likelihood: Likelihood, c: int, size: int) -> str:
    """Return the name of the default rule for c functions, each with `size` inducing inputs.

    Raises
    ------
    ValueError
        If no rule supports the likelihood.
    """
    fitting = _fitting(likelihood)
    return next((name for name, rule in fitting.items() if rule.suits(c, size)), next(iter(fitting)))


def _fitting(likelihood: Likelihood) -> dict[str, type[SiteRule]]:
    fitting = {rule.name: rule for rule in RULES if rule.fits(likelihood)}
    if not fitting:
        raise ValueError(
            f"EP with inducing inputs has no sites for a {likelihood.name} likelihood. Use a method for all rows, such "
            f"as {likelihood.method!r}."
        )
    return fitting
