"""What all fits with inducing inputs have: latent functions at any inputs, by the posterior of inducing values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.fits import datasets
from pymc_gpep.fits.far_rows import SOME, unreached, warn_of_far_rows
from pymc_gpep.fits.mixture import Prediction, assembled
from pymc_gpep.fits.prediction import held_out, labelled, new_inputs, predict_given, process_and_inputs
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.progress import RowProgress
from pymc_gpep.rows.contract import Rows
from pymc_gpep.solvers.inducing import Block, row_blocks
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.structure.likelihood_elsewhere import LikelihoodElsewhere
from pymc_gpep.structure.prior_functions import as_gps

if TYPE_CHECKING:
    from pymc_gpep.fits.left_out import CavityELPD

__all__ = ["OVER_FITTED", "InducingFit"]

OVER_FITTED = (
    "Inducing inputs were fitted to the labels: the number comes out too high, and is not to be compared with that of "
    "inducing inputs that stay or of all rows."
)
"""What a fit by EP says that learned its inducing inputs."""

_ENTRIES = 2_000  # that a row counts for at least, so that an interrupt is soon heeded

type Gp = pm.gp.Latent | Sequence[pm.gp.Latent] | None


_OF_LATENT = "fit.latent has the moments of the latent functions at the rows of the data, fit.predict(X) at others"
_OF_HYPER = "hyperparameters are at one point, fit.hyperparameters"
_WHOLE = "the posterior is that of fit.posterior, and is not made of PyMC's groups"
_INSTEAD = {
    "mean": _OF_LATENT,
    "std": _OF_LATENT,
    "cov": _OF_LATENT,
    "joint_latent_moments": _OF_LATENT,
    "convergence": "fit.converged and fit.message say how it ended, fit.history how it went",
    "solution": "fit.posterior is the posterior, and fit.message says how the fit ended",
    "optimum": _OF_HYPER,
    "hyper_posterior": _OF_HYPER,
    "log_posterior": f"fit.objective or fit.lower_bound is the number that was raised, and {_OF_HYPER}",
    "starts": "the search began at one point",
    "params": _WHOLE,
    "groups": _WHOLE,
    "symbolic_sample_over_posterior": _WHOLE,
    "set_size_and_deterministic": _WHOLE,
    "sample_node": _WHOLE,
    "sample_dict_fn": "fit.predict(X) has moments and probabilities, at the rows of the data and at others",
}
"""What fits of all latent values have, and PyMC's approximations, and what there is instead."""


