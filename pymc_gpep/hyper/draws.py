"""Integrals by draws of hyperparameters, with latent values integrated out: importance sampling, and NUTS."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import gammaln, ndtri
from scipy.stats import chi2, qmc

from pymc_gpep.approximations import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.marginal_model import MarginalModel
from pymc_gpep.hyper.curvature import GaussianAtMaximum, gaussian_at
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.weights import Weighing, smooth, worth_keeping
from pymc_gpep.log_posteriors.log_posterior import LogPosterior


@dataclass(frozen=True)
class ImportanceSampling(HyperMethod):
    """Draws from a Student t distribution at the maximum, weighted by the ratio of the posterior to the t density.

    The proposal has the scale of the Gaussian with the second derivatives of the log posterior, in the unconstrained
    space. The tail of the weights is smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). The log of the mean
    weight estimates log p(y), with Monte Carlo error and the error of the approximate evidence. Draws are quasi-random,
    from a scrambled Halton sequence. For a few hyperparameters their error is well below the reported standard error,
    which is for independent draws.

    Parameters
    ----------
    draws : int
        Number of draws, at least 100, so that the tail of the weights can be fitted.
    dof : float
        Degrees of freedom of the proposal. Fewer degrees of freedom give heavier tails.
    """

    draws: int = field(default=500, metadata=at_least(100))
    dof: float = field(default=5.0, metadata=positive())

    name: ClassVar[str] = "importance"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return draws with positive weights, with log p(y), its standard error and the reliability of the weights."""
        gaussian = gaussian_at(log_posterior, optimum)
        z = self._standard_draws(optimum.best.theta.size, random_seed)
        nodes = evaluate_nodes(log_posterior, gaussian.at(z), gaussian.neighbours, progressbar)
        found = np.array([node is not None for node in nodes])
        good = self.usable(nodes)
        logs = np.array([node.log_posterior for node in good]) - self._log_density(z[found], gaussian)
        smoothed, pareto_k = smooth(logs)
        # A draw at which the approximation failed has weight 0.
        weighing = Weighing.of(np.append(smoothed, np.full((~found).sum(), -np.inf)), pareto_k)
        weights = np.exp(smoothed - smoothed.max())
        kept = worth_keeping(weights)
        return self.posterior(
            log_posterior,
            [node for node, keep in zip(good, kept, strict=True) if keep],
            weights[kept],
            [self._remedy(weighing, log_posterior.joint), failures(nodes)],
            weighing.about("log p(y)"),
            log_evidence=weighing.estimate.value,
            weighing=weighing,
        )

    def _remedy(self, weighing: Weighing, joint: bool) -> str:
        if weighing.usable:
            return ""
        chains = "sample with hyper='nuts', or " if joint else ""
        return (
            "the posterior has heavier tails than the proposal, so these estimates are unreliable: "
            f"{chains}give informative priors to hyperparameters that the data hardly determine"
        )

    def _standard_draws(self, d: int, random_seed: int) -> Array:
        """Return quasi-random draws (draws, d) of the standard t distribution, ordered by distance from the centre.

        In this order the solve of each draw can start from solutions of near earlier draws.
        """
        u = qmc.Halton(d + 1, scramble=True, rng=np.random.default_rng(random_seed)).random(self.draws)
        z = ndtri(u[:, :d]) * np.sqrt(self.dof / chi2.ppf(u[:, d:], self.dof))
        return np.asarray(z[np.argsort((z**2).sum(axis=1), kind="stable")])

    def _log_density(self, z: Array, gaussian: GaussianAtMaximum) -> Array:
        """Return the log density of the proposal at standardised hyperparameters z (s, d)."""
        d, dof = z.shape[1], self.dof
        constant = gammaln(0.5 * (dof + d)) - gammaln(0.5 * dof) - 0.5 * d * np.log(dof * np.pi)
        volume = np.linalg.slogdet(gaussian.root)[1]
        return np.asarray(constant - volume - 0.5 * (dof + d) * np.log1p((z**2).sum(axis=1) / dof))


_MIXED = 1.05  # Largest R-hat that counts as convergence of short chains.


@dataclass(frozen=True)
class MarkovChain(HyperMethod):
    """Equally weighted, thinned draws of PyMC's NUTS from the marginal model, started at the maximum.

    Parameters
    ----------
    draws, tune : int
        Numbers of draws and tuning steps of each chain.
    chains : int
    cores : int, optional
        Number of chains that run in parallel. The default is PyMC's choice.
    nodes : int
        Number of equally spaced draws that become nodes.
    """

    draws: int = field(default=250, metadata=at_least(4))
    tune: int = field(default=250, metadata=at_least(0))
    chains: int = field(default=4, metadata=at_least(1))
    cores: int | None = field(default=None, metadata=at_least(1))
    nodes: int = field(default=100, metadata=at_least(1))

    name: ClassVar[str] = "nuts"
    only_for: ClassVar[tuple[type, str]] = (Approximator, "methods that work on all latent values together")

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return thinned draws as nodes, and all draws of the chains."""
        marginal = MarginalModel(log_posterior.classifier, log_posterior.approximator)
        natural = log_posterior.space.natural(optimum.best.theta[None])
        data = pm.sample(
            self.draws,
            tune=self.tune,
            chains=self.chains,
            cores=self.cores,
            init="adapt_diag",
            initvals={name: values[0] for name, values in natural.items()},
            nuts_sampler="pymc",
            random_seed=random_seed,
            progressbar=progressbar,
            idata_kwargs={"include_transformed": True},
            compute_convergence_checks=False,
            quiet=not progressbar,
            model=marginal,
        )
        draws = data["posterior"].to_dataset()
        names = [v.name for v in log_posterior.space.value_vars]
        chains = np.concatenate(
            [
                draws[name].transpose("chain", "draw", ...).values.reshape(self.chains * self.draws, -1)
                for name in names
            ],
            axis=1,
        )
        chosen = np.linspace(0, len(chains) - 1, min(self.nodes, len(chains))).round().astype(int)
        thetas = chains[chosen]
        units = np.diag(chains.std(axis=0))
        near = Neighbours((optimum.best.theta,), (optimum.best.start,), units)
        nodes = evaluate_nodes(log_posterior, thetas, near, progressbar)
        good = self.usable(nodes)
        found = [failures(nodes), *_complaints(data, names)]
        return self.posterior(log_posterior, good, np.ones(len(good)), found, draws=data, density=chains)


def _complaints(data: xr.DataTree, names: list[str]) -> list[str]:
    """Return texts of faults of the chains."""
    import arviz as az  # This import is slow.

    found = []
    if divergences := int(data["sample_stats"]["diverging"].sum()):
        found.append(f"NUTS had {divergences} divergences")
    if data["posterior"].sizes["chain"] > 1:
        worst = max(float(values.max()) for values in az.rhat(data, var_names=names).data_vars.values())
        if not worst < _MIXED:
            found.append(f"the chains of NUTS have an R-hat of {worst:.2f}: use more draws")
    return found
