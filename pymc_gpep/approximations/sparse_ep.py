"""EP with inducing inputs (Villacampa-Calvo and Hernández-Lobato 2017), and a base class for such approximations."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.approximations.approximator import sites_between
from pymc_gpep.approximations.limits import at_least, check_limits, documented, fraction, one_of, positive
from pymc_gpep.approximations.site_rules import RULE_NAMES, RULES, SiteRule, chosen_rule, site_rule
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.kernels.status import CONVERGED, NOT_POSITIVE_DEFINITE
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.solvers.inducing import Block, InducedPrior, RowFeatures, whitening
from pymc_gpep.solvers.problem import History
from pymc_gpep.solvers.site_ep import PATIENCE, SCHEMES, SitesInMemory, Steps, Sweep, iterate, site_ep, site_sweep
from pymc_gpep.solvers.sparse_sweeps import Bars, LeftOut, PointSites, SiteSweeps
from pymc_gpep.solvers.team import Team, gather, one_blas_thread


class Number(Enum):
    """Kind of the objective of a solve. Each value is a text with a placeholder for the number."""

    EVIDENCE = "log evidence {:.4f} (of the model with inducing inputs)"
    """Approximate log marginal likelihood of the model with the FITC prior."""
    BOUND = "lower bound {:.4f} of the log evidence"
    """Lower bound of the log marginal likelihood of the model, or of the model with the FITC prior."""
    OBJECTIVE = "objective {:.4f} (not a log evidence: do not compare models by it)"
    """Objective that is maximised, but is neither a log evidence nor a bound."""

    def text(self, value: float) -> str:
        """Return the text for a value."""
        return self.value.format(value)


@dataclass(frozen=True, eq=False)
class SparseSolution:
    """Approximate posterior of inducing values at fixed hyperparameters.

    Attributes
    ----------
    evidence : float
        Objective of the search for hyperparameters; NaN if the solve failed.
    number : Number
        Kind of `evidence`: approximate log evidence, lower bound, or another objective.
    posterior : InducingPosterior or None
        None if a covariance had no Cholesky factor.
    labels : array (n,)
    likelihood : Likelihood
    start : array
        Start for the solver at nearby hyperparameters.
    convergence : Convergence
    floored : int
        Number of sites with precision 0 in place of a negative precision, with which EP did not converge. Such a site
        matches the mean but not the variance of its tilted distribution. The number is 0 for log-concave likelihoods.
        If it is not 0, derivatives of the evidence are approximate.
    """

    evidence: float
    number: Number
    posterior: InducingPosterior | None
    labels: NDArray[np.int64]
    likelihood: Likelihood
    start: Array
    convergence: Convergence
    floored: int = 0

    @property
    def objective(self) -> float:
        """Number that a search for hyperparameters and inducing inputs maximises."""
        return self.evidence

    @property
    def log_evidence(self) -> float:
        """The objective if it approximates the log marginal likelihood of the sparse model; otherwise NaN."""
        return self.evidence if self.number is Number.EVIDENCE else np.nan

    @property
    def lower_bound(self) -> float:
        """The objective if it is a lower bound of the log marginal likelihood; otherwise NaN."""
        return self.evidence if self.number is Number.BOUND else np.nan

    @property
    def converged(self) -> bool:
        """Whether the fixed point was reached."""
        return self.convergence.converged


class SitesOfRows(NamedTuple):
    """Sites of all rows, with their sweeps, features and likelihood, for a solver."""

    points: PointSites
    sweeps: SiteSweeps[Any, Any]
    """Sweeps over the points, with the features of all rows."""
    features: RowFeatures
    team: Team
    likelihood: Likelihood


class Solved(NamedTuple):
    """Solution with the features of all rows, for derivatives of the evidence."""

    solution: SparseSolution
    points: PointSites
    features: RowFeatures | None
    """Features of all rows; None if a covariance had no Cholesky factor."""

    def bars(self) -> Iterator[Bars]:
        """Yield derivatives of the evidence with respect to prior moments, in blocks of rows.

        Sites are held fixed. At a fixed point of EP this does not change the derivatives.
        """
        solution = self.solution
        if self.features is None or solution.posterior is None:
            return
        sites = solution.start.reshape(2, *self.points.shape)
        with one_blas_thread(), gather(len(solution.labels)) as team, np.errstate(all="ignore"):
            yield from self.points.sweeps(self.features, team).bars(sites, solution.posterior.whitened)


class Iterated(NamedTuple):
    """Result of an iteration. The sites were updated in place."""

    evidence: float
    status: int
    scheme: str
    floored: int = 0


class InducedArrays:
    """Prior of inducing values and latent values at fixed hyperparameters, as arrays.

    Parameters
    ----------
    inducing : array (M, M), (1, M, M) or (c, M, M)
        Prior covariance of the inducing values.
    cross : array (M, n), (1, M, n) or (c, M, n)
        Prior covariance between inducing values and the latent values.
    variance : array (n,), (1, n) or (c, n)
        Prior variance of the latent values.
    mean : array (c, n), or (n,) of one function
        Prior mean of the latent values.

    Raises
    ------
    ValueError
        If shapes do not agree or values are not finite.
    """

    def __init__(self, inducing: ArrayLike, cross: ArrayLike, variance: ArrayLike, mean: ArrayLike) -> None:
        k, m = np.asarray(inducing, np.float64), np.atleast_2d(np.asarray(mean, np.float64))
        self._inducing = k[None] if k.ndim == 2 else k
        across, variances = np.asarray(cross, np.float64), np.asarray(variance, np.float64)
        self._block = Block(
            across[None] if across.ndim == 2 else across, variances[None] if variances.ndim == 1 else variances, m
        )
        if m.ndim != 2:
            raise ValueError(
                f"mean must be (functions, points), or (points,) for one function, but has shape {m.shape}."
            )
        self.n_functions, self.n_points = m.shape
        self.n_effects = 0
        sets, size = self._inducing.shape[0], self._inducing.shape[-1]
        expected = {
            "inducing": (self._inducing, (sets, size, size)),
            "cross": (self._block.cross, (sets, size, self.n_points)),
            "variance": (self._block.variance, (sets, self.n_points)),
        }
        if sets not in (1, self.n_functions):
            raise ValueError(f"inducing must have 1 or {self.n_functions} matrices, but has {sets}.")
        for name, (values, shape) in expected.items():
            if values.shape != shape:
                raise ValueError(
                    f"{name} must have the shape {shape}, as the other arrays require, but has {values.shape}."
                )
        for name, values in (*((name, each) for name, (each, _) in expected.items()), ("mean", m)):
            if bad := np.count_nonzero(~np.isfinite(values)):
                raise ValueError(f"{name} must be finite, but has {bad} values that are not.")
        if negative := np.count_nonzero(self._block.variance < 0.0):
            raise ValueError(f"variance must not be negative, but {negative} of its values are.")

    def inducing(self) -> Array:
        """Return the prior covariance of the inducing values, (q, M, M)."""
        return self._inducing

    def block(self, rows: slice) -> Block:
        """Return the moments of a slice of rows."""
        cross, variance, mean, effects = self._block
        return Block(cross[:, :, rows], variance[:, rows], mean[:, rows], effects[:, :, rows])


@dataclass(frozen=True)
class SparseApproximation(ABC):
    """Approximation with inducing inputs, and its options. It computes a solution from prior moments and labels.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a site, in units of its marginal, and on the relative change of the evidence.
    max_iterations : int
        Limit on iterations.
    depth : int
        Number of past steps that Anderson acceleration combines.
    mixing : float
        Fraction of the combined residual in an accelerated step, in (0, 1].
    jitter : float
        Number that is added to the diagonal of the covariance of the inducing values, relative to the mean of the
        diagonal. If the matrix has no Cholesky factor, for example because inducing inputs coincide, jitter is
        multiplied by 100, up to twice.
    """

    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    depth: int = field(default=3, metadata=at_least(0))
    mixing: float = field(default=0.9, metadata=fraction())
    jitter: float = field(default=1e-6, metadata=positive())

    name: ClassVar[str]
    """Name of the method in `pm.fit(method=...)`."""
    title: ClassVar[str] = "EP"
    """Name of the method in messages."""
    first_scheme: ClassVar[str]
    """Name of the first scheme of the solver."""

    def __init_subclass__(cls) -> None:
        cls.__doc__ = documented(cls)

    def __post_init__(self) -> None:
        check_limits(self)

    @classmethod
    @abstractmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether the approximation has sites for a likelihood."""

    @abstractmethod
    def named(self, likelihood: Likelihood, c: int, size: int) -> Self:
        """Return a copy with default options chosen for c functions, each with `size` inducing inputs.

        Raises
        ------
        ValueError
            If the likelihood has no such sites.
        """

    @property
    def chosen(self) -> str:
        """Code of the chosen option and a comma, for a message; empty if no option is chosen."""
        return ""

    @abstractmethod
    def number(self, likelihood: Likelihood, c: int, size: int) -> Number:
        """Return the kind of the objective; arguments as for `named`."""

    @abstractmethod
    def point_sites(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int, size: int) -> PointSites:
        """Return the sites of all points, or raise a ValueError if the likelihood is not supported."""

    def begin(  # noqa: B027 - there is nothing to do as a rule
        self, features: RowFeatures, team: Team, sites: Array, labels: NDArray[np.int64], likelihood: Likelihood
    ) -> None:
        """Write the cold start into `sites` (2, n, d), an array of zeros."""

    @abstractmethod
    def iterate(self, of: SitesOfRows, sites: Array, history: History) -> Iterated:
        """Iterate from `sites` (2, n, d), and overwrite them with the last sites."""

    @abstractmethod
    def one_sweep(self) -> "SparseApproximation":
        """Return an approximation that runs a single sweep from `start`."""

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """Combine starts of nearby problems, see `Approximator.between`."""
        return sites_between(starts, weights, nearest)

    def solve(
        self,
        prior: InducedPrior,
        labels: ArrayLike,
        start: Array | None = None,
        *,
        likelihood: Likelihood | None = None,
    ) -> SparseSolution:
        """Approximate the posterior.

        Parameters
        ----------
        prior : InducedPrior
            Prior moments, for example `InducedArrays`.
        labels : array (n,)
            Observations: classes, counted from 0.
        start : array, optional
            `SparseSolution.start` of a nearby problem. The default is a cold start.
        likelihood : Likelihood, optional
            The default is the multinomial probit.

        Raises
        ------
        ValueError
            If labels are not classes, the start has another size, or the likelihood is not supported.
        """
        return self.solved(prior, labels, start, likelihood=likelihood).solution

    def solved(
        self,
        prior: InducedPrior,
        labels: ArrayLike,
        start: Array | None = None,
        *,
        likelihood: Likelihood | None = None,
    ) -> Solved:
        """Approximate the posterior, with the features for derivatives of the evidence; arguments as for `solve`."""
        likelihood = likelihood or MultinomialProbitLikelihood()
        with np.errstate(all="ignore"):
            covariance = prior.inducing()
        c, size = prior.n_functions, covariance.shape[-1] + prior.n_effects
        observed = likelihood.check(labels, c, prior.n_points)
        points = self.point_sites(likelihood, observed, c, size)
        sites = np.zeros((2, *points.shape))
        if start is not None:
            if np.size(start) != sites.size or not np.isfinite(start).all():
                raise ValueError(f"start must be {sites.size} finite numbers, as in solution.start.")
            sites[:] = np.reshape(start, sites.shape)
        history, features, posterior = History(self.max_iterations), None, None
        found = Iterated(np.nan, NOT_POSITIVE_DEFINITE, self.first_scheme)
        with one_blas_thread(), gather(prior.n_points) as team, np.errstate(all="ignore"):
            if (white := whitening(covariance, self.jitter, prior.n_effects)) is not None:
                features = RowFeatures(prior, white)
                sweeps = points.sweeps(features, team)
                if start is None:
                    self.begin(features, team, sites, observed, likelihood)
                found = self.iterate(SitesOfRows(points, sweeps, features, team, likelihood), sites, history)
                if np.isfinite(found.evidence):
                    posterior = InducingPosterior(white, sweeps.posterior(sites))
        solution = SparseSolution(
            evidence=found.evidence,
            number=self.number(likelihood, c, size),
            posterior=posterior,
            labels=observed,
            likelihood=likelihood,
            start=sites.ravel(),
            convergence=Convergence(found.status, history.array, self.tolerance, found.scheme),
            floored=found.floored,
        )
        return Solved(solution, points, features)

    def left_out(self, prior: InducedPrior, solution: SparseSolution) -> Iterator[LeftOut]:
        """Yield leave-one-out moments of all points in parts: each point given the sites of the other points.

        Parameters
        ----------
        prior : InducedPrior
            Prior of the solution.
        solution : SparseSolution
            Solution with a posterior and sites.
        """
        posterior = solution.posterior
        assert posterior is not None
        points = self.point_sites(solution.likelihood, solution.labels, prior.n_functions, posterior.size)
        sites = solution.start.reshape(2, *points.shape)
        with one_blas_thread(), gather(prior.n_points) as team:
            sweeps = points.sweeps(RowFeatures(prior, posterior.whitening), team)
            yield from sweeps.left_out(sites, posterior.whitened)