class BlockPosterior(Protocol):
    """What predictions ask of a posterior."""

    @property
    def size(self) -> int:
        """How many values each function has."""

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Means (c, m) and covariances (m, c, c) of the latent functions at m points, from their prior moments."""


class InducingFit(ABC):
    """Latent functions by way of inducing values, at one θ.

    Attributes
    ----------
    space : Hyperparameters
        The hyperparameters of the model, and its data when it was fitted.
    theta : array
        Hyperparameters, flat and unconstrained.
    inducing_inputs : array (1 or c, M, d)
        One set for all functions, or one for each.
    rows : Rows or None
        What was fitted, if not the rows of the model.
    prior : InducingBlocks or None
        Prior moments, with the rows that were fitted; None in a fit that was read from a file, which asks the model.
    seconds : float
        Time that the fit took; NaN if unknown.
    """

    _by: ClassVar[str] = "inducing inputs"

    space: Hyperparameters
    theta: Array
    inducing_inputs: Array
    rows: Rows | None
    prior: InducingBlocks | None
    seconds: float

    @property
    @abstractmethod
    def posterior(self) -> BlockPosterior | None:
        """Of the inducing values; None where there is none."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the method, for `pm.fit`."""

    @property
    @abstractmethod
    def log_evidence(self) -> float:
        """Approximate log marginal likelihood; NaN where there is none."""

    @property
    @abstractmethod
    def lower_bound(self) -> float:
        """Lower bound of the log marginal likelihood; NaN where there is none."""

    @property
    @abstractmethod
    def converged(self) -> bool:
        """Whether all went well."""

    @property
    @abstractmethod
    def message(self) -> str:
        """How the fit ended, in words."""

    @property
    @abstractmethod
    def _coupled(self) -> bool:
        """Whether sites couple the functions of a point."""

    @abstractmethod
    def _left_out(self, gp: Gp) -> Iterator[LeftOut]:
        """Latent values of all points, part by part, each given the labels of all others."""

    @abstractmethod
    def __str__(self) -> str:
        """Method, what its number is, and how the fit ended."""

    def __repr__(self) -> str:
        """The same."""
        return str(self)

    @property
    def classifier(self) -> GPClassifier:
        """What was read from the model."""
        return self.space.classifier

    @property
    def hyperparameters(self) -> xr.Dataset:
        """Hyperparameters on their natural scale."""
        return datasets.natural(self.space, self.theta[None]).isel(node=0, missing_dims="ignore")

    @property
    def nodes(self) -> xr.Dataset:
        """The same with a dim `node` of length one, and its `weight`: what predictions average over."""
        return datasets.natural(self.space, self.theta[None]).assign_coords(weight=("node", np.ones(1)))

    @property
    def inducing(self) -> xr.DataArray:
        """Inducing inputs (inducing, column), or (class, inducing, column) where each function has its own."""
        if len(self.inducing_inputs) == 1:
            return xr.DataArray(self.inducing_inputs[0], dims=["inducing", "column"], name="inducing")
        class_dim = self.classifier.class_dim or "class"
        coords = {class_dim: self.classifier.class_names}
        return xr.DataArray(self.inducing_inputs, coords, [class_dim, "inducing", "column"], name="inducing")

    @property
    def _size(self) -> str:
        """Of inducing inputs, in words."""
        sets, size, _ = self.inducing_inputs.shape
        shared = "" if self.classifier.n_functions == 1 else " for each function" if sets > 1 else " for all functions"
        return f"{size} inducing inputs{shared}"

    @property
    def iterations_per_epoch(self) -> int:
        """How often callbacks are called while all rows are gone through once."""
        return 1

    def blocks(self, gp: Gp = None) -> InducingBlocks:
        """Prior moments by blocks, with the data that was fitted; `gp` is what made the latent values, if given."""
        if gp is None and self.prior is not None:
            return self.prior
        gps = as_gps(gp)
        if gps not in self._made:
            self._made[gps] = InducingBlocks(self.classifier, gps, self.space.data, rows=self.rows)
        return self._made[gps]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: a fit is a value, and what was read from a model belongs to that model."""
        return self

    def prior_at(self, gp: Gp = None) -> PriorAt:
        """The prior at the hyperparameters of the fit; `gp` as of `blocks`."""
        return PriorAt(self.blocks(gp), self.space.point(self.theta), self.inducing_inputs)

    def labels(self, gp: Gp = None) -> NDArray[np.int64]:
        """Of all rows that were fitted, (n,); `gp` as of `blocks`."""
        rows = self.blocks(gp).rows
        return rows.labels(slice(0, rows.n_rows))

    def likelihood_at(self, n_points: int) -> Likelihood:
        """At any points, at the hyperparameters of the fit."""
        elsewhere = LikelihoodElsewhere(self.classifier, n_points, self.space.data)
        return elsewhere(self.space.point(self.theta))

    def _known_posterior(self) -> BlockPosterior:
        if self.posterior is None:
            raise ValueError(f"There is no posterior to predict from: {self.message}")
        return self.posterior

    @one_blas_thread()
    def latent_moments(self, gp: Gp = None) -> tuple[Array, Array]:
        """Mean (n, c) and covariance (n, c, c) of the latent functions at the inputs that were fitted.

        They are those of `predict`; `gp` is what made the latent values, if given.
        """
        prior, posterior = self.prior_at(gp), self._known_posterior()
        n, c = prior.n_points, prior.n_functions
        mean, cov = np.empty((n, c)), np.empty((n, c, c))
        for rows in row_blocks(n, c * max(posterior.size, c)):
            of_rows, cov[rows] = posterior.predict(prior.block(rows))
            mean[rows] = of_rows.T
        return mean, cov

    @property
    def latent(self) -> xr.Dataset:
        """The same as a Dataset: `mean` (point, class) and `cov` (point, class, class).

        `sd` (point, class) is of values less their mean over functions, which is what the likelihood sees of them.
        `mean` and `variance` (point) where a point has one latent function, and the model no axis for it.
        """
        return datasets.of_points(self.classifier, *self.latent_moments(), named=self.rows is None)

    @cached_property
    def _made(self) -> dict[tuple[pm.gp.Latent, ...] | None, InducingBlocks]:
        return {}

    @one_blas_thread()
    def predict(
        self,
        gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None = None,
        Xnew: ArrayLike | None = None,
        *,
        observed: ArrayLike | None = None,
        probabilities: str | None = None,
        tolerance: float = 5e-5,
        covariances: bool = True,
        dim: str = "new_point",
        progressbar: bool = True,
    ) -> xr.Dataset:
        """Predict latent functions and class probabilities at new inputs: `predict(Xnew)`, or `predict(gp, Xnew)`.

        Parameters
        ----------
        gp : pm.gp.Latent or sequence of them, optional
            What made the latent values of the model; a list where classes have their own. Without it the covariance at
            new inputs is read from the graph of the model.
        Xnew : array (m, d)
            New inputs, or those of the data; a DataArray gives its first dim and coords to the result.
        observed : array (m,), optional
            What was observed there, for `log_density`.
        probabilities : str, optional
            How class probabilities are computed, as in `GPApproximation.predict`.
        tolerance : float
            Error allowed in probabilities that have to be integrated by sampling.
        covariances : bool
            Whether to return `cov`, which is diagonal but for `sites="nested"`: other sites leave the functions
            independent given the data.
        dim : str
            Name of the new dimension.
        progressbar : bool
            Whether to show how many rows are done and the time that is left, where that takes more than a second.

        Returns
        -------
        xarray.Dataset
            `p`, `mean`, `cov` (or `variance`), `error` and `log_density`, as of `GPApproximation.predict`.

        Raises
        ------
        StructureError
            If `gp` is missing, and the graph of the model does not say what the prior is at other inputs.
        TypeError, ValueError
            If `Xnew` is missing, has a wrong shape or values that are not finite, if `gp` is not of this model, if
            there is no such way to compute probabilities, or if the fit has no posterior since EP failed.

        Warns
        -----
        UserWarning
            If rows of `Xnew` are further from all inducing inputs than the length scales reach; it says how many.
        """
        gp, Xnew = process_and_inputs(gp, Xnew)
        blocks = self.blocks(gp)
        inputs = new_inputs(Xnew, blocks.rows.n_inputs)
        how = self.classifier.likelihood_model.check_way(probabilities, "probabilities")
        posterior = self._known_posterior()
        point = self.space.point(self.theta)
        m, c = len(inputs), self.classifier.n_functions
        y = None if observed is None else held_out(self.classifier, observed, m, "observed")
        likelihood = self.likelihood_at(m)
        own = blocks.inducing(point, self.inducing_inputs).diagonal(axis1=1, axis2=2)

        def parts(done: Callable[[int], None]) -> Iterator[tuple[slice, Prediction]]:
            for rows in row_blocks(max(m, 1), max(c * max(posterior.size, c), _ENTRIES)):
                block = blocks.block(point, self.inducing_inputs, inputs[rows])
                mean, cov = posterior.predict(block)
                of_rows = None if y is None else y[rows]
                part = predict_given(likelihood.at(rows), mean.T, cov, observed=of_rows, how=how, tolerance=tolerance)
                part = part._replace(far=unreached(block.cross.swapaxes(1, 2), block.variance, own))
                yield rows, part if covariances else part._replace(cov=None)
                done(len(part.mean))

        with RowProgress("Predicting", m, progressbar) as progress:
            found = assembled(parts(progress.advance), m)
        warn_of_far_rows(found.far, lambda: self._unreached(blocks), self._by)
        return labelled(self.classifier, Xnew, dim, found).assign_attrs(probabilities=how)

    def _unreached(self, blocks: InducingBlocks) -> float:
        """The share of fitted rows that no inducing input reaches, but for one that is the row itself."""
        point, z = self.space.point(self.theta), self.inducing_inputs
        try:
            some = blocks.rows.inputs(slice(0, min(SOME, blocks.rows.n_rows)))
        except ValueError:  # a fit that was read from a file has none
            some = z[0]
        block = blocks.block(point, z, some)
        same = (z[:, :, None] == some).all(axis=-1)
        own = blocks.inducing(point, z).diagonal(axis1=1, axis2=2)
        cross = np.where(same, np.nan, block.cross).swapaxes(1, 2)
        return float(unreached(cross, block.variance, own).mean())

    def fitted_inputs(self, gp: Gp = None) -> Array:
        """Inputs (n, d) that were fitted; `gp` is what made the latent values of the model, if given.

        A ValueError if they came from `data=...` and this fit from a file, which does not hold them.
        """
        rows = self.blocks(gp).rows
        return rows.inputs(slice(0, rows.n_rows))

    def sample(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: see the message."""
        self._refuse("sample", "fit.predict(X) has moments and probabilities at the points of the data and others")

    @one_blas_thread()
    def loo(
        self, *, gp: Gp = None, tolerance: float = 5e-5, refit_above: float = np.inf, progressbar: bool = True
    ) -> "CavityELPD":
        """Leave-one-out cross-validation from this one fit, as of `GPApproximation.loo`.

        The log predictive density of each label given all the others: latent values by the posterior without the site
        of the point, with hyperparameters and inducing inputs held. All rows are gone through in blocks.

        What a label of its own has to do with its latent value by way of what inducing values leave unsaid is not in
        `p_loo`, which compares with `predict` at the same inputs.

        Parameters
        ----------
        gp : pm.gp.Latent or sequence of them, optional
            What made the latent values, where the graph of the model does not say what their prior is.
        tolerance : float
            Error to begin with in probabilities that have to be integrated by sampling.
        refit_above : float
            Taken for compatibility: nothing is fitted once more, and a limit is refused.
        progressbar : bool
            Whether to show how many rows are done and the time that is left, where that takes more than a second.

        Returns
        -------
        CavityELPD
            An `arviz.ELPDDataLOO` that `az.compare` takes.

        Raises
        ------
        NotImplementedError
            If sites leave several functions independent. Without the site of a point its functions do not move as
            they would without its label: where it was tried, the sum was off by a tenth and more. If there is a
            `refit_above`.
        ValueError
            If there is no posterior, or if the rows came from `data=...` and this fit from a file, which has none.
        """
        if refit_above < np.inf:
            self._refuse("loo(refit_above=...)", "leave it out, or hold out rows, and score fit.predict(Xtest) on them")
        if self.classifier.n_functions > 1 and not self._coupled:
            raise NotImplementedError(
                "The sites of this fit leave the functions of a point independent, from which leave-one-out is off by "
                'a tenth and more. Fit with sites that couple them (sites="nested" of "sparse_ep" without batches, '
                'sites="coupled" of "ivm"), or hold out rows, and score fit.predict(Xtest) on them.'
            )
        from pymc_gpep.fits.left_out import leave_one_out_by_parts  # with it comes ArviZ

        prior, posterior = self.prior_at(gp), self._known_posterior()
        return leave_one_out_by_parts(
            self,
            self.labels(gp),
            self.likelihood_at(prior.n_points),
            lambda rows: posterior.predict(prior.block(rows)),
            self._left_out(gp),
            tolerance=tolerance,
            progressbar=progressbar,
        )

    def importance(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: see the message."""
        self._refuse("importance", "compare with a dense fit of some of the rows")

    def corrected_evidence(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: see the message."""
        self._refuse("corrected_evidence", "compare with a dense fit of some of the rows")

    if not TYPE_CHECKING:  # a type checker would find any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to use for what other fits have and these have not; asked where there is no such attribute."""
            instead = _INSTEAD.get(name) if not name.startswith("_") else None
            if instead is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            # With neither name nor object: Python would guess at another attribute behind the sentence.
            raise AttributeError(f"A fit by {self._by} has no {name}: {instead}.")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise NotImplementedError(
            f"A fit by {self._by} has no {what} yet, which works on all latent values together: {instead}."
        )
