"""NUTS over the hyperparameters, with the latent values integrated out."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.approximations import Approximator
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.evidence.marginal_model import MarginalModel
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum

_MIXED = 1.05  # largest R-hat that counts as convergence of short chains


@dataclass(frozen=True)
class MarkovChain(HyperMethod):
    """Equally weighted draws of PyMC's NUTS from the marginal model, every so many of them, started at the maximum.

    Parameters
    ----------
    draws, tune : int
        Per chain.
    chains : int
    cores : int, optional
        As PyMC chooses if not given.
    nodes : int
        How many of the draws become nodes, equally spaced.
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
        """Thinned draws; the chains themselves are kept as well."""
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
    """What is wrong with the chains, in words."""
    import arviz as az  # it is slow to import

    found = []
    if divergences := int(data["sample_stats"]["diverging"].sum()):
        found.append(f"NUTS had {divergences} divergences")
    if data["posterior"].sizes["chain"] > 1:
        worst = max(float(values.max()) for values in az.rhat(data, var_names=names).data_vars.values())
        if not worst < _MIXED:
            found.append(f"the chains of NUTS have an R-hat of {worst:.2f}: give it more draws")
    return found