def sweep_of(sweeps: SiteSweeps[Any, Any]) -> Sweep:
    """Return a sweep over sites with inducing inputs."""
    return site_sweep(sweeps, SiteSweeps.update)


# Names of sites in the IVM, and the names of equivalent sites with inducing inputs.
_ELSEWHERE = {"coupled": "nested", "independent": "quadrature"}
_SHORT = 0.4  # Length of steps with negative site precisions, relative to other steps.


@dataclass(frozen=True)
class SparseEP(SparseApproximation):
    """EP with inducing values. Given these, latent values are independent (FITC).

    For n points, c functions and M inducing inputs of each, an iteration takes O(c n M²). With `sites="nested"` it
    takes O(c² n M² + c³ M³); with other sites the functions are independent in the posterior. No matrix is (n, n).

    `pm.fit` has further options, such as `inducing`, `shared_inducing`, `learn_inducing`, `update`, `data`, `client`
    and `batch_size`. See the page "Options of methods for many rows" of the documentation.

    Parameters
    ----------
    sites : {"nested", "quadrature", "pairwise"}, optional
        Factorisation of the likelihood of a point. The default is `"nested"` for three functions or more with up to
        4000 inducing inputs together, and `"quadrature"` otherwise. `"nested"` uses a single factor, with sites that
        couple the functions of a point; with all points as inducing inputs the result equals `"nested_ep"`.
        `"quadrature"` uses a single factor with independent sites; with all points the result equals `"qiep"`, or
        `"ep"` for a likelihood of one function. `"pairwise"` uses the paper's product over the other classes. Each of
        its factors is a lower bound, so its evidence cannot be compared with other methods.
    depth : int
        Number of past steps that Anderson acceleration combines; 0 is plain damped EP. A stored step takes twice the
        memory of the sites.
    damping : float
        Fraction of the full update in a plain step, in (0, 1].
    ladder : bool
        Whether to continue with plain and smaller steps if the residual no longer falls (fallback sequence).
    """

    sites: str | None = field(default=None, metadata=one_of(*RULE_NAMES, elsewhere=_ELSEWHERE))
    damping: float = field(default=0.7, metadata=fraction())
    ladder: bool = True

    name: ClassVar[str] = "sparse_ep"
    first_scheme: ClassVar[str] = SCHEMES[0]

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        return any(rule.fits(likelihood) for rule in RULES)

    def named(self, likelihood: Likelihood, c: int, size: int) -> Self:
        sites = chosen_rule(likelihood, c, size) if self.sites is None else self.sites
        site_rule(sites, likelihood)
        return replace(self, sites=sites)

    @property
    def chosen(self) -> str:
        return f"sites={self.sites!r}, "

    def one_sweep(self) -> Self:
        return replace(self, max_iterations=1, depth=0, ladder=False)

    def rule(self, likelihood: Likelihood, c: int, size: int) -> SiteRule:
        """Return the rule that factorises a likelihood, or raise a ValueError if it is not supported."""
        return site_rule(self.sites or chosen_rule(likelihood, c, size), likelihood)

    def number(self, likelihood: Likelihood, c: int, size: int) -> Number:
        return Number.EVIDENCE if self.rule(likelihood, c, size).exact else Number.OBJECTIVE

    def point_sites(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int, size: int) -> PointSites:
        return self.rule(likelihood, c, size).factors(likelihood, labels, c)

    def iterate(self, of: SitesOfRows, sites: Array, history: History) -> Iterated:
        """Run the fallback sequence. If tilted moments need negative site precisions, continue with these."""
        wider = of.points.widening()
        wide = None if wider is None else sweep_of(wider.sweeps(of.features, of.team))
        if wide is not None and (sites[0] < 0.0).any():  # The start has negative precisions from a nearby solution.
            widened = self._widen(wide, sites, history)
            if widened is not None:
                return Iterated(widened, CONVERGED, SCHEMES[0])
        evidence, status, rung = site_ep(
            of.sweeps, sites, history, update=SiteSweeps.update, **self.steps(of.likelihood)
        )
        if wide is None or status != CONVERGED:
            return Iterated(evidence, status, SCHEMES[rung])
        widened = self._widen(wide, sites, history)
        if widened is not None:
            return Iterated(widened, status, SCHEMES[rung])
        return Iterated(evidence, status, SCHEMES[rung], _at_the_floor(sweep_of(of.sweeps), sites))

    def steps(self, likelihood: Likelihood) -> dict[str, Any]:
        """Return the options of `pymc_gpep.solvers.site_ep.fallback`."""
        names = "tolerance", "depth", "mixing", "damping", "ladder"
        return {name: getattr(self, name) for name in names} | {"largest_precision": likelihood.largest_precision}

    def _widen(self, sweep: Sweep, sites: Array, history: History) -> float | None:
        """Iterate with negative precisions from sites near a fixed point. Return the evidence; None after a failure."""
        steps = Steps(
            self.tolerance, self.depth, _SHORT * self.mixing, _SHORT * self.damping, np.inf, least_precision=-np.inf
        )
        moved = sites.copy()
        evidence, status = iterate(SitesInMemory(sweep, moved, self.depth), history, steps, patience=PATIENCE)
        if status != CONVERGED:
            return None
        sites[:] = moved
        return evidence


def _at_the_floor(sweep: Sweep, sites: Array) -> int:
    """Return the number of sites whose precision is limited to 0."""
    target, scale = np.empty_like(sites), np.empty(sites.shape[1:])
    sweep(sites.copy(), target, scale)
    return int((target[0] <= 0.0).sum())
