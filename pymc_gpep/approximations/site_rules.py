"""Factors of a likelihood for EP with inducing inputs: the contract of a rule, and the rules.

A rule names the factors of a point and the form of their sites. Scalar sites act on the utilities that are compared.
`Nested` has sites that couple the functions of a point, from inner EP.
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
    """What `sites=` calls it."""
    needs: ClassVar[tuple[type, ...]]
    """Types of the local computations that a likelihood must have."""
    follows_parameters: ClassVar[bool] = False
    """Whether a likelihood may be given numbers besides latent values, which then are no hyperparameters."""
    exact: ClassVar[bool]
    """Whether the factors multiply to the likelihood, so that EP's evidence is one of the model."""

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Whether this rule can factorise a likelihood."""
        follows = cls.follows_parameters or not likelihood.has_parameters
        return follows and all(likelihood.offers(kind) for kind in cls.needs)

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        """Return whether this rule is the default for c functions, each with `size` inducing inputs."""
        return False

    @abstractmethod
    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> PointSites:
        """Return the likelihood of all points of c functions in the form of the solver."""


class ScalarSites(SiteRule):
    """Factors of the likelihood of a point, each with a scalar site for every function that it depends on.

    A point has d sites. Sites of one factor are on different functions, whose latent values are then independent.
    """

    @abstractmethod
    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        """Position of the function of each site among the c functions, (n, d)."""

    @abstractmethod
    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        """Log normalisers and derivatives at B points.

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
    """∏_k Φ((f_y − f_k) / √2), k ≠ y, in place of the multinomial probit.

    This is equation 6 of Villacampa-Calvo and Hernández-Lobato (2017), whose f are utilities, latent values with unit
    noise. The events that y is above k are positively associated, since the noise of y is in all of them. So the
    product is a lower bound of the probability that they happen together, and over labels it does not sum to 1.

    The factors of the step likelihood are Θ(f_y − f_k), without the label noise, as in the paper.
    """

    name: ClassVar[str] = "pairwise"
    needs: ClassVar[tuple[type, ...]] = (PairFactors,)
    follows_parameters: ClassVar[bool] = True  # their derivatives are omitted
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
    """A single factor, whose log normaliser is one integral, nearly exact."""

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
    """With its log normaliser in closed form, or by the quadrature that the likelihood has.

    Observations are whole numbers. Parameters of a likelihood are numbers, the same for all rows of a model.
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


_LARGEST = 4000  # Largest matrix that is factorised in each sweep by default.
_MOST = 6  # Largest number of functions, since there are c² products of matrices.


class Nested(SiteRule):
    """The sites of nested EP (Riihimäki, Jylänki and Vehtari 2013): one site for each point, on all its functions."""

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
"""All there are, the first choice first; those of one name are for different likelihoods."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def site_rule(name: str, likelihood: Likelihood) -> SiteRule:
    """Return the rule with this name for a likelihood.

    Raises
    ------
    ValueError
        If the likelihood has no rule of this name.
    """
    fitting = _fitting(likelihood)
    if name not in fitting:
        known = " and ".join(map(repr, fitting))
        raise ValueError(
            f"sites is {name!r}, but with inducing inputs EP of a {likelihood.name} likelihood has {known}."
            f"{did_you_mean([name], fitting)}"
        )
    return fitting[name]()


def chosen_rule(likelihood: Likelihood, c: int, size: int) -> str:
    """Return the name of the default rule for c functions, each with `size` inducing inputs.

    Raises
    ------
    ValueError
        If the likelihood fits no rule.
    """
    fitting = _fitting(likelihood)
    return next((name for name, rule in fitting.items() if rule.suits(c, size)), next(iter(fitting)))


def _fitting(likelihood: Likelihood) -> dict[str, type[SiteRule]]:
    fitting = {rule.name: rule for rule in RULES if rule.fits(likelihood)}
    if not fitting:
        raise ValueError(
            f"EP with inducing inputs has no sites for a {likelihood.name} likelihood. Take a method of all rows, such "
            f"as {likelihood.method!r}."
        )
    return fitting
