"""A fit with inducing inputs: where hyperparameters and inducing inputs ended, and the latent functions given them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import xarray as xr

from pymc_gpep.approximations import Convergence
from pymc_gpep.approximations.number import Number
from pymc_gpep.approximations.sparse import SparseApproximation, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.inducing_fit import OVER_FITTED, Gp
from pymc_gpep.fits.optimised_fit import OptimisedFit
from pymc_gpep.fits.sparse_saving import sparse_datatree
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.rows.contract import Rows
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure.inducing_blocks import InducingBlocks

__all__ = ["SparseFit"]


@dataclass(frozen=True, eq=False, repr=False)
class SparseFit(OptimisedFit):
    """What `pm.fit(method="sparse_ep")` returns: latent functions by way of inducing values, at one θ.

    Nothing in it has two axes over points. Latent functions are had by `predict`, at any inputs, those of the data
    among them.

    Attributes
    ----------
    space : Hyperparameters
        The hyperparameters of the model, and its data when it was fitted.
    approximator : SparseApproximation
        The approximation with its options.
    theta : array
        Hyperparameters, flat and unconstrained.
    inducing_inputs : array (1 or c, M, d)
        One set for all functions, or one for each.
    optimum : Optimum
        How they were found. Its flat vectors are hyperparameters and, where they were learned, inducing inputs.
    seconds : float
        Time that the fit took, without `compile_seconds`; NaN if unknown.
    compile_seconds : float
        Time that numba took to compile meanwhile: much in the first fit on a machine, little later. NaN if unknown.
    rows : Rows or None
        What was fitted, where that were not the rows of the model; without any values, `FormerRows`, in a fit that was
        read from a file.
    prior : InducingBlocks or None
        Prior moments, with the rows that were fitted; None in a fit that was read from a file.
    """

    space: Hyperparameters
    approximator: SparseApproximation
    theta: Array
    inducing_inputs: Array
    optimum: Optimum
    solve: Callable[[], SparseSolution] = field(repr=False)
    seconds: float = np.nan
    compile_seconds: float = np.nan
    rows: Rows | None = field(default=None, repr=False)
    prior: InducingBlocks | None = field(default=None, repr=False)

    @cached_property
    def solution(self) -> SparseSolution:
        """The approximate posterior of the latent functions; computed when it is asked for."""
        return self.solve()

    def kept(self, why: str) -> Self:
        """Return this fit, of an iteration, as one that has ended for a reason."""
        solution = self.solution
        return replace(self, optimum=replace(self.optimum, message=why), solve=lambda: solution)

    @property
    def posterior(self) -> InducingPosterior | None:
        """Of the inducing values; None where EP failed."""
        return self.solution.posterior

    @property
    def objective(self) -> float:
        """What hyperparameters and inducing inputs were chosen by: log normaliser of EP's approximation, or bound."""
        return self.solution.evidence

    @property
    def log_evidence(self) -> float:
        """The same where it approximates the log marginal likelihood of the sparse model; NaN where it does not.

        With `sites="pairwise"` it does not: see `pymc_gpep.approximations.site_rules.pairs.Pairs`.
        """
        return self.objective if self.solution.number is Number.EVIDENCE else np.nan

    @property
    def lower_bound(self) -> float:
        """The same where it is a lower bound of the log marginal likelihood, as of `"sparse_vi"`; NaN where not."""
        return self.objective if self.solution.number is Number.BOUND else np.nan

    @property
    def convergence(self) -> Convergence:
        """How EP ended."""
        return self.solution.convergence

    @property
    def converged(self) -> bool:
        """Whether optimiser and EP both went well."""
        return self.optimum.converged and self.convergence.converged

    @property
    def _coupled(self) -> bool:
        return self.posterior is not None and isinstance(self.posterior.whitened, CoupledWhitened)

    def _left_out(self, gp: Gp) -> Iterator[LeftOut]:
        prior, solution = self.prior_at(gp), self.solution
        if not solution.start.size:  # a file has no sites
            labels = self.labels(gp)
            solution = self.approximator.solve(prior, labels, likelihood=self.likelihood_at(len(labels)))
        return self.approximator.left_out(prior, solution)

    @property
    def message(self) -> str:
        """How the fit ended, in words."""
        if not self.optimum.best.theta.size:
            return f"Nothing to learn; {self.approximator.title} {self.convergence}."
        learned = self.optimum.best.theta.size > self.theta.size
        ended = f"{'Hyperparameters and inducing inputs' if learned else 'Hyperparameters'} {self.optimum.outcome}"
        if self.optimum.interrupted:  # who interrupts a fit does not wait for another solve
            return f"{ended}."
        over = "" if not learned or self.solution.number is Number.BOUND else f" {OVER_FITTED}"
        return f"{ended}; {self.approximator.title}, started near its solution, {self.convergence}.{over}"

    def __str__(self) -> str:
        """Method, what its number is, and how the fit ended."""
        floored = self.solution.floored
        widened = f", {floored} sites match a mean alone" if floored else ""
        number = self.solution.number.text(self.objective)
        return (
            f"{self.approximator.name} ({self.approximator.chosen}{self._size}): {number}, "
            f"{'converged' if self.converged else 'NOT converged'}{widened}. {self.message}"
        )

    def to_datatree(self) -> xr.DataTree:
        """Make a DataTree of the fit, which xarray writes to a file; `gpep.from_datatree` makes a fit of it again.

        Returns
        -------
        DataTree
            With groups `hyperparameters`, `inducing`, `history`, `best`, `sweeps` and `observed_data`; the last one is
            empty where rows came from `data=...`, and says where they were and what checksum a few of them have.

        Raises
        ------
        ValueError
            If there is no posterior, since EP failed.
        """
        return sparse_datatree(self)
