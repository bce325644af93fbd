"""Base class of log posteriors of the hyperparameters."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.log_posteriors.quasi_newton import Curvature
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rows.fingerprint import FormerRows
from pymc_gpep.rows.rows import Rows

type Gps = tuple[pm.gp.Latent, ...] | None
"""Processes of the latent values; None if the graph of the model determines their prior."""


@dataclass(frozen=True)
class StoredFit:
    """File of a fit, with parts of the file and of the model that are already read.

    Attributes
    ----------
    tree : DataTree
    space : Hyperparameters
    best : Evaluation
        Evaluation at the end of the search.
    rows : FormerRows or None
        Record of the fitted rows, if they are not the rows of the model.
    gps : tuple of pm.gp.Latent, or None
    """

    tree: xr.DataTree
    space: Hyperparameters
    best: Evaluation
    rows: FormerRows | None
    gps: Gps

    @property
    def attrs(self) -> Mapping[Any, Any]:
        """Attributes of the fit in the file."""
        return self.tree.attrs

    @property
    def options(self) -> dict[str, Any]:
        """Options of the approximation, from the file."""
        found: dict[str, Any] = json.loads(self.attrs["options"])
        return found

    @cached_property
    def posterior(self) -> xr.Dataset:
        """Stored posterior of the latent functions."""
        return self.tree["posterior"].to_dataset()

    @cached_property
    def blocks(self) -> InducingBlocks | None:
        """Prior moments of blocks of rows, by the given processes; None if the model determines these moments."""
        if self.gps is None:
            return None
        return InducingBlocks(self.space.classifier, self.gps, self.space.data, rows=self.rows)


class LogPosterior(ABC):
    """Log posterior log p(θ | y) of the hyperparameters θ, up to a constant, with its gradient.

    A flat vector x contains unconstrained θ, followed by other learned values, such as inducing inputs.

    Attributes
    ----------
    space : Hyperparameters
        Hyperparameters of the model, with a copy of its data.
    approximator : Approximator, SparseApproximation or IVM
        Approximation with its options.
    kind : str
        Name of this class in files.
    by : str
        Text for messages: the values that determine the posterior of the latent functions, such as "inducing inputs".
    joint : bool
        Whether all latent values at the rows have a joint posterior.
    learns : str
        Text for messages: the learned quantities, such as "Hyperparameters".
    """

    kind: ClassVar[str]
    by: ClassVar[str]
    joint: ClassVar[bool] = False
    learns: str = "Hyperparameters"
    takes_means: ClassVar[bool] = False
    """Whether means of processes can be integrated out with the latent values."""

    space: Hyperparameters
    approximator: Any

    @classmethod
    def in_form(cls, classifier: GPClassifier) -> GPClassifier:
        """Return the classifier of a saved fit, with the prior in the form that this class uses."""
        return classifier

    @classmethod
    def of_file(cls, file: StoredFit) -> Self:
        """Return the log posterior of a fit that was saved."""
        raise NotImplementedError(f"A fit by {cls.by} cannot be read from a file.")

    @property
    def own_trace(self) -> Trace | None:
        """Trace of the search if the log posterior stores it; else None."""
        return None

    @property
    def classifier(self) -> GPClassifier:
        """The classifier that was read from the model."""
        return self.space.classifier

    @property
    def name(self) -> str:
        """Name of the method, for `pm.fit`."""
        return str(self.approximator.name)

    @property
    def rows(self) -> Rows | None:
        """Fitted rows, if they are not the rows of the model; else None."""
        return None

    @property
    def algebra(self) -> str:
        """Sentence on the form of the matrices if the fit has selected this form; else empty."""
        return ""

    def described(self) -> dict[str, Any]:
        """Return a description of the method, to be stored in a file."""
        return {"approximation": self.name, "options": json.dumps(asdict(self.approximator))}

    def theta(self, x: Array) -> Array:
        """Return the hyperparameters in a flat vector."""
        return x[: self.space.size]

    def point(self, x: Array) -> PointType:
        """Return the values of value variables for a flat vector."""
        return self.space.point(self.theta(x))

    def flat(self, theta: Array) -> Array:
        """Return the flat vector of hyperparameters and initial values of other learned parameters."""
        return theta

    @property
    def number(self) -> str:
        """Name of the computed evidence, such as "log evidence"."""
        return "log evidence"

    def loosely(self, gradients: bool = True) -> Self:
        """Return a copy with the low accuracy of a search. Without `gradients`, node weights determine the accuracy."""
        return self

    def roughly(self) -> Self:
        """Return a copy with low accuracy, sufficient for the first part of a search."""
        return self

    def weighing(self) -> Self:
        """Return a copy with the accuracy for nodes of an integral. Its evaluations may have no gradient."""
        return self.loosely()

    def curvature(self, here: Evaluation) -> Curvature | None:
        """Return the approximate curvature in hyperparameters that shift prior means; None if it is unavailable.

        A prior mean m + A β has the curvature AᵀM A in β. Here M = (Π⁻¹ + K)⁻¹, with the prior covariance K and the
        precision Π of the sites. The curvature is exact for normal observations.
        """
        return None

    def held(self, best: Evaluation) -> "LogPosterior":
        """Return the log posterior of θ alone, for integration over θ. Other learned parameters are fixed."""
        return self

    def each[T, R](self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return `function(item)` of each item in order, possibly in parallel."""
        return [function(item) for item in items]

    def solve_each(self, evaluated: Iterable[Evaluation]) -> list[Any]:
        """Return the approximate posteriors at several evaluations."""
        return [self.solve(evaluation.theta, evaluation.start) for evaluation in evaluated]

    @property
    def compiled(self) -> bool:
        """Whether compiled code evaluates the log posterior. Compiled code cannot raise exceptions."""
        return False

    @property
    @abstractmethod
    def entries(self) -> int:
        """Number of entries of the matrices that a solve computes."""

    @property
    def kept(self) -> int:
        """Number of values that a solution stores."""
        return self.entries

    @abstractmethod
    def check_moments(self, x: Array) -> None:
        """Raise a ValueError if prior moments at one point are invalid for a Gaussian process."""

    @abstractmethod
    def __call__(self, x: Array, start: Any = None) -> Evaluation:
        """Evaluate the log posterior at a flat vector. If the approximation fails, values are NaN, and a status is set.

        Parameters
        ----------
        x : array
            A flat vector.
        start : array or Neighbours, optional
            `Evaluation.start` of a near point, or several solutions. A start saves iterations. If the solve fails, it
            is repeated from a cold start.
        """

    @abstractmethod
    def solve(self, x: Array, start: Array | None = None) -> Any:
        """Return the approximate posterior of the latent functions at x; `start` as for an evaluation."""

    def from_cold(self, x: Array) -> Convergence:
        """Return the convergence of a solve at x from a cold start.

        Raises
        ------
        TypeError
            If solves are not iterative.
        """
        found: Convergence | None = self.solve(x).convergence
        if found is None:
            raise TypeError("The method is not iterative, so a cold start cannot check its convergence.")
        return found

    @abstractmethod
    def latent(self, x: Array, solution: Any, gps: Gps = None) -> LatentFunctions:
        """Return the latent functions for a flat vector and its solution. They can be predicted at any inputs.

        Raises
        ------
        ValueError
            If the solution has no posterior.
        StructureError
            If `gps` are missing, and the graph of the model does not determine the prior at new inputs.
        """

    @abstractmethod
    def covariance(self, x: Array) -> tuple[Array, NDArray[np.int64]]:
        """Return the prior covariance (1 or c, m, m) of m rows, and their observations. Many rows are sampled."""

    def ending_with(self, x: Array, solution: Any) -> Self:
        """Return the log posterior after a fit ended with this solution at x. Subclasses may return a changed copy."""
        return self

    def stored(self, x: Array, solution: Any) -> xr.Dataset:
        """Return arrays of the posterior at x, for a file; an empty dataset if a loaded fit repeats the solve.

        Raises
        ------
        ValueError
            If the solution has no posterior.
        """
        return xr.Dataset()

    def restored(self, x: Array, table: xr.Dataset) -> Any:
        """Return the solution stored in a file."""
        raise NotImplementedError(f"A loaded fit by {self.by} repeats the solve.")

    def few_prior(self, x: Array) -> Array:
        """Return the prior covariance (q, m, m) of a few anchors, such as inducing inputs."""
        raise NotImplementedError(f"A fit by {self.by} is solved again.")

    @abstractmethod
    def inputs(self, gps: Gps = None) -> Array:
        """Return the fitted inputs (n, d)."""

    @abstractmethod
    def observed(self, gps: Gps = None) -> Observed:
        """Return the observations (n,) at the fitted rows."""

    @staticmethod
    def state(converged: bool) -> str:
        """Return a text on whether a fit converged."""
        return "converged" if converged else "NOT converged"

    def anchors(self, x: Array, solution: Any = None) -> Array:
        """Return the anchors (1 or c, M, d): inputs with latent values that determine the latent functions.

        Raises
        ------
        AttributeError
            If all rows determine the latent functions.
        """
        raise AttributeError(f"A fit by {self.by} has no inducing inputs.")

    def active(self, x: Array, solution: Any) -> xr.Dataset:
        """Return the active rows by `inclusion`, with labels of functions and points; see `Fit.active`.

        Raises
        ------
        AttributeError
            If no rows were chosen.
        """
        raise AttributeError(f"A fit by {self.by} has no active rows.")

    @abstractmethod
    def heading(self, trace: Trace, solution: Any, converged: bool) -> str:
        """Return a sentence on the method, its choices, its evidence or bound, and the convergence of the fit."""

    @abstractmethod
    def ending(self, trace: Trace, solution: Callable[[], Any]) -> str:
        """Return sentences on the end of a fit. `solution` is a function that computes the final solution."""

    def check_effects(self, what: str) -> None:
        """Raise the error of `check_joint` if the effects have no joint posterior.

        Parameters
        ----------
        what : str
            Name of the caller, for the message.
        """
        if not self.classifier.prior.effects:
            self.check_joint(what)

    def check_joint(self, what: str) -> None:
        """Raise a NotImplementedError if the latent values at the rows have no joint posterior.

        Parameters
        ----------
        what : str
            Name of the caller, for the message.
        """
        if self.joint:
            return
        raise NotImplementedError(
            f"{what} needs the joint posterior of all latent values, which a fit by {self.by} does not have. "
            "Fit fewer rows by a method that works on all rows together, or score fit.predict(Xtest) on held-out rows."
        )
