"""Parts of a fit: log posterior of the hyperparameters, trace of the search, and weighted nodes."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
import xarray as xr
from pymc.variational.approximations import SingleGroupApproximation
from pytensor.graph.traversal import ancestors
from scipy.special import ndtr

from pymc_gpep.approximations import Convergence
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits import datasets
from pymc_gpep.fits.mixture import total_covariance
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper import HyperPosterior, Maximum
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.evaluation import Trace
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.likelihood_search import array_at_new_rows
from pymc_gpep.recipes.recipe import parameters
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.sums.new_data import RowsOfData

type Gp = pm.gp.Latent | Sequence[pm.gp.Latent] | None


class Fitted(SingleGroupApproximation):
    """Results of a fit that need little computation. `Fit` adds predictions, draws, checks and files."""

    _marginals_of_draws: dict[str, Array]

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
        """Store the parts of a fit.

        Parameters
        ----------
        log_posterior : LogPosterior
            Log posterior of the hyperparameters, with the model, its data and the method.
        trace : Trace
            History of the search for hyperparameters.
        hyper_posterior : HyperPosterior, optional
            Weighted nodes of the hyperparameters, for averages of results. The default is one node at the maximum.
        seconds, compile_seconds : float
            Seconds of the fit without compilation, and seconds of compilation. NaN if unknown.
        seed : int
            Default seed of draws.
        again : function, optional
            Function that continues the fit, see `refine`.
        solution : Solution, SparseSolution, ActiveSolution or BatchSolution, optional
            Approximate posterior at the maximum, if already computed.
        why_maximum : str
            Reason why the fit does not integrate over the hyperparameters, for messages.
        """
        # PyMC's constructor is not called, since it takes longer than some fits. The property `groups` replaces it.
        self.log_posterior = log_posterior
        self.trace = trace
        self.seconds, self.compile_seconds = seconds, compile_seconds
        self.seed = seed
        self.include_transformed = False
        self._told = False
        self.why_maximum = why_maximum
        self._hyper, self._again, self._known = hyper_posterior, again, solution
        # Copy the lists of variables of the model, so that a later `gp.conditional` does not change this fit.
        classifier = log_posterior.classifier
        apart, held = set(classifier.prior.implicit), classifier.prior.held
        of_model = classifier.model.deterministics
        self._deterministics = [v for v in of_model if apart.isdisjoint(ancestors([v], blockers=held))]
        apart.update(classifier.unobserved)
        self._free = [rv for rv in classifier.model.free_RVs if rv not in apart]

    def _with(self, **changes: Any) -> Self:
        """Return a copy of the fit with changed parts."""
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
        """Return a finished fit with the result of this iteration. Its `message` contains the reason `why`."""
        parts = {"hyper_posterior": self.hyper_posterior, "solution": self.solution}
        return self._with(trace=self.trace.ended_as(why), **parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the fit itself, since it is immutable and its parts belong to its model."""
        return self

    def refine(self, n: int, *, callbacks: Sequence[Any] | None = None, progressbar: bool = True) -> Self:
        """Continue the fit for at most `n` more iterations or steps.

        The new fit uses the data, backend and options of this fit. This fit does not change.

        Returns
        -------
        Fit

        Raises
        ------
        TypeError
            If `n` is not an integer.
        ValueError
            If this fit was read from a file. `pm.fit(..., start=fit)` continues it.
        """
        if self._again is None:
            raise ValueError("This fit was read from a file. pm.fit(n, ..., start=fit) continues it.")
        further: Self = self._again(self, n, callbacks, progressbar)
        return further

    # Results of the search for hyperparameters.

    @property
    def classifier(self) -> GPClassifier:
        """The model as prior, likelihood and observations."""
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
        """The rows of `data=...`; None if the rows of the model were fitted.

        In a fit that was read from a file, these rows are `FormerRows`, without values.
        """
        return self.log_posterior.rows

    @cached_property
    def hyper_posterior(self) -> HyperPosterior:
        """The weighted nodes of the hyperparameters. Results are averages over these nodes.

        Its attribute `log_evidence` is the log evidence with the hyperparameters integrated out.
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
        """Approximate log marginal likelihood at the maximum; NaN if the method does not approximate it.

        With inducing inputs it is the evidence of the sparse model. For a fit by batches its computation takes a few
        passes over all rows.
        """
        return float(self.solution.log_evidence)

    @property
    def lower_bound(self) -> float:
        """Lower bound of the log marginal likelihood at the maximum; NaN without a bound.

        For a dense fit and a likelihood of one latent function it is Jensen's bound E_q log p(y | f) − KL(q ‖ prior),
        with the Gaussian posterior q. For other fits it is the bound of the method.
        """
        return float(self.solution.lower_bound)

    @property
    def objective(self) -> float:
        """Value of the maximised function: an evidence, a bound, or another objective.

        For a fit by batches it is the average of the estimates over the last complete epoch.
        """
        return float(self.solution.objective)

    @property
    def active_evidence(self) -> float:
        """Log evidence of the labels of the active rows alone; NaN if sites were not iterated.

        Do not use it to choose hyperparameters, since the active rows were chosen by their labels.
        """
        if not hasattr(self.solution, "active_evidence"):
            raise AttributeError(f"A fit by {self.log_posterior.by} has no active rows.")
        return float(self.solution.active_evidence)

    @property
    def convergence(self) -> Convergence | None:
        """Convergence of the approximation at the maximum; None if the approximation does not iterate."""
        found: Convergence | None = self.solution.convergence
        return found

    @property
    def converged(self) -> bool:
        """Whether the search, the approximation and the integral over hyperparameters all converged."""
        return bool(self.trace.converged and self.solution.converged and self.hyper_posterior.converged)

    @property
    def message(self) -> str:
        """Sentences on the end of the search, of the approximation and of the integral over hyperparameters."""
        hyper = self.hyper_posterior
        ended = self.log_posterior.ending(self.trace, lambda: self.solution)
        return ended + (f" In hyper={hyper.name!r}, {hyper.message}." if hyper.message else "")

    def __str__(self) -> str:
        """Return the method, the evidence or bound, and whether the fit converged, as text."""
        hyper, integrated = self.hyper_posterior, ""
        if len(hyper) > 1:
            whole = "" if np.isnan(hyper.log_evidence) else f", log evidence {hyper.log_evidence:.4f}"
            integrated = f" Integrated over hyperparameters at {len(hyper)} nodes (hyper={hyper.name!r}){whole}."
        heading = self.log_posterior.heading(self.trace, self.solution, self.converged)
        parts = (self._maximum, self.classifier.described, self._bounds, self._tails, self.log_posterior.algebra)
        return " ".join([f"{heading} {self.message}{integrated}", *filter(None, parts)])

    def __repr__(self) -> str:
        """Return the text of `str`."""
        return str(self)

    @property
    def at_maximum(self) -> list[str]:
        """Names of the hyperparameters that stay at their maximum."""
        return list(dict.fromkeys(self.hyper_posterior.at_maximum))

    @property
    def _maximum(self) -> str:
        """Sentence with the hyperparameters that stay at their maximum, and the reason; or an empty text."""
        if not (names := self.at_maximum):
            return ""
        why = "the fit was interrupted" if self.trace.interrupted else self.why_maximum
        return f"At the maximum: {', '.join(map(repr, names))}{f' ({why})' * bool(why)}."

    @cached_property
    def beyond_bounds(self) -> dict[str, float]:
        """Largest posterior probability that an entry is beyond its bounds, by name of uniform variable.

        A uniform variable is included if the method ignores its bounds.
        """
        variables = self.classifier.prior.bounded_variables
        names, hyper = [str(v.name) for v in variables], self.hyper_posterior
        if not names:
            return {}
        affine = self.log_posterior.space.variables.affine(names)
        bounds = dict(zip(names, map(evaluate, map(parameters, variables)), strict=True))
        found = dict.fromkeys(names, 0.0)
        for weight, (node, solution) in zip(hyper.weights, hyper.solutions(), strict=True):
            functions = hyper.log_posterior.latent(node.theta, solution)
            joint = affine(hyper.log_posterior.point(node.theta), functions)
            sds = {name: np.sqrt(each) for name, each in joint.variances().items()}
            for name, (lower, upper) in bounds.items():
                mean = joint.means[name]
                found[name] = found[name] + weight * (
                    ndtr((lower - mean) / sds[name]) + ndtr((mean - upper) / sds[name])
                )
        return {name: float(np.max(each)) for name, each in found.items()}

    @property
    def _bounds(self) -> str:
        """Sentence with the uniform variables if the method ignores their bounds; empty without such variables."""
        if not (beyond := self.beyond_bounds):
            return ""
        return f"Bounds left out: {', '.join(f'{name} (probability {p:.2g} beyond)' for name, p in beyond.items())}."

    @property
    def _tails(self) -> str:
        """Sentences on scale parameters if their posterior has no variance, or no mean; or an empty text."""
        return " ".join(
            f"No {'' if tail.moments else 'mean or '}variance of {', '.join(tail.names)} and of effects of this scale: "
            "the prior of the scale is flat, and the data hardly limit large values."
            for tail in self.hyper_posterior.tails
        )

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
        """Weighted nodes of the hyperparameters on their natural scale. Results are averages over nodes.

        The dim is `node`, with the coordinates `weight`, `evidence` and `log_posterior` (unconstrained). If a
        hyperparameter has the name `weight`, the coordinate is `node_weight`, and likewise for the other names.
        """
        hyper = self.hyper_posterior
        found = datasets.evaluated(self.log_posterior.space, hyper.nodes, "node")
        return datasets.with_numbers(found, "node", {"weight": hyper.weights})

    @property
    def starts(self) -> xr.Dataset:
        """Hyperparameters at the end of the search from each start, with dim `start`, on their natural scale.

        The coordinates are `evidence` and `log_posterior` (unconstrained), NaN for starts at which the approximation
        failed.
        """
        return datasets.evaluated(self.log_posterior.space, self.trace.ends or (self.trace.best,), "start")

    @property
    def hist(self) -> Array:
        """Negative log posterior at each iteration: the loss.

        With active rows it may rise after a new choice of rows. For a fit by batches it is estimated from each batch.
        """
        return self.trace.losses

    @property
    def history(self) -> xr.Dataset:
        """Evidence (or bound), log posterior and iterations of the approximation, for each `iteration`.

        For a fit by batches: log posterior and share of points with a reduced site, for each `step`.
        """
        return datasets.history(self.trace)

    @property
    def iterations_per_epoch(self) -> int:
        """Number of iterations, or of steps of a fit by batches, in an epoch."""
        return self.trace.per_epoch

    @property
    def inducing(self) -> xr.DataArray:
        """Inducing inputs (inducing, column); (class, inducing, column) if functions have different inducing inputs.

        For a fit by active rows, the inputs of these rows.
        """
        return datasets.inducing(self.classifier, self.inducing_inputs)

    @property
    def inducing_inputs(self) -> Array:
        """Inducing inputs as an array (1 or c, M, d)."""
        return self.log_posterior.anchors(self.trace.best.theta, self.solution)

    @property
    def active(self) -> xr.Dataset:
        """Active rows in the order of their choice, by `inclusion`.

        `row` is the position in the data, from 0. `score` is the score with which the row was chosen, NaN for the first
        rows and for rows chosen at random. `label` is the observation, `input` (inclusion, column) the inputs. `site`
        is True if the row has a site. With several functions it is (inclusion, class); with `sites="separate"` a row
        may have sites for some functions only. Coords of the points of the model are included.
        """
        return self.log_posterior.active(self.trace.best.theta, self.solution)

    # Latent functions at the fitted rows.

    @property
    def latent(self) -> xr.Dataset:
        """Posterior mean (point, class) and covariance (point, class, class) of the fitted latent values.

        `sd` (point, class) is the standard deviation of the values minus their mean over functions. If a point has one
        latent function, and the model has no axis for functions, the variables are `mean` and `variance` (point).
        """
        found = datasets.of_points(self.classifier, *self.latent_moments(), named=self.rows is None)
        return self.classifier.in_axes(found, str(found["mean"].dims[0]))

    @one_blas_thread()
    def latent_moments(self, gp: Gp = None) -> tuple[Array, Array]:
        """Return posterior moments as arrays with an axis of latent functions: mean (n, c), covariance (n, c, c).

        `gp` are the processes of the latent values, if their prior cannot be read from the graph of the model.
        """

        def parts() -> Iterator[tuple[Array, Array]]:
            for functions in self.functions(gp):
                n, c = functions.n_points, functions.n_functions
                mean, cov = np.empty((n, c)), np.empty((n, c, c))
                for rows in row_blocks(n, c * max(functions.size, c)):
                    of_rows, cov[rows] = functions.at_rows(rows)
                    mean[rows] = of_rows.T
                for rows, new_rows in vectors:
                    new = functions.at_rows_of(new_rows).at(RowsOfData(np.arange(rows.stop - rows.start)))
                    mean[rows], cov[rows] = new.mean.T, new.cov
                yield mean, cov

        # If a vector has correlated noise, the model conditions an entry on other entries. Marginal moments are then
        # computed by a prediction at these entries.
        data, vectors = self.log_posterior.space.data, []
        for part in self.classifier.each:
            if part.axes is not None and part.axes.vectors:
                own = array_at_new_rows(self.classifier.part(part.response, "latent"), {}, data)
                vectors.append((part.rows, own.prior.at_new_rows(None, data)))

        return total_covariance(self.hyper_posterior.weights, parts())

    def functions(self, gp: Gp = None) -> Iterator[LatentFunctions]:
        """Yield the latent functions given each node; `gp` as in `predict`."""
        hyper, gps = self.hyper_posterior, as_gps(gp)
        return (hyper.log_posterior.latent(node.theta, solution, gps) for node, solution in hyper.solutions())

    @one_blas_thread()
    def joint_latent_moments(self, points: Sequence[int]) -> tuple[Array, Array]:
        """Return joint mean (m, c) and covariance (m, c, m, c) of latent values, by positions of points.

        `latent_moments` returns no covariances between points.

        Raises
        ------
        ValueError
            If a position is outside 0, …, n − 1.
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
        """Return the observations of all fitted rows, (n,); `gp` as in `predict`."""
        return self.log_posterior.observed(as_gps(gp))

    def fitted_inputs(self, gp: Gp = None) -> Array:
        """Return the fitted inputs (n, d); `gp` are the processes of the latent values, if given.

        If the rows came from `data=...` and the fit was read from a file, raise a ValueError: the file does not contain
        rows.
        """
        return self.log_posterior.inputs(as_gps(gp))

    def _generator(self, random_seed: Any) -> np.random.Generator:
        return np.random.default_rng(self._random.randint(2**30) if random_seed is None else random_seed)

    @cached_property
    def _random(self) -> np.random.RandomState:
        return np.random.RandomState(self.seed)
