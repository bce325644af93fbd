"""Variational inference with inducing inputs. Log likelihoods are averaged over independent latent values."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.limits import at_least, fraction
from pymc_gpep.approximations.site_rules import OneFunctionSite
from pymc_gpep.approximations.sparse_ep import Iterated, Number, SitesOfRows, SparseApproximation, SparseEP, sweep_of
from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, PointAverage
from pymc_gpep.solvers.inducing import RowFeatures
from pymc_gpep.solvers.problem import History
from pymc_gpep.solvers.scalar_bound import accelerated_ascent
from pymc_gpep.solvers.site_ep import SitesInMemory, Steps, iterate
from pymc_gpep.solvers.sparse_ep import PointAverages
from pymc_gpep.solvers.sparse_sweeps import PointSites
from pymc_gpep.solvers.team import Team

type Terms = Callable[[Likelihood, Array, Array, NDArray[np.int64]], tuple[Array, Array, Array]]


def _of_point(likelihood: Likelihood, mean: Array, variance: Array, y: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    found = np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean)
    likelihood.computation(PointAverage).terms(mean, variance, y, likelihood.parameters, *found)
    return found


def _of_one(likelihood: Likelihood, mean: Array, variance: Array, y: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    terms = np.empty((3, len(mean)))
    given = mean[:, 0].copy(), variance[:, 0].copy(), y, likelihood.parameters
    likelihood.computation(AverageLogDensity).terms(*given, terms)
    return terms[0], terms[1][:, None], terms[2][:, None]


def _terms(likelihood: Likelihood) -> Terms | None:
    if likelihood.offers(PointAverage):
        return _of_point
    return _of_one if likelihood.offers(AverageLogDensity) and OneFunctionSite.fits(likelihood) else None


def has_point_averages(likelihood: Likelihood) -> bool:
    """Return whether a likelihood has averages of its logarithm over independent latent values."""
    return _terms(likelihood) is not None


def point_averages(likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> PointAverages:
    """Return the averages of the log likelihoods of all points of c functions.

    Raises
    ------
    ValueError
        If the likelihood does not have such averages.
    """
    terms = _terms(likelihood)
    if terms is None:
        raise ValueError(
            "A variational bound needs the average of the log likelihood over independent latent values. A "
            f"{likelihood.name} likelihood has no such average. Use another method, such as {likelihood.method!r}."
        )
    if likelihood.offers(PointAverage):
        check_label_noise(likelihood)
    return PointAverages(
        np.tile(np.arange(c), (labels.size, 1)),
        lambda rows, mean, variance: terms(likelihood.at(rows), mean, variance, labels[rows]),
    )


def check_label_noise(likelihood: Likelihood) -> None:
    """Raise a ValueError if the label noise of a likelihood is 0 and its average logarithm is −∞."""
    if likelihood.has_parameters and (likelihood.parameters <= 0.0).any():
        raise ValueError(
            f"A variational bound of a {likelihood.name} likelihood needs label noise, but epsilon is 0: the average "
            'logarithm of a step is −∞. Use a small epsilon, such as epsilon=1e-3, or method="sparse_ep".'
        )


_SCHEMES = "accelerated ascent", "short steps"
_SHORT = 0.4  # Length of a natural gradient step.
_LENGTHS = 0.5 ** np.arange(10)  # Lengths tried for a single step.
_PATIENCE = 60  # Largest number of short sweeps without progress.
_BEFORE = SparseEP(sites="quadrature", tolerance=1e-2, max_iterations=30)
"""EP whose result is the start for a bound with several maxima. Its sites have the form of the bound's sites."""


