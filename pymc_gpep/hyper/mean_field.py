"""Variational Bayes of latent values, hyperparameters and their parents together (Girolami and Rogers 2006)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console

from pymc_gpep.approximations.contract import Approximator
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.approximations.variational_bayes import VariationalBayes
from pymc_gpep.hyper.contract import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.mean_field_steps import Step, mean_field_steps
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.weights import Estimate, Weighing, smooth, worth_keeping

__all__ = ["MeanField"]

_PATIENCE = 5  # steps in which a bound that draws have a part in must rise


@dataclass(frozen=True)
class MeanField(HyperMethod):
    """Variational Bayes of the hyperparameters with their parents, by weighted draws from their priors.

    In turn the posterior of the latent values, the weights of new draws of the hyperparameters from their priors given
    their parents, and the parents at their most probable values given the mean of the hyperparameters, see
    `pymc_gpep.hyper.mean_field_steps`. That mean is taken on the natural scale. It begins at the maximum. Nodes are the
    draws of the last step; given a node the latent values have the Gaussian of the approximation there.

    Parameters
    ----------
    draws : int
        In each step; at least 100, for their weights to have a tail.
    steps : int
        Limit on them.
    trace : bool
        Whether the spread of the latent values counts in the weights, as it does in the exact mean field. The paper
        leaves it out, which makes the latent values smoother with every step, without a bound that rises throughout.
    utilities : bool
        Whether draws are weighted by the density of the mean utilities instead, the latent values integrated out. That
        is the posterior q(v) q(f, φ), which has a higher bound and comes to it in few steps; `trace` has no say then.
    inner : int, optional
        How many updates of the latent values there are in a step, 1 in the paper; as many as they need if not given.
    tolerance : float
        It ends where five steps have not raised the bound by this much, relative; with weights that make no bound
        where one has not raised that at the mean of the hyperparameters, as in the paper.
    """

    draws: int = field(default=500, metadata=at_least(100))
    steps: int = field(default=50, metadata=at_least(1))
    trace: bool = True
    utilities: bool = False
    inner: int | None = field(default=None, metadata=at_least(1))
    tolerance: float = field(default=0.01, metadata=at_least(0))

    name: ClassVar[str] = "mean_field"
    only_for: ClassVar[tuple[type[Approximator], str]] = (VariationalBayes, "method='vb' of a gpep.MultinomialProbit")

    @property
    def _bounded(self) -> bool:
        """Whether the weights make a bound of log p(y)."""
        return self.trace or self.utilities

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """The last step's draws that weigh anything, and the bound of log p(y) given the parents."""
        self.check(log_posterior.approximator)
        bounds: list[float] = []
        rises, patience = True, _PATIENCE if self._bounded else 1
        steps = mean_field_steps(
            log_posterior,
            optimum.best.theta,
            draws=self.draws,
            trace=self.trace,
            utilities=self.utilities,
            inner=self.inner,
            random_seed=random_seed,
        )
        with CustomProgress(console=Console(theme=default_progress_theme), disable=not progressbar) as progress:
            task = progress.add_task("Hyperparameters by mean field", total=self.steps)
            for step in steps:
                bounds.append(step.joint_bound if self._bounded else step.latent.bound)
                progress.advance(task)
                if len(bounds) > patience:
                    rise = max(bounds[-patience:]) - max(bounds[:-patience])
                    rises = rise > self.tolerance * abs(bounds[-1])
                if not rises or len(bounds) == self.steps:
                    break
        known = "the bound still rises" if len(bounds) > patience else "it cannot be seen whether the bound still rises"
        after = f"after {self.steps} step{'' if self.steps == 1 else 's'}"
        still = f"{after} {known}: give it more" if rises else ""
        return self._posterior(log_posterior, step, still, progressbar)

    def _posterior(self, log_posterior: LogPosterior, step: Step, still: str, progressbar: bool) -> HyperPosterior:
        _, pareto_k = smooth(step.log_weights[np.isfinite(step.log_weights)])
        weighing = Weighing.of(step.log_weights, pareto_k)
        bound = step.joint_bound if self._bounded else np.nan
        weighing = weighing._replace(estimate=Estimate(bound, weighing.estimate.error))
        weights = np.exp(step.log_weights - step.log_weights.max())
        kept = worth_keeping(weights)
        here = log_posterior(step.theta, step.latent.start)
        spread = step.draws[kept].std(axis=0)
        near = Neighbours((here.theta,), (here.start,), np.diag(np.where(spread > 0, spread, 1.0)))
        nodes = evaluate_nodes(log_posterior, step.draws[kept], near, progressbar)
        if all(node is None for node in nodes):
            raise ValueError(f"hyper='mean_field': {failures(nodes)}. Use hyper='map', or other priors.")
        few = "" if weighing.usable else "too few: give it more draws, or take hyper='importance'"
        about = weighing.about("the lower bound" if self._bounded else "their log mean weight")
        return HyperPosterior(
            self.name,
            log_posterior,
            [node for node in nodes if node is not None],
            weights[kept][[node is not None for node in nodes]],
            log_evidence=weighing.estimate.value,
            weighing=weighing,
            converged=None not in nodes and weighing.usable and not still,
            message="; ".join(filter(None, [about, few, still, failures(nodes)])),
        )
