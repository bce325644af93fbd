"""Variational Bayes of latent values, hyperparameters and their parents together (Girolami and Rogers 2006)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.limits import at_least, one_of
from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.approximations.variational_bayes import VariationalBayes
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.mean_field_steps import Step, mean_field_steps
from pymc_gpep.hyper.mean_field_weights import WEIGHTS
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.weights import Estimate, Weighing, smooth, worth_keeping
from pymc_gpep.progress import progress_bar

_PATIENCE = 5  # steps in which a bound must rise, as draws have a part in it


@dataclass(frozen=True)
class MeanField(HyperMethod):
    """Variational Bayes of the hyperparameters with their parents, by weighted draws from their priors.

    Each step computes the posterior of the latent values, then weights, then parents, see
    `pymc_gpep.hyper.mean_field_steps`. The weights are those of new draws of the hyperparameters from their priors
    given their parents. The parents are at their most probable values given the mean of the hyperparameters. That mean
    is taken on the natural scale. Nodes are the draws of the last step; given a node the latent values have the
    Gaussian of the approximation there. Where latent functions have hyperparameters of their own, each has its own
    posterior, with weights from that function's latent values alone.

    Parameters
    ----------
    draws : int
        Draws in each step; at least 100, for their weights to have a tail.
    steps : int
        Limit on steps.
    weights : {"authors", "utilities", "latent", "printed"}
        How draws are weighted, see `pymc_gpep.hyper.mean_field_weights`. `"authors"` are the weights of Girolami and
        Rogers' own program, and predict best on the paper's data. They are for functions of variance 1, make no bound,
        and leave a magnitude to its prior. `"utilities"` and `"latent"` belong to two bounds of log p(y), the former to
        the higher one. `"printed"` are the weights of the paper's equation 4.5, which remove all inputs on its toy.
        `"authors"` and `"printed"` begin at the means of the priors and have one update of the latent values a step.
        The others begin at the maximum and have as many updates as they need.
    inner : int, optional
        How many updates of the latent values there are in a step, if not as many as go with the weights.
    tolerance : float
        The method ends where five steps have not raised the bound by this much, relative. With weights that make no
        bound all steps are made, and a message tells whether the bound at the mean of the hyperparameters still rises.

    Examples
    --------
    >>> import pymc as pm
    >>> with model:  # doctest: +SKIP
    ...     vb = pm.fit(method="vb", hyper="mean_field", hyper_options={"weights": "utilities"})
    """

    draws: int = field(default=500, metadata=at_least(100))
    steps: int = field(default=50, metadata=at_least(1))
    weights: str = field(default=next(iter(WEIGHTS)), metadata=one_of(*WEIGHTS))
    inner: int | None = field(default=None, metadata=at_least(1))
    tolerance: float = field(default=0.01, metadata=at_least(0))

    name: ClassVar[str] = "mean_field"
    only_for: ClassVar[tuple[type, str]] = (VariationalBayes, "method='vb' of a gpep.MultinomialProbit")

    @property
    def _bounded(self) -> bool:
        """Whether the weights make a bound of log p(y)."""
        return WEIGHTS[self.weights].rest is not None

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """The last step's draws that weigh anything, and the bound of log p(y) given the parents."""
        self.check(log_posterior.approximator, log_posterior.name)
        bounds: list[float] = []
        rises = True
        steps = mean_field_steps(
            log_posterior,  # type: ignore[arg-type]  # `check` let no other pass
            log_posterior.space.initial_point() if WEIGHTS[self.weights].from_priors else optimum.best.theta,
            draws=self.draws,
            weights=self.weights,
            inner=self.inner,
            random_seed=random_seed,
        )
        with progress_bar(progressbar) as progress:
            task = progress.add_task("Hyperparameters by mean field", total=self.steps)
            for step in steps:
                bounds.append(step.joint_bound if self._bounded else step.latent.bound)
                progress.advance(task)
                if len(bounds) > _PATIENCE:
                    rise = max(bounds[-_PATIENCE:]) - max(bounds[:-_PATIENCE])
                    rises = rise > self.tolerance * abs(bounds[-1])
                if (self._bounded and not rises) or len(bounds) == self.steps:
                    break
        seen = len(bounds) > _PATIENCE
        known = "the bound still rises" if seen else "it cannot be seen whether the bound still rises"
        after = f"after {self.steps} step{'' if self.steps == 1 else 's'}"
        still = f"{after} {known}: give it more" if rises else ""
        return self._posterior(log_posterior, step, still, random_seed, progressbar)

    def _posterior(
        self, log_posterior: LogPosterior, step: Step, still: str, random_seed: int, progressbar: bool
    ) -> HyperPosterior:
        weighing = self._weighing(step)
        draws, log_weights = step.joint_draws(random_seed)
        weights = np.exp(log_weights - log_weights.max())
        kept = worth_keeping(weights)
        here = log_posterior(step.theta, step.latent.start)
        spread = draws[kept].std(axis=0)
        near = Neighbours((here.theta,), (here.start,), np.diag(np.where(spread > 0, spread, 1.0)))
        nodes = evaluate_nodes(log_posterior, draws[kept], near, progressbar)
        good = self.usable(nodes)
        few = "" if weighing.usable else "too few: give it more draws, or take hyper='importance'"
        about = weighing.about("the lower bound" if self._bounded else "their log mean weight")
        return self.posterior(
            log_posterior,
            good,
            weights[kept][[node is not None for node in nodes]],
            [few, still, failures(nodes)],
            about,
            log_evidence=weighing.estimate.value,
            weighing=weighing,
        )

    def _weighing(self, step: Step) -> Weighing:
        """Reliability of the weights; of several blocks that of the worst."""
        blocks = [Weighing.of(logs, smooth(logs[np.isfinite(logs)])[1]) for logs in step.log_weights]
        error = float(np.linalg.norm([block.estimate.error for block in blocks]))
        return Weighing(
            Estimate(step.joint_bound, error),
            min(block.effective_size for block in blocks),
            max(block.pareto_k for block in blocks),
            self.draws,
        )