@dataclass(frozen=True)
class SparseVI(SparseApproximation):
    """Gaussian of inducing values that maximises a lower bound of the log evidence.

    The bound is E_q[log p(y | f)] − KL(q(u) ‖ p(u)), with the exact prior of the latent values given the inducing
    values u. It is a bound for the model with all latent values (Hensman, Matthews and Ghahramani 2015), and an
    additional inducing input never lowers its maximum. For `gpep.RobustMax`, and for `gpep.MultinomialProbit` with
    label noise, the average of log p(y | f) takes a one-dimensional integral (Villacampa-Calvo and Hernández-Lobato
    2017, equations 14 to 17). Without label noise the bound of Girolami and Rogers (2006) replaces this average. With
    all points as inducing inputs the result then equals `"vb"`; for likelihoods of one function it equals `"kl"`.

    Steps follow the natural gradient, are accelerated, and never lower the bound. For a step likelihood with label
    noise a solve can take hundreds of steps. Then `update="inner"` of `pm.fit` is faster: one step for each step of the
    hyperparameters.

    With label noise the bound has several maxima: it is flat in latent values whose label counts as noise. Without a
    start, steps begin at the result of a few sweeps of EP with the exact factor. On the data of Villacampa-Calvo and
    Hernández-Lobato (2017) the bound is then higher than after a start at the prior, by 500 on Satellite. The solve
    takes a third of the steps.

    `pm.fit` has the further options of `"sparse_ep"`.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a site, in units of its marginal, and on the relative change of the bound.
        The error of the bound is about the square of the tolerance.
    depth : int
        Number of past steps that Anderson acceleration combines; 0 is the plain iteration.
    """

    depth: int = field(default=6, metadata=at_least(0))
    mixing: float = field(default=1.0, metadata=fraction())

    name: ClassVar[str] = "sparse_vi"
    title: ClassVar[str] = "the bound"
    first_scheme: ClassVar[str] = _SCHEMES[0]

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        return has_point_averages(likelihood)

    def named(self, likelihood: Likelihood, c: int, size: int) -> Self:
        point_averages(likelihood, np.empty(0, np.int64), c)
        return self

    def one_sweep(self) -> "SparseVI":
        return _OneStep(**{each.name: getattr(self, each.name) for each in fields(self)})

    def number(self, likelihood: Likelihood, c: int, size: int) -> Number:
        return Number.BOUND

    def point_sites(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int, size: int) -> PointSites:
        return point_averages(likelihood, labels, c)

    def begin(
        self, features: RowFeatures, team: Team, sites: Array, labels: NDArray[np.int64], likelihood: Likelihood
    ) -> None:
        if likelihood.log_concave:
            return
        points = _BEFORE.point_sites(likelihood, labels, sites.shape[2], features.whitening.size)
        history = History(_BEFORE.max_iterations)
        of = SitesOfRows(points, points.sweeps(features, team), features, team, likelihood)
        found = _BEFORE.iterate(of, sites, history)
        if not (np.isfinite(found.evidence) and np.isfinite(sites).all()):
            sites[:] = 0.0

    def iterate(self, of: SitesOfRows, sites: Array, history: History) -> Iterated:
        sweep = sweep_of(of.sweeps)

        def ascend(sites: Array, natural: Array, better: Array, scale: Array) -> tuple[bool, float, float]:
            ok, bound, residual = sweep(sites, natural, scale)
            better[:] = natural
            return (True, bound, residual) if ok else (True, -np.inf, np.inf)

        bound, status = accelerated_ascent(
            ascend, sites, history, tolerance=self.tolerance, depth=self.depth, mixing=self.mixing
        )
        if status == CONVERGED or not np.isfinite(bound):
            return Iterated(bound, status, self.first_scheme)
        # Near the maximum, rounding hides changes of the bound, so steps are judged by the residual.
        steps = Steps(self.tolerance, self.depth, _SHORT * self.mixing, _SHORT, np.inf, least_precision=-np.inf)
        moved = sites.copy()
        last, status = iterate(SitesInMemory(sweep, moved, self.depth), history, steps, patience=_PATIENCE)
        if status != CONVERGED or last < bound - self.tolerance * (1.0 + abs(bound)):
            return Iterated(bound, OUT_OF_ITERATIONS, _SCHEMES[1])
        sites[:] = moved
        return Iterated(last, status, _SCHEMES[1])


@dataclass(frozen=True)
class _OneStep(SparseVI):
    """A single step along the natural gradient, halved until the bound after the step does not fall."""

    first_scheme: ClassVar[str] = "a step"

    def iterate(self, of: SitesOfRows, sites: Array, history: History) -> Iterated:
        natural, beyond, scale = np.empty_like(sites), np.empty_like(sites), np.empty(sites.shape[1:])
        sweep = sweep_of(of.sweeps)
        ok, bound, residual = sweep(sites, natural, scale)
        if not ok or not np.isfinite(bound):
            return Iterated(np.nan, NOT_FINITE, self.first_scheme)
        history.add(bound, residual)
        begun = sites.copy()
        for length in _LENGTHS:
            sites[:] = begun + length * (natural - begun)
            ok, moved, _ = sweep(sites, beyond, scale)
            if ok and moved >= bound:
                return Iterated(moved, OUT_OF_ITERATIONS, self.first_scheme)
        sites[:] = begun
        return Iterated(bound, OUT_OF_ITERATIONS, self.first_scheme)
