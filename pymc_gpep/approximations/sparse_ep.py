"""EP with inducing inputs (Villacampa-Calvo and Hernández-Lobato 2017), for more points than matrices can have rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.approximations.accelerated_ep import sites_between
from pymc_gpep.approximations.limits import at_least, check_limits, fraction, one_of, positive
from pymc_gpep.approximations.site_rules.contract import SiteRule
from pymc_gpep.approximations.site_rules.registry import RULE_NAMES, RULES, chosen_rule, site_rule
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.kernels.status import CONVERGED, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.multinomial_probit.likelihood import MultinomialProbitLikelihood
from pymc_gpep.solvers.accelerated_ep import Steps, Sweep, accelerated_ep
from pymc_gpep.solvers.ep_ladder import SCHEMES, ep_ladder
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.inducing import Block, InducedPrior, RowFeatures, whitening
from pymc_gpep.solvers.sparse_contract import Pull
from pymc_gpep.solvers.team import gather, one_blas_thread

__all__ = ["InducedArrays", "SparseEP", "SparseSolution"]

_SHORT = 0.4  # of steps with sites that widen, in units of others
_PATIENCE = 40  # sweeps without progress that these may take


@dataclass(frozen=True, eq=False)
class SparseSolution:
    """The approximate posterior of latent functions by way of inducing values, at fixed hyperparameters.

    Attributes
    ----------
    evidence : float
        Log normaliser of EP's approximation, NaN where it failed. It approximates the log evidence of the model with
        the FITC prior if `exact`, and is no more than what hyperparameters are chosen by if not.
    exact : bool
        Whether the factors that EP approximates multiply to the likelihood.
    posterior : InducingPosterior or None
        None where a covariance had no Cholesky factor.
    labels : array (n,)
    likelihood : Likelihood
    start : array
        Where to start the solver at neighbouring hyperparameters.
    convergence : Convergence
    inducing_slope : array (q, M, M)
        Derivative in the prior covariance of the inducing values; empty where it was not asked for.
    floored : int
        How many sites match the mean of their tilted distribution alone, which is wider than their cavity, because EP
        did not converge with sites that match its variance as well; 0 for log-concave likelihoods. Where it is not 0
        the derivatives of the evidence are approximate.
    """

    evidence: float
    exact: bool
    posterior: InducingPosterior | None
    labels: NDArray[np.int64]
    likelihood: Likelihood
    start: Array
    convergence: Convergence
    inducing_slope: Array
    floored: int = 0


class InducedArrays:
    """A prior at fixed hyperparameters, as arrays.

    Parameters
    ----------
    inducing : array (M, M), (1, M, M) or (c, M, M)
        Prior covariance of the inducing values.
    cross : array (M, n), (1, M, n) or (c, M, n)
        Between inducing values and the latent values.
    variance : array (n,), (1, n) or (c, n)
        Of the latent values.
    mean : array (c, n)
        Of the latent values.

    Raises
    ------
    ValueError
        If shapes do not agree or values are not finite.
    """

    def __init__(self, inducing: ArrayLike, cross: ArrayLike, variance: ArrayLike, mean: ArrayLike) -> None:
        k, m = np.asarray(inducing, np.float64), np.asarray(mean, np.float64)
        self._inducing = k[None] if k.ndim == 2 else k
        across, variances = np.asarray(cross, np.float64), np.asarray(variance, np.float64)
        self._block = Block(
            across[None] if across.ndim == 2 else across, variances[None] if variances.ndim == 1 else variances, m
        )
        if m.ndim != 2:
            raise ValueError(f"mean must be (functions, points), but has shape {m.shape}.")
        self.n_functions, self.n_points = m.shape
        sets, size = self._inducing.shape[0], self._inducing.shape[-1]
        expected = {
            "inducing": (self._inducing, (sets, size, size)),
            "cross": (self._block.cross, (sets, size, self.n_points)),
            "variance": (self._block.variance, (sets, self.n_points)),
        }
        if sets not in (1, self.n_functions):
            raise ValueError(f"inducing must be one matrix or {self.n_functions}, but there are {sets}.")
        for name, (values, shape) in expected.items():
            if values.shape != shape:
                raise ValueError(
                    f"{name} must have the shape {shape} that goes with the others, but has {values.shape}."
                )
        for name, values in (*((name, each) for name, (each, _) in expected.items()), ("mean", m)):
            if bad := np.count_nonzero(~np.isfinite(values)):
                raise ValueError(f"{name} must be finite, but has {bad} values that are not.")

    def inducing(self) -> Array:
        """Prior covariance of the inducing values, (q, M, M)."""
        return self._inducing

    def block(self, rows: slice) -> Block:
        """Moments of some of the rows."""
        cross, variance, mean = self._block
        return Block(cross[:, :, rows], variance[:, rows], mean[:, rows])


def _at_the_floor(sweep: Sweep, sites: Array) -> int:
    """How many sites go to a precision of 0."""
    target, scale = np.empty_like(sites), np.empty(sites.shape[1:])
    sweep(sites.copy(), target, scale)
    return int((target[0] <= 0.0).sum())


@dataclass(frozen=True)
class SparseEP:
    """EP whose sites act on a few inducing values, given which latent values are independent (FITC).

    Time is O(c n M²) an iteration for n points, c functions and M inducing inputs each, and O(c² n M² + c³ M³) with
    `sites="nested"`; no matrix has two axes over points. The posterior leaves the functions independent otherwise.

    Parameters
    ----------
    sites : {"nested", "quadrature", "pairwise"}, optional
        How the likelihood of a point is taken apart. If not given, `"nested"` for three functions or more that have up
        to 4000 inducing inputs together, and `"quadrature"` for others. `"nested"`: not at all, with sites that couple
        the functions of a point; with all points as inducing inputs the method is then `"nested_ep"`. `"quadrature"`:
        not at all either, with sites that leave them independent; with all points it is `"qiep"`, or `"ep"` for a
        likelihood of one function. `"pairwise"`: the paper's product over the other classes, whose evidence is a lower
        bound factor by factor and cannot be compared with any other.
    tolerance : float
        For the largest change of a site in units of its marginal, and the relative change of the evidence.
    max_iterations : int
        Limit on iterations.
    memory : int
        Past steps that Anderson acceleration combines, each as long as two starts; 0 is plain damped EP.
    mixing : float
        Part of the combined residual that an accelerated step takes.
    damping : float
        Part of the full update that a plain step takes, in (0, 1].
    ladder : bool
        Whether to go on, where the iteration does not get closer any more, with plain steps, and ever smaller ones.
    jitter : float
        Added to the diagonal of the covariance of the inducing values, relative to its mean. It is raised a
        hundredfold, and once more, where the matrix has no Cholesky factor: inducing inputs may coincide.
    """

    sites: str | None = field(default=None, metadata=one_of(*RULE_NAMES))
    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    memory: int = field(default=3, metadata=at_least(0))
    mixing: float = field(default=0.9, metadata=fraction())
    damping: float = field(default=0.7, metadata=fraction())
    ladder: bool = True
    jitter: float = field(default=1e-6, metadata=positive())

    name: ClassVar[str] = "sparse_ep"

    def __post_init__(self) -> None:
        check_limits(self)

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Whether it has sites for a likelihood."""
        return any(rule.fits(likelihood) for rule in RULES)

    def named(self, likelihood: Likelihood, c: int, size: int) -> Self:
        """The same with `sites` chosen for c functions of so many inducing inputs each, if they are not given.

        Raises
        ------
        ValueError
            If the likelihood has no such sites.
        """
        sites = chosen_rule(likelihood, c, size) if self.sites is None else self.sites
        site_rule(sites, likelihood)
        return replace(self, sites=sites)

    def rule(self, likelihood: Likelihood, c: int, size: int) -> SiteRule:
        """How a likelihood is taken apart; a ValueError if it cannot be."""
        return site_rule(self.sites or chosen_rule(likelihood, c, size), likelihood)

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """A start from those of neighbouring problems, see `Approximator.between`."""
        return sites_between(starts, weights, nearest)

    def solve(
        self,
        prior: InducedPrior,
        labels: ArrayLike,
        start: Array | None = None,
        *,
        likelihood: Likelihood | None = None,
        pull: Pull | None = None,
        pull_anyway: bool = False,
    ) -> SparseSolution:
        """Approximate the posterior.

        Parameters
        ----------
        prior : InducedPrior
            For example `InducedArrays`.
        labels : array (n,)
            What was observed: classes, counted from 0.
        start : array, optional
            `SparseSolution.start` of a neighbouring problem; a cold start if not given.
        likelihood : Likelihood, optional
            The multinomial probit if not given.
        pull : function of (slice, Block), optional
            Given the derivatives of the evidence in the prior moments, block by block, once that has converged.
        pull_anyway : bool
            Whether `pull` is given those with the sites held where iterations were not enough to converge.

        Raises
        ------
        ValueError
            If labels are no classes, the start has another size, or the likelihood has no such sites.
        """
        likelihood = likelihood or MultinomialProbitLikelihood()
        with np.errstate(all="ignore"):
            covariance = prior.inducing()
        rule = self.rule(likelihood, prior.n_functions, covariance.shape[-1])
        observed = likelihood.check(labels, prior.n_functions, prior.n_points)
        factors = rule.factors(likelihood, observed, prior.n_functions)
        shape = (2, *factors.shape)
        begin = np.zeros(shape)
        if start is not None:
            if np.size(start) != begin.size or not np.isfinite(start).all():
                raise ValueError(f"start must be {begin.size} finite numbers, the start of a solution of this size.")
            begin[:] = np.reshape(start, shape)
        history = History(self.max_iterations)
        evidence, status, rung, posterior, slope = np.nan, NOT_POSITIVE_DEFINITE, 0, None, np.empty(0)
        floored = 0
        with one_blas_thread(), gather(prior.n_points) as team, np.errstate(all="ignore"):
            if (white := whitening(covariance, self.jitter)) is not None:
                features = RowFeatures(prior, white)
                sweeps = factors.sweeps(features, team)
                wider = factors.widening()
                widened = False
                if wider is not None and (begin[0] < 0.0).any():  # from a neighbour that has such sites
                    widened, evidence = self._widen(wider.sweeps(features, team).sweep, begin, history)
                    status = CONVERGED
                if not widened:
                    evidence, status, rung = self._iterate(sweeps.sweep, begin, history, likelihood)
                    if wider is not None and status == CONVERGED:
                        narrow = evidence
                        widened, evidence = self._widen(wider.sweeps(features, team).sweep, begin, history)
                        evidence = evidence if widened else narrow
                        floored = 0 if widened else _at_the_floor(sweeps.sweep, begin)
                if np.isfinite(evidence):
                    posterior = InducingPosterior(white, sweeps.posterior(begin))
                if pull is not None and (status == CONVERGED or (pull_anyway and status == OUT_OF_ITERATIONS)):
                    slope = sweeps.derivatives(begin, pull)
        evidences, residuals = history.array.T.copy()
        return SparseSolution(
            evidence=evidence,
            exact=rule.exact,
            posterior=posterior,
            labels=observed,
            likelihood=likelihood,
            start=begin.ravel(),
            convergence=Convergence(status, len(history), evidences, residuals, self.tolerance, SCHEMES[rung]),
            inducing_slope=slope,
            floored=floored,
        )

    def _widen(self, sweep: Sweep, sites: Array, history: History) -> tuple[bool, float]:
        """Iterate from sites close to the end, with short steps; where it does not converge they stay what they are.

        Returns whether it did, and the evidence.
        """
        steps = Steps(
            self.tolerance, self.memory, _SHORT * self.mixing, _SHORT * self.damping, np.inf, least_precision=-np.inf
        )
        moved = sites.copy()
        evidence, status = accelerated_ep(sweep, moved, history, steps, patience=_PATIENCE)
        if status == CONVERGED:
            sites[:] = moved
        return status == CONVERGED, evidence

    def _iterate(
        self, sweep: Callable[..., tuple[bool, float, float]], sites: Array, history: History, likelihood: Likelihood
    ) -> tuple[float, int, int]:
        return ep_ladder(
            sweep,
            sites,
            history,
            tolerance=self.tolerance,
            memory=self.memory,
            mixing=self.mixing,
            damping=self.damping,
            ladder=self.ladder,
            largest_precision=likelihood.largest_precision,
        )
