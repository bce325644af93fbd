"""A fit as a value: log posterior of the hyperparameters, trace of the search, and weighted nodes."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
import xarray as xr
from pymc.variational.approximations import SingleGroupApproximation
from pytensor.graph.traversal import ancestors

from pymc_gpep.approximations import Convergence
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits import datasets
from pymc_gpep.fits.mixture import total_covariance
from pymc_gpep.hyper import HyperPosterior, Maximum
from pymc_gpep.log_posteriors.evaluation import Trace
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.processes.cross_covariance import as_gps
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.team import one_blas_thread

type Gp = pm.gp.Latent | Sequence[pm.gp.Latent] | None


class Fitted(SingleGroupApproximation):
    """The results of a fit. `Fit` has the questions that take work, and documents the parameters."""

    def __init__(
        self,
        log_posterior: LogPosterior,
        trace: Trace,
        hyper_posterior: HyperPosterior | None = None,
        seconds: float = np.nan,
        compile_seconds: float = np.nan,
        seed: int = 0,
        again: Callable[..., Any] | None = None,
        solution: Any = None,
        why_maximum: str = "",
    ) -> None:
        # PyMC's own constructor makes a group of all variables, which takes longer than a step of some fits: see
        # `groups`.
        self.log_posterior = log_posterior
        self.trace = trace
        self.seconds, self.compile_seconds = seconds, compile_seconds
        self.seed = seed
        self.include_transformed = False
        self._told = False
        self.why_maximum = why_maximum
        self._hyper, self._again, self._known = hyper_posterior, again, solution
        # Later gp.conditional and the like do not change a fit that exists.
        classifier = log_posterior.classifier
        apart = set(classifier.prior.implicit)
        self._deterministics = [v for v in classifier.model.deterministics if apart.isdisjoint(ancestors([v]))]
        apart.update(classifier.unobserved)
        self._free = [rv for rv in classifier.model.free_RVs if rv not in apart]

    def _with(self, **changes: Any) -> Self:
        """Return another fit with other parts."""
        given: dict[str, Any] = {
            "hyper_posterior": self._hyper,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "seed": self.seed,
            "again": self._again,
            "solution": self._known,
            "why_maximum": self.why_maximum,
        }
        parts: dict[str, Any] = {"log_posterior": self.log_posterior, "trace": self.trace} | given | changes
        fit = type(self)(**parts)
        fit.include_transformed = self.include_transformed
        return fit

    def kept(self, why: str) -> Self:
        """Return this fit, of an iteration, as one that has ended for a reason."""
        parts = {"hyper_posterior": self.hyper_posterior, "solution": self.solution}
        return self._with(trace=self.trace.ended_as(why), **parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: a fit is a value, and what was read from a model belongs to that model."""
        return self

    def refine(self, n: int, *, callbacks: Sequence[Any] | None = None, progressbar: bool = True) -> Self:
        """Go on from the hyperparameters, and what else was learned, for at most `n` more iterations or steps.

        Data, backend and options are those of this fit, which stays as it is.

        Returns
        -------
        Fit

        Raises
        ------
        TypeError
            If `n` is not a whole number.
        ValueError
            If this fit was read from a file: `pm.fit(..., start=fit)` goes on from that.
        """
        if self._again is None:
            raise ValueError("This fit was read from a file. pm.fit(n, ..., start=fit) goes on from it.")
        further: Self = self._again(self, n, callbacks, progressbar)
        return further

    # What was found.

    @property
    def classifier(self) -> GPClassifier:
        """The classifier that was read from the model."""
        return self.log_posterior.classifier

    @property
    def model(self) -> pm.Model:
        """The model that was fitted."""
        return self.classifier.model

    @property
    def name(self) -> str:
        """Name of the method, for `pm.fit`."""
        return self.log_posterior.name

    @property
    def rows(self) -> Rows | None:
        """The rows that were fitted in place of those of the model; None where those of the model were fitted.

        In a fit that was read from a file they are `FormerRows`, without any values.
        """
        return self.log_posterior.rows

    @cached_property
    def hyper_posterior(self) -> HyperPosterior:
        """The nodes that draws, moments and predictions average over.

        It also holds the log evidence with the hyperparameters integrated out.
        """
        return self._hyper or HyperPosterior(Maximum.name, self.log_posterior, [self.trace.best], np.ones(1))

    @cached_property
    def solution(self) -> Any:
        """The approximate posterior of the latent functions at the maximum."""
        if self._known is not None:
            return self._known
        best, hyper = self.trace.best, self.hyper_posterior
        if hyper.log_posterior is self.log_posterior:
            return hyper.solution_at(best)
        return self.log_posterior.solve(best.theta, best.start)

    @property
    def log_evidence(self) -> float:
        """Approximate log marginal likelihood at the maximum; NaN where a method approximates none.

        With inducing inputs it is that of the sparse model. By batches it takes a few passes over all rows.
        """
        return float(self.solution.log_evidence)

    @property
    def lower_bound(self) -> float:
        """Lower bound of the log marginal likelihood at the maximum; NaN where none is known.

        By Jensen's inequality it is that of the Gaussian, E_q log p(y | f) − KL(q ‖ prior), for a dense fit and a
        likelihood of one latent function. For others it is the method's own.
        """
        return float(self.solution.lower_bound)

    @property
    def objective(self) -> float:
        """The number by which hyperparameters, and inducing inputs, were chosen: an evidence, a bound or another one.

        By batches it is the average of the estimates over the last whole epoch.
        """
        return float(self.solution.objective)

    @property
    def active_evidence(self) -> float:
        """Log evidence of the labels of the active rows alone; NaN where sites were not iterated.

        These rows were chosen for their labels, so that it says nothing of hyperparameters.
        """
        if not hasattr(self.solution, "active_evidence"):
            raise AttributeError(f"A fit by {self.log_posterior.by} has no active rows.")
        return float(self.solution.active_evidence)

    @property
    def convergence(self) -> Convergence | None:
        """How the approximation ended, at the maximum; None where it has no iteration of its own."""
        found: Convergence | None = self.solution.convergence
        return found

    @property
    def converged(self) -> bool:
        """Whether the search, the approximation and the integral over hyperparameters all went well."""
        return bool(self.trace.converged and self.solution.converged and self.hyper_posterior.converged)

    @property
    def message(self) -> str:
        """How the fit ended, in words."""
        hyper = self.hyper_posterior
        ended = self.log_posterior.ending(self.trace, lambda: self.solution)
        return ended + (f" In hyper={hyper.name!r}, {hyper.message}." if hyper.message else "")

    def __str__(self) -> str:
        """Method, its number, and how the fit ended."""
        hyper, integrated = self.hyper_posterior, ""
        if len(hyper) > 1:
            whole = "" if np.isnan(hyper.log_evidence) else f", log evidence {hyper.log_evidence:.4f}"
            integrated = f" Integrated over hyperparameters at {len(hyper)} nodes (hyper={hyper.name!r}){whole}."
        heading = self.log_posterior.heading(self.trace, self.solution, self.converged)
        parts = (self._maximum, self.classifier.described, self.log_posterior.algebra)
        return " ".join([f"{heading} {self.message}{integrated}", *filter(None, parts)])

    def __repr__(self) -> str:
        """Method, its number, and how the fit ended."""
        return str(self)

    @property
    def at_maximum(self) -> list[str]:
        """Names of the hyperparameters that draws, moments and predictions do not average over."""
        return list(dict.fromkeys(self.hyper_posterior.at_maximum))

    @property
    def _maximum(self) -> str:
        """Sentence that names the hyperparameters at their maximum, with the reason; empty without such."""
        if not (names := self.at_maximum):
            return ""
        why = "the fit was interrupted" if self.trace.interrupted else self.why_maximum
        return f"At the maximum: {', '.join(map(repr, names))}{f' ({why})' * bool(why)}."

    @property
    def theta(self) -> Array:
        """Hyperparameters at the maximum, flat and unconstrained."""
        return self.log_posterior.theta(self.trace.best.theta)

    @property
    def hyperparameters(self) -> xr.Dataset:
        """Hyperparameters at the maximum on their natural scale, with the model's dims and coords."""
        return datasets.hyperparameters(self.log_posterior.space, self.theta)

    @property
    def nodes(self) -> xr.Dataset:
        """Hyperparameters that draws, moments and predictions average over, on their natural scale.

        With dim `node`, and for each node the coordinates `weight`, `evidence` and `log_posterior` (unconstrained).
        Where a hyperparameter has the name `weight`, the coordinate is `node_weight`, and so with the others.
        """
        hyper = self.hyper_posterior
        found = datasets.evaluated(self.log_posterior.space, hyper.nodes, "node")
        return datasets.with_numbers(found, "node", {"weight": hyper.weights})

    @property
    def starts(self) -> xr.Dataset:
        """Hyperparameters at which searches ended from each start, with dim `start`, on their natural scale.

        With the coordinates `evidence` and `log_posterior` (unconstrained); NaN for starts at which the approximation
        failed. One for a fit with `starts=1`.
        """
        return datasets.evaluated(self.log_posterior.space, self.trace.ends or (self.trace.best,), "start")

    @property
    def hist(self) -> Array:
        """Negative log posterior at each iteration, what other methods call the loss.

        With active rows it may rise where they are chosen anew; by batches it is an estimate from one batch.
        """
        return self.trace.losses

    @property
    def history(self) -> xr.Dataset:
        """The evidence (or bound), log posterior and iterations of the approximation, for each `iteration`.

        By batches, of each `step`: log posterior, and the share of points with a site that was held back.
        """
        return datasets.history(self.trace)

    @property
    def iterations_per_epoch(self) -> int:
        """How many iterations go through all rows once."""
        return self.trace.per_epoch

    @property
    def inducing(self) -> xr.DataArray:
        """Inducing inputs (inducing, column), or (class, inducing, column) where each function has its own.

        For a fit by active rows they are the inputs of these rows.
        """
        return datasets.inducing(self.classifier, self.inducing_inputs)

    @property
    def inducing_inputs(self) -> Array:
        """The same as an array, (1 or c, M, d)."""
        return self.log_posterior.anchors(self.trace.best.theta, self.solution)

    @property
    def active(self) -> xr.Dataset:
        """The active rows in the order in which they were chosen, by `inclusion`.

        `row` is the number of each in the data, from 0. `score` is that by which it was chosen, NaN for the first ones
        and for all that were chosen at random. `label` is the observation there, `input` (inclusion, column) its
        inputs. `site` says whether there is a site, (inclusion, class) where classes have functions of their own: with
        `sites="separate"` a row has some of them. Where the points of the model have coords, these are there as well.
        """
        return self.log_posterior.active(self.trace.best.theta, self.solution)

    # The latent functions.

    @property
    def latent(self) -> xr.Dataset:
        """Posterior mean (point, class) and covariance (point, class, class) of the latent values that were fitted.

        `sd` (point, class) is of values less their mean over functions, which is what the likelihood sees of them.
        `mean` and `variance` (point) where a point has one latent function, and the model no axis for it.
        """
        return datasets.of_points(self.classifier, *self.latent_moments(), named=self.rows is None)

    @one_blas_thread()
    def latent_moments(self, gp: Gp = None) -> tuple[Array, Array]:
        """The same as arrays with an axis of latent functions always: mean (n, c), covariance (n, c, c).

        `gp` is what made the latent values, where the graph of the model does not say what their prior is.
        """

        def parts() -> Iterator[tuple[Array, Array]]:
            for functions in self.functions(gp):
                n, c = functions.n_points, functions.n_functions
                mean, cov = np.empty((n, c)), np.empty((n, c, c))
                for rows in row_blocks(n, c * max(functions.size, c)):
                    of_rows, cov[rows] = functions.at_rows(rows)
                    mean[rows] = of_rows.T
                yield mean, cov

        return total_covariance(self.hyper_posterior.weights, parts())

    def functions(self, gp: Gp = None) -> Iterator[LatentFunctions]:
        """The latent functions given each node in turn; `gp` as of `predict`."""
        hyper, gps = self.hyper_posterior, as_gps(gp)
        return (hyper.log_posterior.latent(node.theta, solution, gps) for node, solution in hyper.solutions())

    @one_blas_thread()
    def joint_latent_moments(self, points: Sequence[int]) -> tuple[Array, Array]:
        """Mean (m, c) and covariance (m, c, m, c) of the latent values of m points, by their positions in the data.

        `latent_moments` has those of each point by itself.

        Raises
        ------
        ValueError
            If there is no point at one of the positions.
        NotImplementedError
            If the fit has no joint posterior of all latent values.
        """
        self.log_posterior.check_joint("joint_latent_moments")
        n, chosen = self.classifier.n_points, list(points)
        if missing := [i for i in chosen if not 0 <= i < n]:
            raise ValueError(f"points must be positions from 0 to {n - 1}, but {missing} are among them.")
        shape = len(chosen), self.classifier.n_functions
        size = shape[0] * shape[1]

        def parts() -> Iterator[tuple[Array, Array]]:
            for functions in self.functions():
                joint = functions.joint_covariance_among(chosen)
                mean, _ = functions.marginals()
                yield mean[:, chosen].T.ravel(), joint.transpose(1, 0, 3, 2).reshape(size, size)

        mean, cov = total_covariance(self.hyper_posterior.weights, parts())
        return mean.reshape(shape), cov.reshape(*shape, *shape)

    def labels(self, gp: Gp = None) -> Observed:
        """Observations at all rows that were fitted, (n,)."""
        return self.log_posterior.observed(as_gps(gp))

    def fitted_inputs(self, gp: Gp = None) -> Array:
        """Inputs (n, d) that were fitted; `gp` is what made the latent values of the model, if given.

        A ValueError if they came from `data=...` and this fit from a file, which does not hold them.
        """
        return self.log_posterior.inputs(as_gps(gp))

    def _generator(self, random_seed: Any) -> np.random.Generator:
        return np.random.default_rng(self._random.randint(2**30) if random_seed is None else random_seed)

    @cached_property
    def _random(self) -> np.random.RandomState:
        return np.random.RandomState(self.seed)
