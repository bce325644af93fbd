"""A fit: where the hyperparameters ended, what stands for their posterior, and the latent values given them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
from pymc.blocking import PointType

from pymc_gpep.approximations import Approximator, Convergence, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.conditional import Conditional
from pymc_gpep.fits.mixture import total_covariance, total_variance
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.prior_functions import CrossCovariance, as_gps

__all__ = ["Fit"]

_CLEARLY = 1e-3  # by which one printed number is above another, and not by rounding


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """What a fit found, as a value: predictions, checks, files and pictures are functions of it.

    Hyperparameters are at weighted nodes, one of them at their maximum or not; given them the latent values are
    Gaussian. What takes work, the posterior at the maximum first of all, is computed when it is asked for.

    Attributes
    ----------
    log_posterior : LogPosterior
        Of the hyperparameters, with the model, its data and the approximation.
    optimum : Optimum
        Its maximum, and how that was found.
    hyper_posterior : HyperPosterior
        The nodes that draws, moments and predictions average over.
    seconds : float
        Time that the fit took, without `compile_seconds`; NaN if unknown.
    compile_seconds : float
        Time that it took to make the graph of the log posterior, and what numba compiled meanwhile; NaN if unknown.
    """

    log_posterior: LogPosterior
    optimum: Optimum
    hyper_posterior: HyperPosterior
    seconds: float = np.nan
    compile_seconds: float = np.nan

    @cached_property
    def solution(self) -> Solution:
        """The approximate posterior of the latent values at the maximum."""
        return self.hyper_posterior.solution_at(self.optimum)

    @property
    def classifier(self) -> GPClassifier:
        """What was read from the model."""
        return self.log_posterior.classifier

    @property
    def approximator(self) -> Approximator:
        """The approximation with its options."""
        return self.log_posterior.approximator

    @property
    def log_evidence(self) -> float:
        """Approximate log marginal likelihood at the maximum."""
        return self.solution.evidence

    @property
    def lower_bound(self) -> float:
        """Lower bound of the log marginal likelihood at the maximum, NaN if none is known: `Solution.lower_bound`."""
        return self.solution.lower_bound

    @property
    def convergence(self) -> Convergence:
        """How the approximation ended, at the maximum."""
        return self.solution.convergence

    @property
    def converged(self) -> bool:
        """Whether optimiser, approximation and integration over the hyperparameters all went well."""
        return self.optimum.converged and self.convergence.converged and self.hyper_posterior.converged

    @property
    def message(self) -> str:
        """How the fit ended, in words."""
        name = self.approximator.name
        if self.log_posterior.value_vars:
            agreed = f"; {self.optimum.agreement}" if self.optimum.agreement else ""
            ended = f"Hyperparameters {self.optimum.outcome}{agreed}"
            # Who interrupts a fit does not wait for another solve.
            ended += "." if self.optimum.interrupted else f"; {name}, started near its solution, {self.convergence}."
        else:
            ended = f"No hyperparameters; {name} {self.convergence}."
        hyper = self.hyper_posterior
        return ended + (f" In hyper={hyper.name!r}, {hyper.message}." if hyper.message else "")

    def __repr__(self) -> str:
        """Method, evidence and how the fit ended."""
        return str(self)

    def __str__(self) -> str:
        """Method, evidence and how the fit ended."""
        hyper, integrated = self.hyper_posterior, ""
        if len(hyper) > 1:
            whole = "" if np.isnan(hyper.log_evidence) else f", log evidence {hyper.log_evidence:.4f}"
            integrated = f" Integrated over hyperparameters at {len(hyper)} nodes (hyper={hyper.name!r}){whole}."
        lower, evidence = self.lower_bound, self.log_evidence
        bound = "" if np.isnan(lower) else f", lower bound {lower:.4f} by Jensen's inequality"
        if lower - evidence > _CLEARLY:  # a bound of the method's own, or an approximation that is too low
            bound += " (the exact log evidence is above both)"
        return (
            f"{self.approximator.name}: log evidence {evidence:.4f}{bound}, "
            f"{'converged' if self.converged else 'NOT converged'}. {self.message}{integrated}"
        )

    def conditionals(self) -> Iterator[Conditional]:
        """The joint posterior given each node in turn."""
        return (Conditional(self.classifier, *part) for part in self.hyper_posterior.solutions())

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Means and standard deviations by name of value variable."""
        means, variances = zip(*(conditional.moments() for conditional in self.conditionals()), strict=True)
        weights = self.hyper_posterior.weights
        mean, std = {}, {}
        for name in means[0]:
            parts = (np.array([part[name] for part in of]) for of in (means, variances))
            mean[name], variance = total_variance(weights, *parts)
            std[name] = np.sqrt(variance)
        return mean, std

    def latent_moments(self) -> tuple[Array, Array]:
        """Posterior mean (n, c) of the latent values, and covariance (n, c, c) of those of each point."""
        parts = ((solution.mean.T, solution.cov) for _, solution in self.hyper_posterior.solutions())
        return total_covariance(self.hyper_posterior.weights, parts)

    def joint_latent_moments(self, points: Sequence[int]) -> tuple[Array, Array]:
        """Posterior mean (m, c) of the latent values of m points, and covariance (m, c, m, c) of all of them."""
        chosen = list(points)
        shape = len(chosen), self.classifier.n_functions
        size = shape[0] * shape[1]

        def parts() -> Iterator[tuple[Array, Array]]:
            for _, solution in self.hyper_posterior.solutions():
                k = solution.posterior.prior.k
                joint = solution.posterior.joint_covariance(k, k)[:, chosen][..., chosen]
                yield solution.mean[:, chosen].T.ravel(), joint.transpose(1, 0, 3, 2).reshape(size, size)

        mean, cov = total_covariance(self.hyper_posterior.weights, parts())
        return mean.reshape(shape), cov.reshape(*shape, *shape)

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Covariance (size, size) of the flat vector in which each value variable has its place."""

        def parts() -> Iterator[tuple[Array, Array]]:
            for conditional in self.conditionals():
                flat = np.zeros(size)
                for name, mean in conditional.moments()[0].items():
                    flat[places[name]] = np.ravel(mean)
                yield flat, conditional.covariance(places, size)

        return total_covariance(self.hyper_posterior.weights, parts())[1]

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws (draws, ...) of all value variables, and of latent values that are deterministic, by name."""
        chosen = self.hyper_posterior.choose(draws, rng)
        values: dict[str, Array] = {}
        for s in np.unique(chosen):
            rows = np.flatnonzero(chosen == s)
            conditional = Conditional(self.classifier, self.hyper_posterior.point(s), self.hyper_posterior.solution(s))
            for name, drawn in conditional.draw(rows.size, rng).items():
                values.setdefault(name, np.empty((draws, *drawn.shape[1:])))[rows] = drawn
        return values

    def draw_at_maximum(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws like those of `draw`, with the hyperparameters at their maximum."""
        point: PointType = self.log_posterior.point(self.optimum.best.theta)
        return Conditional(self.classifier, point, self.solution).draw(draws, rng)

    def cross_covariance(self, gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None) -> CrossCovariance:
        """Prior moments at new inputs, with the data that was fitted; `gp` is what made the latent values, if given.

        Raises
        ------
        TypeError, ValueError
            If `gp` is something else, or did not make the latent values of this model.
        StructureError
            If it is not given, and the graph of the model does not say what the prior is at other inputs.
        """
        return self.log_posterior.cross_covariance(as_gps(gp))
