"""A fit batch by batch: where it stands, and the latent functions given that."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import xarray as xr
from numpy.linalg import LinAlgError

from pymc_gpep.approximations.site_rules.contract import ScalarSites
from pymc_gpep.array_types import Array
from pymc_gpep.fits.inducing_fit import OVER_FITTED, Gp, InducingFit
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.rows.contract import Rows
from pymc_gpep.solvers.inducing import Whitening, whitening
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.solvers.team import Team, gather, one_blas_thread
from pymc_gpep.solvers.whitened_posterior import whitened_posterior
from pymc_gpep.streaming.memories.contract import Memory
from pymc_gpep.streaming.recovered_sites import Recovered, recovered, recovered_by_bound
from pymc_gpep.streaming.rules.contract import Rule
from pymc_gpep.streaming.saving import Saved, streamed_datatree
from pymc_gpep.structure.inducing_blocks import InducingBlocks

__all__ = ["StreamedFit"]


@dataclass(frozen=True, eq=False, repr=False)
class StreamedFit(InducingFit):
    """What `pm.fit(..., batch_size=...)` returns: latent functions by way of inducing values, at one θ.

    Callbacks get it after every step. It is made of the numbers that there are when it is first asked for any.

    Attributes
    ----------
    space : Hyperparameters
        The hyperparameters of the model, and its data when it was fitted.
    method : str
    memory : Memory
    rule : Rule
    prior : InducingBlocks or None
        Prior moments, with the rows that were fitted; None in a fit that was read from a file.
    settings : dict
        Batch size, batches in an epoch, steps, seed.
    losses : array (steps,)
        Estimates of the negative log posterior, one a step; NaN for a step that could not be taken.
    floored : array (steps,)
        Share of the points of each batch with a site that was held back.
    ended : str
        How the fit ended, in words.
    read : function
        Returns the values of the state, by name.
    seconds, compile_seconds : float
    rows : Rows or None
        What was fitted, where that were not the rows of the model; without any values, `FormerRows`, in a fit that was
        read from a file.
    whitening : Whitening or None
        Of the inducing values, where it is known already.
    """

    space: Hyperparameters
    method: str
    memory: Memory
    rule: Rule
    prior: InducingBlocks | None = field(repr=False)
    settings: Mapping[str, Any]
    losses: Array = field(repr=False)
    floored: Array = field(repr=False)
    ended: str
    read: Callable[[], Mapping[str, Array]] = field(repr=False)
    seconds: float = np.nan
    compile_seconds: float = np.nan
    rows: Rows | None = field(default=None, repr=False)
    whitening: Whitening | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Of the method, for `pm.fit`."""
        return self.method

    @cached_property
    def values(self) -> Mapping[str, Array]:
        """Values of the state, by name."""
        return self.read()

    @property
    def theta(self) -> Array:  # type: ignore[override]  # known late
        """Hyperparameters, flat and unconstrained."""
        return self.values["theta"]

    @property
    def inducing_inputs(self) -> Array:  # type: ignore[override]  # known late
        """One set for all functions, or one for each, (1 or c, M, d)."""
        return self.values["inducing"] * self.values["units"]

    @cached_property
    def posterior(self) -> InducingPosterior | None:
        """Of the inducing values; None where their covariance, prior or posterior, has no Cholesky factor."""
        white = self.whitening
        if white is None:
            white = whitening(self.prior_at().inducing(), float(self.values["jitter"]))
        if white is None:
            return None
        try:
            own = whitened_posterior(self.values["precision"], self.values["location"])
        except LinAlgError:
            return None
        return InducingPosterior(white, own)

    def kept(self, why: str) -> Self:
        """Return this fit, of a step, as one that has ended for a reason."""
        values = self.values
        return replace(self, ended=why, read=lambda: values)

    @property
    def iterations_per_epoch(self) -> int:
        """How many steps go through all rows once."""
        return int(self.settings["per_epoch"])

    @property
    def steps(self) -> int:
        """How many were taken."""
        return len(self.losses)

    @property
    def hist(self) -> Array:
        """Estimates of the negative log posterior, one a step, what other methods call the loss."""
        return self.losses

    @property
    def history(self) -> xr.Dataset:
        """The same as log posterior, and the share of points with a site that was held back, by step."""
        return xr.Dataset({"log_posterior": ("step", -self.losses), "floored": ("step", self.floored)})

    @cached_property
    def objective(self) -> float:
        """Average of the estimates of what is raised, without the log prior, over the last whole epoch; NaN of none.

        In the first epoch it is that of all steps.
        """
        per_epoch = self.iterations_per_epoch
        end = self.steps - self.steps % per_epoch or self.steps  # rows of a broken one would count twice
        last = self.losses[max(end - per_epoch, 0) : end]
        known = last[np.isfinite(last)]
        return -float(known.mean()) - self.space.log_prior(self.theta) if known.size else np.nan

    @property
    def lower_bound(self) -> float:
        """The same for `"sparse_vi"`, whose objective is an estimate of a lower bound; NaN for others.

        NaN in the first epoch as well, when q is still on its way.
        """
        return np.nan if self._of_ep or self.steps < self.iterations_per_epoch else self.objective

    @cached_property
    def log_evidence(self) -> float:
        """Log normaliser of EP with the sites that q implies, in a few passes over all rows.

        It approximates the log marginal likelihood of the sparse model; NaN where it would not, with
        `sites="pairwise"` and for lower bounds.
        """
        if not self._has_evidence or self.posterior is None:
            return np.nan
        with one_blas_thread(), gather(self.blocks().rows.n_rows) as team:
            return self._recovered(None, team).log_normaliser()

    def _recovered(self, gp: Gp, team: Team) -> Recovered:
        """The sites of all rows."""
        prior, posterior = self.prior_at(gp), self.posterior
        assert posterior is not None
        whitened = whitened_posterior(self.values["precision"], self.values["location"])
        given = prior, posterior.whitening, whitened
        of_rows = self.likelihood_at(prior.n_points), self.labels(gp), team
        if not self._of_ep:
            return recovered_by_bound(*given, *of_rows)
        factors = self.rule.expresses()
        assert isinstance(factors, ScalarSites)
        return recovered(*given, factors, *of_rows)

    @property
    def _coupled(self) -> bool:
        return False

    def _left_out(self, gp: Gp) -> Iterator[LeftOut]:
        posterior = self.posterior
        assert posterior is not None
        with one_blas_thread(), gather(self.blocks(gp).rows.n_rows) as team:
            found = self._recovered(gp, team)
            yield from found.sweeps.left_out(found.sites, posterior.whitened)

    @property
    def converged(self) -> bool:
        """Whether there was a number at every step of the last epoch; `history` says whether there were enough."""
        last = self.losses[-self.iterations_per_epoch :]
        return bool(self.steps) and bool(np.isfinite(last).all())

    @property
    def _of_ep(self) -> bool:
        return self.memory.functional == "log normaliser"

    @property
    def _has_evidence(self) -> bool:
        """Whether q has sites of EP, of factors that are the likelihood's."""
        return self._of_ep and self.rule.expresses.exact

    @property
    def saved(self) -> Saved:
        """Where it stands, for another fit to go on from."""
        return Saved(self.settings, self.values, self.losses, self.floored)

    @property
    def message(self) -> str:
        """How the fit ended, in words."""
        epochs = self.steps / self.settings["per_epoch"]
        plural = "" if self.steps == 1 else "s"
        warmup = int(self.settings["warmup"])
        stayed = bool(self.theta.size) and epochs <= warmup
        still = f" Hyperparameters have not moved yet (warmup={warmup} epochs)." if stayed else ""
        over = f" {OVER_FITTED}" if self._of_ep and self.settings["learn_inducing"] and epochs > warmup else ""
        return (
            f"{self.ended} after {self.steps} step{plural} of {self.settings['batch_size']} rows, {epochs:.3g} epochs."
            f"{still}{over}"
        )

    def __str__(self) -> str:
        """Method, what its number is, and how the fit ended."""
        number = f"{self.memory.objective} {self.objective:.4f}" if self.steps else "nothing done yet"
        held_back = float(self.floored[-self.iterations_per_epoch :].mean()) if self.steps else 0.0
        floored = f", {100 * held_back:.2g} % of points with a site held back" if held_back else ""
        evidence = "; fit.log_evidence computes that" if self._has_evidence else ""
        averaged = "the last whole epoch" if self.steps >= self.iterations_per_epoch else "all steps"
        return (
            f"{self.method} (sites={self.rule.expresses.name!r}, {self._size}): {number}, averaged over {averaged} "
            f"(no evidence{evidence}{floored}). {self.message}"
        )

    def to_datatree(self) -> xr.DataTree:
        """Make a DataTree of the fit, which xarray writes to a file; `gpep.from_datatree` makes a fit of it again.

        `pm.fit(n, ..., start=path)` goes on from such a file, and from the fit itself.

        Returns
        -------
        DataTree
            With groups `hyperparameters`, `state` (inducing inputs, q(v) and what the optimiser remembers), `history`
            and `observed_data`; the last one is empty where rows came from `data=...`, and says where they were and
            what checksum a few of them have.
        """
        return streamed_datatree(self)
