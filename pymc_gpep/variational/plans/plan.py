"""The protocol of a plan: the options of a kind of method, its log posterior, and its search."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper.ascent import FLAT
from pymc_gpep.hyper.optimum import Optimum, looked_at
from pymc_gpep.hyper.several_starts import Follow, maximise_from, one_after_another, starting_points
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import Gps, LogPosterior
from pymc_gpep.reading import GPClassifier, StructureError
from pymc_gpep.rows.rows import Rows
from pymc_gpep.streaming.state import LeftOff
from pymc_gpep.variational.fit_run import FitRun

type Optimiser = Callable[..., Any] | float
"""Optimiser of PyMC, or the rate of Adam for batches."""


@dataclass(frozen=True)
class FitTask:
    """Everything that a method needs for a fit.

    Attributes
    ----------
    method : str
    space : Hyperparameters
    approximator : Any
        The approximation with its options.
    gps : tuple of pm.gp.Latent, or None
    rows : Rows or None
        Rows that replace the rows of the model.
    seed : int
    first : array
        Unconstrained initial hyperparameters.
    left_off : LeftOff or None
        State after the last step of an earlier fit by batches.
    starts : int
        Number of points at which searches for the maximum start.
    units : array (d, d), optional
        Units of the steps of the first search.
    """

    method: str
    space: Hyperparameters
    approximator: Any
    gps: Gps
    rows: Rows | None
    seed: int
    first: Array
    left_off: LeftOff | None
    starts: int
    units: Array | None = None

    @property
    def classifier(self) -> GPClassifier:
        """Classifier of the model."""
        return self.space.classifier


class Search(ABC):
    """A running fit with its data and graphs.

    Attributes
    ----------
    log_posterior : LogPosterior
    settles : bool
        Whether the solution is computed also after an interrupt, since it cannot be computed later.
    """

    log_posterior: LogPosterior
    settles: bool = False

    @abstractmethod
    def run(self, n: int, run: FitRun, fit_of: Callable[[LogPosterior, Trace], Fit], begin: Fit | None) -> None:
        """Search for at most n iterations or steps. The result is in `trace` and `log_posterior`.

        Parameters
        ----------
        n : int
        run : FitRun
            Run of the fit, which displays stages and iterations.
        fit_of : function of (log_posterior, trace)
            Function that returns the fit so far.
        begin : Fit or None
            A fit of this search to continue.
        """

    @property
    @abstractmethod
    def trace(self) -> Trace:
        """Record of the search for hyperparameters."""

    def alarming(self, fit: Fit, n: int) -> bool:
        """Return whether the message of a fit of at most n iterations must be shown as a warning."""
        return not fit.converged


@dataclass(frozen=True)
class Plan(ABC):
    """Options of a kind of method, in addition to options of its approximation."""

    limit: ClassVar[str] = "the limit on iterations of the optimiser,"
    """Meaning of `n`, for messages."""
    by_steps: ClassVar[bool] = False
    """Whether `n` is a number of steps over batches."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Options among `gp`, `data`, `starts` and `obj_optimizer` that the plan accepts."""
    sums: ClassVar[bool] = False
    """Whether the methods fit sums of effects, and integrate over means of processes."""
    centres = False
    """Whether the plan subtracts offsets of inputs. Otherwise a fit warns of large offsets."""

    @classmethod
    @abstractmethod
    def methods(cls) -> Iterable[str]:
        """Return the names of the plan's methods for `pm.fit(method=...)`."""

    @classmethod
    def serves(cls, method: str, options: Mapping[str, Any]) -> bool:
        """Return whether `pm.fit` uses this plan for a method with these options."""
        return method in cls.methods()

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options of the plan."""
        return [*cls.takes, *(field.name for field in fields(cls))]

    @classmethod
    def besides(cls) -> str:
        """Return a text for messages that lists the options besides options of the approximation."""
        listed = ", ".join([*cls.names(), "hyper", "hyper_options"])
        return f", {listed}, likelihood, and options of pm.fit: n, start, random_seed, callbacks and progressbar"

    @abstractmethod
    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        """Return the approximation with its options.

        Raises
        ------
        TypeError
            If an option is unknown. The message suggests a similar name, also among `others`.
        ValueError
            If the method does not fit the likelihood of the model, or if an option has an invalid value.
        """

    def read(self, classifier: GPClassifier) -> GPClassifier:
        """Return a classifier whose prior has the form that the methods require.

        Raises
        ------
        StructureError
            If the prior cannot have this form.
        """
        return classifier

    @abstractmethod
    def check(self, given: FitTask) -> None:
        """Raise an error if the fit is invalid, before any work."""

    def work(self, classifier: GPClassifier) -> float:
        """Return the work of one solve, for example c n³ for matrices of all rows."""
        return classifier.n_functions * float(classifier.n_points) ** 3

    @staticmethod
    def check_numbers(given: FitTask) -> None:
        """Raise an error for likelihood parameters that are learned, and for flat priors with `data`."""
        classifier = given.classifier
        wide = [str(v.name) for v, each in classifier.prior.recipes.items() if each.wide] if given.rows else []
        if wide:
            raise StructureError(
                f"{wide[0]!r} has a flat prior, which the rows of data=... may not determine. "
                f"Give it a density, pm.Normal({wide[0]!r}, 0, s), or put all rows into the model."
            )
        if learned := classifier.learned_parameters:
            named = ", ".join(sorted(repr(each.name) for each in learned))
            raise NotImplementedError(
                f"method={given.method!r} needs constant parameters of the likelihood of "
                f"{classifier.response!r}, but they depend on {named}. Give numbers chosen by held-out scores. "
                f'Or take method="{classifier.likelihood_model.method}", which learns them.'
            )

        (parameters,) = evaluate([classifier.parameters])
        if not np.array_equal(parameters, np.broadcast_to(parameters[:, :1], parameters.shape), equal_nan=True):
            raise StructureError(
                f"method={given.method!r} needs the same likelihood parameters in all rows, and the parameters of "
                f'{classifier.response!r} differ. Take method="{classifier.likelihood_model.method}" with inducing=....'
            )

    def doubt(self, fit: Fit) -> str:
        """Return a warning about a converged fit, or an empty text."""
        return ""

    @abstractmethod
    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Search:
        """Return a search.

        Parameters
        ----------
        given : FitTask
        run : FitRun
        kwargs : dict
            Arguments of `pytensor.function`.
        optimiser : function, optional
            An optimiser of PyMC, such as `pm.adam`.
        """


class Climb(Search):
    """A search by iterations of an optimiser.

    Parameters
    ----------
    given : FitTask
    log_posterior : LogPosterior
    flat : float
        Relative change of the log posterior at which a search has converged.
    whole : function of (x, n, follow), optional
        Search from one flat vector. The default is L-BFGS.
    settles : bool
        See `Search`.
    """

    def __init__(
        self,
        given: FitTask,
        log_posterior: Any,
        flat: float = FLAT,
        whole: Callable[[Array, int, Follow], Optimum] | None = None,
        settles: bool = False,
    ) -> None:
        self.log_posterior: Any = log_posterior
        self.settles = settles
        self._given, self._flat, self._whole = given, flat, whole
        self._found: Optimum | None = None

    @property
    def trace(self) -> Optimum:
        assert self._found is not None
        return self._found

    def run(self, n: int, run: FitRun, fit_of: Callable[[LogPosterior, Trace], Fit], begin: Fit | None) -> None:
        log_posterior, given = self.log_posterior, self._given
        run.stage("first solve")
        if begin is None:
            thetas = starting_points(log_posterior, given.first, given.starts, given.seed)
            points = [log_posterior.flat(theta) for theta in thetas]
        else:
            points = [begin.trace.best.theta]
        iterations = 0

        def report(history: tuple[Evaluation, ...], which: int) -> None:
            nonlocal iterations
            iterations += 1
            last = history[-1]
            state = f"log posterior {last.log_posterior:.4f}, {log_posterior.number} {last.evidence:.4f}"
            reached = Optimum(last, False, "Still running.", history)
            run.iteration(
                iterations,
                f"start {which + 1}: {state}" if len(points) > 1 else state,
                lambda: fit_of(self.so_far(reached), reached),
                reached.losses,
            )

        start = None if begin is None else begin.trace.best.start
        if self._whole is None:
            curvature = log_posterior.curvature
            found = maximise_from(log_posterior, points, n, report, start, self._flat, given.units, curvature)
        else:
            found = one_after_another(self._whole, points, n, report)
        self._found = self.judged(found)

    def so_far(self, reached: Optimum) -> LogPosterior:
        """Return the log posterior of the fit at an iteration."""
        return self.log_posterior

    def judged(self, found: Optimum) -> Optimum:
        """Return the result of the search, marked as not converged, with a reason, if its end is not a maximum."""
        return looked_at(found, self._given.space, self.log_posterior)
