"""A fit by active rows: which they are, where hyperparameters ended, and the latent functions given their labels."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import xarray as xr

from pymc_gpep.approximations.ivm import IVM, ActiveSolution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.active_saving import active_datatree
from pymc_gpep.fits.inducing_fit import Gp
from pymc_gpep.fits.optimised_fit import OptimisedFit
from pymc_gpep.gaussians.active_posterior import ActivePosterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.rows.contract import Rows
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure.inducing_blocks import InducingBlocks

__all__ = ["ActiveFit"]


@dataclass(frozen=True, eq=False, repr=False)
class ActiveFit(OptimisedFit):
    """What `pm.fit(method="ivm")` returns: the posterior given the labels of the active rows, at one θ.

    Nothing in it has two axes over all points. Latent functions are had by `predict`, at any inputs, those of the data
    among them.

    Attributes
    ----------
    space : Hyperparameters
        The hyperparameters of the model, and its data when it was fitted.
    approximator : IVM
        The approximation with its options.
    theta : array
        Hyperparameters, flat and unconstrained.
    inducing_inputs : array (1, d, columns)
        Inputs of the active rows.
    optimum : Optimum
        How hyperparameters were found.
    solution : ActiveSolution
    seconds : float
        Time that the fit took, without `compile_seconds`; NaN if unknown.
    compile_seconds : float
        Time that numba took to compile meanwhile. NaN if unknown.
    rows : Rows or None
        What was fitted, where that were not the rows of the model; without any values, `FormerRows`, in a fit that was
        read from a file.
    prior : InducingBlocks or None
        Prior moments, with the rows that were fitted; None in a fit that was read from a file.
    """

    _by: ClassVar[str] = "active rows"

    space: Hyperparameters
    approximator: IVM
    theta: Array
    inducing_inputs: Array
    optimum: Optimum
    solution: ActiveSolution
    seconds: float = np.nan
    compile_seconds: float = np.nan
    rows: Rows | None = field(default=None, repr=False)
    prior: InducingBlocks | None = field(default=None, repr=False)

    @cached_property
    def posterior(self) -> ActivePosterior:
        """Of the latent values of the active rows."""
        return ActivePosterior(self.solution.posterior)

    def kept(self, why: str) -> Self:
        """Return this fit, of an iteration, as one that has ended for a reason."""
        return replace(self, optimum=replace(self.optimum, message=why))

    @property
    def active(self) -> xr.Dataset:
        """The active rows in the order in which they were chosen, by `inclusion`.

        `row` is the number of each in the data, from 0; `score` is that by which it was chosen, NaN for the first ones
        and for all that were chosen at random; `label` what was observed there, `input` (inclusion, column) its inputs.
        Where the points of the model have coords, these are there as well.
        """
        classifier, selection = self.classifier, self.solution.selection
        rows = selection.rows
        found = xr.Dataset(
            {
                "row": ("inclusion", rows),
                "label": ("inclusion", self.solution.labels[rows]),
                "score": ("inclusion", selection.scores),
                "input": (("inclusion", "column"), self.inducing_inputs[0]),
            },
            coords={"inclusion": np.arange(len(rows))},
        )
        names = classifier.model.coords.get(classifier.point_dim) if classifier.point_dim else None
        if names is None or self.rows is not None:
            return found
        return found.assign_coords({str(classifier.point_dim): ("inclusion", np.asarray(names)[rows])})

    @property
    def lower_bound(self) -> float:
        """Lower bound of the log evidence of all labels, by which hyperparameters are chosen.

        With several functions it has the error of a rule of nodes; where it is over a sample of the rows it is an
        estimate.
        """
        return self.solution.bound

    objective = lower_bound

    @property
    def log_evidence(self) -> float:
        """NaN: there is only a `lower_bound`, and the evidence of the active rows, `active_evidence`."""
        return np.nan

    @property
    def active_evidence(self) -> float:
        """Log evidence of the labels of the active rows alone; NaN where sites were not iterated.

        These rows were chosen for their labels, so that it says nothing of hyperparameters.
        """
        return self.solution.active_evidence

    @property
    def converged(self) -> bool:
        """Whether hyperparameters no longer move from one choice of rows to the next, and sites went well."""
        return self.optimum.converged and self.solution.converged

    @property
    def _coupled(self) -> bool:
        return self.solution.posterior.sites_class.form is not SiteForm.INDEPENDENT

    def _left_out(self, gp: Gp) -> Iterator[LeftOut]:
        """Rows that are not active have no sites; active ones are left out of the posterior of the active ones."""
        prior, dense, active = self.prior_at(gp), self.solution.posterior, self.solution.selection.rows
        own_mean, own_cov = dense.cavities(*dense.marginals())
        for rows in row_blocks(prior.n_points, prior.n_functions * self.posterior.size):
            mean, cov = self.posterior.predict(prior.block(rows))
            means = mean.T.copy()
            here = (active >= rows.start) & (active < rows.stop)
            means[active[here] - rows.start], cov[active[here] - rows.start] = own_mean[here], own_cov[here]
            yield LeftOut(rows, means, cov)

    @property
    def message(self) -> str:
        """How the fit ended, in words."""
        found = self.solution.convergence
        sites = "sites stay as they were chosen" if found is None else f"sites on the active rows {found}"
        if not self.theta.size:
            return f"Nothing to learn; {sites}."
        if len(self.optimum.history) == 1 and self.optimum.converged:
            return f"Hyperparameters stay where they began; {sites}."
        first = self.optimum.history[0].theta
        back = "; no choice was better than the first, where they began" if np.array_equal(self.theta, first) else ""
        return f"Hyperparameters {self.optimum.outcome}{back}; {sites}."

    def __str__(self) -> str:
        """Method, what its number is, and how the fit ended."""
        sampled = self.solution.sample.weight > 1.0
        number = f"{'estimate of a ' if sampled else ''}lower bound {self.lower_bound:.4f} of the log evidence"
        given = f"score={self.approximator.score!r}, {len(self.solution.selection.rows)} of {len(self.solution.labels)}"
        return (
            f"ivm (sites={self.approximator.sites!r}, {given} rows active): {number}, "
            f"{'converged' if self.converged else 'NOT converged'}. {self.message}"
        )

    def to_datatree(self) -> xr.DataTree:
        """Make a DataTree of the fit, which xarray writes to a file; `gpep.from_datatree` makes a fit of it again.

        Returns
        -------
        DataTree
            With groups `hyperparameters`, `active`, `history`, `best` and `observed_data`.
        """
        return active_datatree(self)
