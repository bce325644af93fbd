"""The result of `pm.fit`: a PyMC `Approximation` whose latent functions are Gaussian given the hyperparameters."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import xarray as xr
from numpy.typing import ArrayLike
from pymc.variational.approximations import SingleGroupApproximation
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations import Convergence
from pymc_gpep.argument_types import check_switches, check_whole
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.checks.corrected_evidence import CorrectedEvidence, corrected_evidence
from pymc_gpep.checks.importance import ImportanceCheck, ResampledDraws, importance_check, resampled_draws
from pymc_gpep.checks.leave_one_out import leave_one_out
from pymc_gpep.checks.left_out_groups import leave_groups_out
from pymc_gpep.fits import datasets
from pymc_gpep.fits.effects import contrasts as contrast_moments
from pymc_gpep.fits.effects import effects, names_of_effects
from pymc_gpep.fits.group import GPGroup
from pymc_gpep.fits.groups_of_rows import groups_of_rows
from pymc_gpep.fits.mixture import total_covariance
from pymc_gpep.fits.prediction import predict_by, process_and_inputs
from pymc_gpep.fits.sample import (
    Conditional,
    draw_variables,
    recording,
    sampled_functions,
    sampled_variables,
)
from pymc_gpep.fits.saving import to_datatree
from pymc_gpep.fits.sensitivity import sensitivity
from pymc_gpep.fits.summary import checked_prob, summaries
from pymc_gpep.hyper import HyperPosterior, Maximum
from pymc_gpep.hyper.latent_functions import LatentFunctions
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.trace import Trace
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.cross_covariance import as_gps
from pymc_gpep.user_warnings import warn

if TYPE_CHECKING:
    from pymc_gpep.checks.left_out import CavityELPD

__all__ = ["Fit"]

_log = logging.getLogger("pymc")  # where pm.sample says what it does; what silences that silences this
_ENOUGH = 1000  # draws to weight where fewer are asked for

type Gp = pm.gp.Latent | Sequence[pm.gp.Latent] | None


class Fit(SingleGroupApproximation):
    """Approximate posterior of a Gaussian process model, as `pm.fit` returns it for every method of this package.

    Hyperparameters are at the maximum of their approximate posterior (type-II MAP, in the unconstrained space). With
    another `hyper` they are at weighted points that stand for it. Given the hyperparameters the latent functions are
    Gaussian. A fit is a value: nothing that is done later changes it. Results that take work are computed when the
    caller first asks for them.

    Everything else that a PyMC `Approximation` offers works as everywhere: `mean`, `std`, `cov`, `mean_data`, `state`
    and `sample_node`. The last draws from the Gaussian with this mean and covariance. These are of the latent values at
    the model's own points, in the form in which the model declares them. So they need matrices of that size.

    Parameters
    ----------
    log_posterior : LogPosterior
        The log posterior of the hyperparameters, with the model, its data and the method.
    trace : Trace
        History of the search for hyperparameters.
    hyper_posterior : HyperPosterior, optional
        The nodes that draws, moments and predictions average over; one at the maximum if not given.
    seconds, compile_seconds : float
        Time that the fit took without compiling, and time that compiling took; NaN if unknown.
    seed : int
        Seed of draws that are given no seed of their own.
    again : function, optional
        Function that goes on with a fit, see `refine`.
    solution : Solution, SparseSolution, ActiveSolution or BatchSolution, optional
        The approximate posterior at the maximum, where that is known.

    Attributes
    ----------
    log_posterior, trace, seconds, compile_seconds
        Values as given. `compile_seconds` is the time that it took to make the graph of the log posterior, with what
        numba compiled meanwhile. It is long in the first fit on a machine, and short later. Other backends' compiling
        counts as part of `seconds`.

    Examples
    --------
    >>> with model:
    ...     ep = pm.fit(method="nested_ep")
    >>> ep.log_evidence, ep.hyperparameters
    >>> ep.predict(gp, Xnew)["p"]  # class probabilities at new inputs
    >>> ep.sample(100)  # draws, as from pm.sample
    """

    _group_class = GPGroup

    def __init__(
        self,
        log_posterior: LogPosterior,
        trace: Trace,
        hyper_posterior: HyperPosterior | None = None,
        seconds: float = np.nan,
        compile_seconds: float = np.nan,
        seed: int = 0,
        again: Callable[..., "Fit"] | None = None,
        solution: Any = None,
    ) -> None:
        # PyMC's own constructor makes a group of all variables, which takes longer than a step of some fits: see
        # `groups`.
        self.log_posterior = log_posterior
        self.trace = trace
        self.seconds, self.compile_seconds = seconds, compile_seconds
        self.seed = seed
        self.include_transformed = False
        self._told = False
        self._hyper, self._again, self._known = hyper_posterior, again, solution
        # Later gp.conditional and the like do not change a fit that exists.
        classifier = log_posterior.classifier
        apart = set(classifier.implicit)
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

    def refine(self, n: int, *, callbacks: Sequence[Any] | None = None, progressbar: bool = True) -> "Fit":
        """Go on from the hyperparameters, and what else was learned, for at most `n` more iterations or steps.

        Data, backend and options are those of this fit, which stays as it is.

        Parameters
        ----------
        n : int
        callbacks : list of functions of (fit, losses, iteration), optional
        progressbar : bool

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
        return self._again(self, n, callbacks, progressbar)

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
        _ = self.log_posterior.chosen(self.solution)
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
        described = (self.classifier.described, self.log_posterior.algebra)
        return " ".join([f"{heading} {self.message}{integrated}", *filter(None, described)])

    def __repr__(self) -> str:
        """Method, its number, and how the fit ended."""
        return str(self)

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
        """
        hyper = self.hyper_posterior
        found = datasets.evaluated(self.log_posterior.space, hyper.nodes, "node")
        return found.assign_coords(weight=("node", hyper.weights))

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
        """What is known of each `iteration`: evidence (or bound), log posterior, and iterations of the approximation.

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
        inputs. Where the points of the model have coords, these are there as well.
        """
        chosen, solution = self.log_posterior.chosen(self.solution), self.solution
        inputs = self.inducing_inputs[0]
        return datasets.active(self.classifier, chosen, solution.labels, inputs, self.rows is None)

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

    @one_blas_thread()
    def predict(
        self,
        gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None = None,
        Xnew: ArrayLike | None = None,
        *,
        response: str | None = None,
        data: Mapping[str, ArrayLike] | None = None,
        new_levels: bool = False,
        observed: ArrayLike | None = None,
        probabilities: str | None = None,
        correction: str | None = None,
        tolerance: float = 5e-5,
        covariances: bool = True,
        dim: str | None = None,
        missing: bool = False,
        quantiles: float | Sequence[float] | None = None,
        intervals: float | None = None,
        progressbar: bool = True,
    ) -> xr.Dataset:
        """Predict latent functions and class probabilities at new rows: `predict(Xnew)`, or `predict(data={...})`.

        `predict(missing=True)` predicts the rows of the model whose responses are missing.

        Predictions are averages over the nodes that stand for the hyperparameters.

        Parameters
        ----------
        gp : pm.gp.Latent or sequence of them, optional
            Processes that made the latent values of the model; a list where classes have their own. Without it the
            covariance at new inputs is read from the graph of the model.
        Xnew : array (m, d)
            New inputs, with the columns that the model's have; a DataArray gives its first dim and coords to the
            result. Where the model computes inputs from its data, they are as the data.
        response : str, optional
            Name of the observed variable that is predicted, where the model has several.
        data : dict of str to array, optional
            Data of the model (`pm.Data`) at the new points. A sum of effects is made of such data, and a likelihood
            may be given some besides latent values, such as an exposure of counts. A number stands for all
            points. A value that all points of the fit share is kept, and need not be given.
        new_levels : bool
            Whether data that select levels of a group may name levels that the model does not have. Such a level has
            the prior of all others, given what they have in common.
        observed : array (m,), optional
            Observations at the new points, for `log_density`.
        probabilities : {"orthant", "inner_ep", "average"}, optional
            How class probabilities are computed from the Gaussian at a new point. For a multinomial probit
            `"orthant"`, the default, integrates accurately: a class is observed where its function plus unit noise is
            the largest. `"inner_ep"`, the paper's own way, is a fast approximation, normalised to sum to 1. For a
            softmax, and for two classes by one latent function, `"average"` is the expectation.
        correction : {"tk"}, optional
            Tierney and Kadane's correction of the class probabilities (the nested EP paper's LA-TKP), for the Laplace
            approximation of a softmax. It takes a Laplace approximation for every new point with every class. Moments
            of the latent functions are not corrected.
        tolerance : float
            Error allowed in the probabilities of `"orthant"` where there are five classes or more, of `"average"` with
            four or more. Where classes are independent given the data `"orthant"` is exact with any number of them.
        covariances : bool
            Whether to return `cov`. For a million points with ten classes `cov` takes 800 MB, all else 170 MB. The
            memory held on the way is the same for any number of points.
        dim : str, optional
            Name of the new dimension, `new_point` if not given. Rows of the model have their own.
        missing : bool
            Whether to predict the rows of the model without a response, which a fit leaves out. They have the
            coordinates of the model, or their positions in the data.
        quantiles : float or sequence of k floats, optional
            Levels between 0 and 1 of quantiles of an observation. Nine of ten new observations fall between those of
            `[0.05, 0.95]`. Classes have no quantiles.
        intervals : float, optional
            Posterior probability, such as 0.9, with which each class probability lies in its range. Moments of the
            latent values at all nodes are held meanwhile.
        progressbar : bool
            Whether to show how many rows are done and the time that is left, where that takes more than a second.

        Returns
        -------
        xarray.Dataset
            `p` (new point, class), `mean` (new point, class) and `cov` (new point, class, class) of the latent
            functions, `mean` and `variance` (new point) where there is one, and `error` (new point). For `"orthant"`
            and `"average"` that is the estimated error of the probabilities, for `"inner_ep"` how far their sum was
            from 1 before it was normalised. It is NaN with a correction. Where observations are not classes, the mean
            and the variance of an observation take the place of `p` and `error`. They are `y_mean` and `y_variance` if
            its name is `y`, with `quantiles` also `y_quantile` (new point, quantile). With `observed`, `log_density`
            (new point), the log of its predictive probability. With `intervals`, `p_interval` (new point, class,
            ci_bound), the ends of the ranges.

        Raises
        ------
        TypeError
            If `Xnew` is missing, or `gp` is something else.
        StructureError
            If `gp` is missing, and the graph of the model does not say what the prior is at other inputs. If there is a
            `gp`, and inputs that the model computes from its data would be others with it than without.
        ValueError
            If `gp` is not of this model, or `Xnew` has a wrong shape or values that are not finite. If the way to
            compute the probabilities does not fit the likelihood. If the likelihood is given other numbers at other
            points, and `data` does not have those of new ones.

        Warns
        -----
        UserWarning
            If rows of `Xnew` are further from all data than the length scales reach; it says how many.

        Examples
        --------
        >>> fit.predict(gp, Xnew)["p"]
        >>> fit.predict(data={"where": [0, 1]}, response="visits")  # of several observed variables
        """
        gp, Xnew = process_and_inputs(gp, Xnew)
        return predict_by(
            self.classifier,
            self.log_posterior,
            lambda: self.functions(gp),
            self.hyper_posterior,
            Xnew,
            response=response,
            data=data,
            new_levels=new_levels,
            observed=observed,
            probabilities=probabilities,
            correction=correction,
            tolerance=tolerance,
            covariances=covariances,
            dim=dim,
            missing=missing,
            quantiles=quantiles,
            intervals=intervals,
            progressbar=progressbar,
        )

    @one_blas_thread()
    def loo(
        self,
        *,
        groups: ArrayLike | str | Mapping[str, ArrayLike | str] | None = None,
        response: str | None = None,
        gp: Gp = None,
        refit_above: float = np.inf,
        draws: int = 1000,
        tolerance: float = 5e-5,
        pit: bool = False,
        progressbar: bool = True,
    ) -> "CavityELPD":
        """Leave-one-out cross-validation from this one fit (Vehtari, Mononen, Tolvanen, Sivula and Winther 2016).

        The log predictive density of each label given all the others is log ∫ p(y_i | f_i) q₋ᵢ(f_i) df_i. Here q₋ᵢ is
        the cavity: the posterior of the latent values of a point with its own site left out.

        A fit that integrates over the hyperparameters, `hyper="ccd"` and so on, does so here too, with weights that
        leave the label out. With `hyper="map"` they are held at the maximum. Their dependence on the label that is left
        out stays in then, and their uncertainty stays out. The result is a little too good, the more so the more
        hyperparameters there are for the data. Differences in this between models are differences in `elpd` as well.

        The other sites are held. This is right to first order in what a label does to the others' posterior. At points
        with a large `p_loo_i` it is wrong by some tenths; these can be fitted again at little cost.

        With `groups` all rows of a group are left out together. That is for rows to come of groups that the fit has not
        seen. The density is that of all labels of the group jointly, log ∫ ∏ p(y_i | f_i) q₋(f) df over its rows. Here
        q₋ is the posterior without their sites. It is computed by weighted draws of the fit and of q₋, half of each.

        Inducing inputs and active rows are held as well. Inducing values leave a part of a latent value unsaid. The
        effect of a row's own label on that part is not in `p_loo`, which compares with `predict` at the same inputs.

        Parameters
        ----------
        groups : array_like (n,), str or dict of these, optional
            A label for each row; rows with the same one are left out together. A string names data of the model that
            are such labels, as `"where"` of `alpha[where]`. With several observed variables it is a dict that has them
            by the name of each.
        response : str, optional
            Name of the observed variable whose rows are left out, one by one, where the model has several. If not given
            the rows of all are left out.
        gp : pm.gp.Latent or sequence of them, optional
            Processes that made the latent values, where the graph of the model does not say what their prior is.
        refit_above : float
            Points whose `p_loo_i` from the cavity is larger are left out by approximating the posterior of the others,
            at the same hyperparameters. Each such point takes one solve for each node. A good value is 0.3, and `-inf`
            refits all. Groups are not fitted again.
        draws : int
            How many draws of the latent values of each group its density is an average over; at least 100.
        tolerance : float
            Error to begin with in probabilities that have to be integrated by quasi-Monte Carlo. These are a
            multinomial probit with five classes or more and a softmax with four or more. Where the error would be more
            than a hundredth of a probability, the probability is computed to a higher precision.
        pit : bool
            Whether to return probability integral transforms as well: the probability, given all others, that an
            observation is at most what was seen. These are uniform numbers where the model is right. For a count the
            transform is drawn between the probabilities of less and of at most that (Czado, Gneiting and Held 2009).
            For a censored time it is drawn beyond the bound. Classes have no order, and no transforms.
        progressbar : bool
            Whether to show how many rows are done and the time that is left, where that takes more than a second.

        Returns
        -------
        CavityELPD
            An `arviz.ELPDDataLOO` that `az.compare` takes beside results of `az.loo`. `elpd_i` and `p_loo_i`, the
            excess of a label's log density under the whole posterior, have the dims and coords of the labels. There
            are no draws, and so no Pareto k. `warning` is set where the fit, or one without a point, did not converge.
            With `groups` they have a value for each group. Draws then have an `error_i`, and a `pareto_k`, which is
            above 0.7 where the density of a group is not known well.

        With `pit` there is `pit_i`.

        Raises
        ------
        TypeError
            If `pit` is asked for, and observations are classes or left out by groups.
        NotImplementedError
            If sites leave several functions of a row independent. Without the site of a row its functions do not move
            as they would without its label. If there is a `refit_above`, and the fit has no joint posterior of all
            latent values.
        ValueError
            If there is no posterior, or if the rows came from `data=...` and this fit from a file, which has none. If
            groups do not fit the rows, or are to be fitted again.

        Examples
        --------
        >>> fit.loo(groups="where")
        >>> fit.loo(groups=school)
        """
        check_switches(pit=pit)
        if groups is not None:
            if pit or response:
                asked = "pit=True" if pit else "response=..."
                raise TypeError(f"{asked} is for rows that are left out one by one: ask for it without groups.")
            return self._groups_left_out(groups, gp, refit_above, draws, tolerance, progressbar)
        if refit_above < np.inf:
            self.log_posterior.check_joint("loo(refit_above=...)")
        return leave_one_out(
            self.classifier,
            self.name,
            lambda: self.functions(gp),
            self.hyper_posterior.weights,
            len(self.labels(gp)),
            response=response,
            converged=self.converged,
            named=self.rows is None,
            refit_above=refit_above,
            tolerance=tolerance,
            pit=pit,
            progressbar=progressbar,
        )

    def _groups_left_out(
        self,
        groups: ArrayLike | str | Mapping[str, ArrayLike | str],
        gp: Gp,
        refit_above: float,
        draws: int,
        tolerance: float,
        progressbar: bool,
    ) -> "CavityELPD":
        self.log_posterior.check_joint("loo(groups=...)")
        if refit_above < np.inf:
            raise ValueError("refit_above is for rows; groups are not fitted again. Leave one of the two out.")
        check_whole("draws", draws, 100)
        return leave_groups_out(
            self.classifier,
            self.name,
            lambda: self.functions(gp),
            self.hyper_posterior.weights,
            groups_of_rows(self.classifier, groups, self.log_posterior.space.data),
            converged=self.converged,
            draws=draws,
            tolerance=tolerance,
            progressbar=progressbar,
        )

    @one_blas_thread()
    def importance(self, draws: int = 1000, *, random_seed: Any = None) -> ImportanceCheck:
        """Hold the fit against the exact posterior of the latent values, by Pareto-smoothed importance sampling.

        Draws from the Gaussian are weighted by the exact joint density over their own, and the tail of the weights is
        smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Its Pareto k says whether weighted draws stand for the
        posterior. If they do, the evidence and means that come with them can be held against the fit's own (Yao,
        Vehtari, Simpson and Gelman 2018). Hyperparameters are held at the fit's values: nothing is said about these.

        All latent values are weighted together. The more there are, the more easily that fails, for fits that are fair
        for each of them. The check describes the fit apart from this, by weights on blocks of points that move
        together. These show how much the probability of each point's label changes.

        Parameters
        ----------
        draws : int
            At least 100. The weights of 1000 draws take about as long as 1000 evaluations of the likelihood.
        random_seed : int, Generator or None

        Returns
        -------
        ImportanceCheck
            It prints as two sentences, one on weighted draws and one on the fit.

        Raises
        ------
        NotImplementedError
            If the fit has no joint posterior of all latent values.
        ValueError
            If there are too few draws, or if the approximation failed, so that its draws have no density.
        """
        self.log_posterior.check_joint("importance")
        return self._checked(self.draw_at_maximum(draws, self._generator(random_seed)))

    def _checked(self, values: Mapping[str, Array]) -> ImportanceCheck:
        mean = self.latent["mean"]
        f = self.log_posterior.space.variables.latent_values(values)
        return importance_check(self.name, self.solution, f, mean)

    @one_blas_thread()
    def corrected_evidence(self, *, max_size: int = 3000) -> CorrectedEvidence:
        """Correct the log evidence of an EP by what that neglects (Opper, Paquet and Winther 2013), at the maximum.

        The correction is of second order in the third cumulants of the tilted distributions, and what the next order
        has to add is its error. Class-independent EP and EP by quadrature are corrected by way of nested EP, from which
        they differ by more than a small correction.

        Parameters
        ----------
        max_size : int
            Largest number of latent values to accept: time grows with its cube, memory with its square.

        Returns
        -------
        CorrectedEvidence
            `evidence`, the `correction` in it, its estimated `error`, and whether it is `reliable`. It prints as one
            sentence.

        Raises
        ------
        NotImplementedError
            If the fit has no joint posterior of all latent values.
        TypeError
            If the approximation is not an EP.
        ValueError
            If there are more latent values than `max_size`.
        """
        self.log_posterior.check_joint("corrected_evidence")
        return corrected_evidence(self.log_posterior.approximator, self.solution, max_size=max_size)

    # Effects.

    @one_blas_thread()
    def effects(
        self,
        names: str | Sequence[str] | None = None,
        *,
        Xnew: ArrayLike | None = None,
        data: Mapping[str, ArrayLike] | None = None,
    ) -> xr.Dataset:
        """Return means and standard deviations of variables that are affine in what was integrated.

        These are integrated variables, and Deterministics that are sums, selections or multiples of them. They are
        averaged over the nodes that stand for the hyperparameters.

        Parameters
        ----------
        names : str or sequence of str, optional
            Names of variables of the model. Without them these are the integrated variables, and Deterministics in the
            shape of one of these that they are made of. Where a variable is there only to make such a Deterministic, as
            z of `pm.Deterministic("u", sigma * z)`, the Deterministic takes its place.
        Xnew : array (m, d), optional
            Inputs of the Gaussian processes that the variables are, or are made of: each term of a sum alone, as
            mgcv's `plot.gam` draws it.
        data : dict of str to array, optional
            Data of the model (`pm.Data`) that the variables are to have in place of those of the fit.

        Returns
        -------
        Dataset
            Each variable with its dims and coords, and in front of these `moment`, which is "mean" or "sd". At other
            inputs or data the axis of rows is `new_point`.

        Raises
        ------
        ValueError
            If a variable is a hyperparameter, not affine, or not in the model; if it cannot be had at `Xnew` or `data`.

        Warns
        -----
        UserWarning
            If the correlation of two effects is above 0.999, so that the data do not tell them apart.

        Examples
        --------
        >>> fit.effects("u").sel(moment="mean")
        >>> fit.effects("f", Xnew=grid)
        >>> fit.effects("field", data={"at": grid})
        """
        classifier = self.classifier
        if names is None and (Xnew is not None or data):
            raise ValueError("effects at other inputs or data needs names of variables.")
        if names is None:
            names = names_of_effects(classifier)
        self.log_posterior.check_effects("effects")
        return effects(self.hyper_posterior, [names] if isinstance(names, str) else list(names), Xnew, data)

    @one_blas_thread()
    def summary(
        self,
        names: str | Sequence[str] | None = None,
        *,
        ci_prob: float | None = None,
        random_seed: int = 0,
    ) -> pd.DataFrame:
        """Summarise effects and hyperparameters in a table of the form that `arviz.summary` has.

        Marginals of effects are skewed where the likelihood is. With up to 3000 latent values, standard deviations of
        `"ep"`, `"nested_ep"` and `"qep"` have a correction of second order, which `std_data` has not. Marginals of
        hyperparameters have the moments of the nodes, on the unconstrained scale.

        Parameters
        ----------
        names : str or sequence of str, optional
            Names of effects and hyperparameters. Without them, all effects, see `effects`, and all hyperparameters.
        ci_prob : float, optional
            Probability of the interval between equal tails; ArviZ's `stats.ci_prob` if not given.
        random_seed : int
            Seed of the points by which hyperparameters are averaged.

        Returns
        -------
        DataFrame
            Columns `mean`, `sd`, and the ends of the interval, such as `eti95_lb` and `eti95_ub`. Rows are named as
            ArviZ names them.

        Raises
        ------
        ValueError
            If a variable is not affine in what was integrated, or not in the model; if `ci_prob` is no probability.

        Examples
        --------
        >>> fit.summary(ci_prob=0.95)
        >>> fit.summary(["level", "sigma"])
        """
        self.log_posterior.check_effects("summary")
        hyper = self.hyper_posterior
        return summaries(hyper, [hyper.weights], *self._summarised(names), checked_prob(ci_prob), random_seed)[0]

    def _summarised(self, names: str | Sequence[str] | None) -> tuple[list[str], list[str]]:
        """Return names of effects and of hyperparameters, all of them for None."""
        known = [str(rv.name) for rv in self.classifier.hyperparameters]
        given = [*names_of_effects(self.classifier), *known] if names is None else names
        given = [given] if isinstance(given, str) else list(given)
        if not given:
            raise ValueError("names has no name. Leave it out for all variables.")
        return [name for name in given if name not in known], [name for name in given if name in known]

    @one_blas_thread()
    def sensitivity(
        self,
        name: str,
        priors: Mapping[str, TensorVariable],
        *,
        names: str | Sequence[str] | None = None,
        ci_prob: float | None = None,
    ) -> pd.DataFrame:
        """Say how far effects and hyperparameters move under other priors of a hyperparameter.

        The nodes of the fit are given other weights, so that nothing is fitted again. Only priors whose mass is where
        the nodes are can be judged. The penalised complexity prior of a standard deviation that is above u with
        probability a is `pm.Exponential.dist(-log(a) / u)`.

        Parameters
        ----------
        name : str
            A hyperparameter, such as the standard deviation of groups.
        priors : dict of str to distribution
            Other priors of it by names of the caller's choice.
        names : str or sequence of str, optional
            See `summary`.
        ci_prob : float, optional
            See `summary`.

        Returns
        -------
        DataFrame
            The table of `summary` under each prior, "as fitted" first, by `prior` and `variable`. `shift` is the change
            of a mean in standard deviations of the fit; `effective_nodes` is the number of nodes that count.

        Raises
        ------
        ValueError
            If the fit has one node, if there is no such hyperparameter, or if a prior has no density at any node. The
            same if a prior is discrete, has another shape than the hyperparameter, or is called "as fitted".
        TypeError
            If priors are no dict of distributions.

        Warns
        -----
        UserWarning
            If one node has nearly all of the weight under a prior.

        Examples
        --------
        >>> fit.sensitivity("sigma", {"wide": pm.HalfNormal.dist(5), "PC": pm.Exponential.dist(-np.log(0.01) / 2)})
        """
        self.log_posterior.check_effects("sensitivity")
        return sensitivity(self.hyper_posterior, name, priors, *self._summarised(names), checked_prob(ci_prob))

    @one_blas_thread()
    def contrast(self, contrasts: Mapping[str, Mapping[str, Any]]) -> xr.Dataset:
        """Return moments of linear combinations of effects, with their joint covariance.

        Parameters
        ----------
        contrasts : dict of str to dict
            Weights of variables by name, for each combination by a name of its own. Weights are an array in the shape
            of the variable, or a dict of labels to numbers. For a variable of two axes, labels of the first lead to
            dicts of labels of the second, or to an array along it. Labels that are left out have the weight 0.

        Returns
        -------
        Dataset
            `mean` and `sd` (contrast), and `cov` (contrast, contrast_other).

        Raises
        ------
        ValueError
            As `effects`, if weights have another shape, or if a variable has no entry of that label.

        Examples
        --------
        >>> fit.contrast({"north - south": {"u": {"north": 1, "south": -1}}})
        >>> fit.contrast({"red - blue, north": {"v": {"north": {"red": 1, "blue": -1}}}})
        """
        self.log_posterior.check_effects("contrast")
        return contrast_moments(self.hyper_posterior, contrasts)

    # Draws.

    @one_blas_thread()
    def sample(
        self,
        draws: int = 500,
        *,
        chains: int = 1,
        Xnew: ArrayLike | None = None,
        gp: Gp = None,
        importance: bool = False,
        random_seed: Any = None,
        return_inferencedata: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Draw independent samples from the approximate posterior, or by way of it from the exact one.

        Parameters
        ----------
        draws : int
            Number of draws in each chain, as in `pm.sample`. Hyperparameters are those of a node, drawn by its weight:
            at their maximum, the same in every draw, unless the fit was given another `hyper`.
        chains : int
            Number of chains to arrange them in; ArviZ compares results only where draws and chains agree.
        Xnew : array (m, d), optional
            Inputs at which to draw the latent functions, in place of the rows that were fitted. Draws with the same
            seed are of the same functions at any inputs: many rows can be drawn in parts. The part of a function
            between points that inducing inputs or rows do not determine is independent noise.
        gp : pm.gp.Latent or sequence of them, optional
            Processes that made the latent values, for `Xnew` or many rows, where the graph of the model does not say
            it.
        importance : bool
            Whether to resample draws by their Pareto-smoothed importance weights, see the method of this name. They
            then follow the exact posterior of the latent values at these hyperparameters. As many draws as are asked
            for, but at least 1000, are weighted. Each is then repeated or left out as its weight has it, in random
            order. Draws have equal weights again, but repeats add nothing, and ArviZ does not know of them: they are
            worth no more than `effective_size`. The result has a group `sample_stats`, with the `log_weight` that each
            draw had, not to be used again, and `pareto_k`, `effective_size` and `log_evidence` as `attrs`.
        random_seed : int, Generator or None
        return_inferencedata : bool
            Whether to return a DataTree like that of `pm.sample`, or a MultiTrace.
        **kwargs
            For `pm.to_inference_data`.

        Returns
        -------
        DataTree or MultiTrace
            Hyperparameters, latent values, and what the model makes of them. Responses that are missing are drawn from
            the likelihood, given the latent values of each draw. A model may declare latent values by standard normals.
            Where the posterior is known by inducing inputs or active rows, these are left out of models of more than
            1000 rows. Without them `pm.sample_posterior_predictive` draws latent values from their prior, unless the
            model has `gp.prior(..., reparameterize=False)`. Where rows came from `data=...`, or with `Xnew`, latent
            values have a dim `new_point`, and what depends on them is left out.

        Raises
        ------
        MemoryError
            If the draws would not fit into memory; the message says how many rows would.
        NotImplementedError
            If there is `importance`, and the fit has no joint posterior of all latent values.

        Warns
        -----
        UserWarning
            If the verdict on the weights is "do not use": the draws then follow neither posterior.
        """
        if draws < 1 or chains < 1:
            raise ValueError(f"draws and chains must be at least 1, but are {draws} and {chains}.")
        rng, hyper = self._generator(random_seed), self.hyper_posterior
        if importance:
            self.log_posterior.check_joint("sample(importance=True)")
        self._tell_of_points()
        if Xnew is not None and (self.classifier.implicit or self.classifier.parts):
            raise TypeError(
                "sample draws effects by name here, and no latent functions at other inputs: leave Xnew out, or "
                "average over them by fit.predict(Xnew, data={...})."
            )
        if Xnew is not None or (self.rows is not None and not self.classifier.implicit):
            if not return_inferencedata:
                raise ValueError("A MultiTrace has no place for latent functions at other inputs than the model's.")
            inputs = None if Xnew is None else next(self.functions(gp)).new_rows(Xnew, {})
            data = sampled_functions(hyper, draws, chains, rng, inputs, as_gps(gp))
            return self._noted(data)
        weighted = self._weighted((chains, draws), rng) if importance else None
        seed = int(rng.spawn(1)[0].integers(2**30))
        recorder, names, draw = recording(hyper, as_gps(gp), self._free, self._deterministics, seed)

        def values(chain: int) -> dict[str, Array]:
            drawn = weighted.chain(chain) if weighted else draw(draws, rng)
            return {name: drawn[name] for name in names}

        data = sampled_variables(hyper, recorder, values, chains, weighted, return_inferencedata, **kwargs)
        return self._noted(data) if return_inferencedata else data

    def _noted(self, data: xr.DataTree) -> xr.DataTree:
        """Note the log evidence on draws, but by batches, where it takes passes over all rows."""
        if self.trace.unit != "step":
            data["posterior"].attrs["log_evidence"] = self.log_evidence
        return data

    def _weighted(self, shape: tuple[int, int], rng: np.random.Generator) -> ResampledDraws:
        """Draws of the fit at its maximum, resampled by their importance weights."""
        pool = self.draw_at_maximum(max(shape[0] * shape[1], _ENOUGH), rng)
        check = self._checked(pool)
        if not check.usable:
            warn(check.about_draws)
        return resampled_draws(check, pool, shape, rng)

    def _tell_of_points(self) -> None:
        """Say once of a fit whose hyperparameters are the same in every draw that trace plots of them will be flat."""
        names = ", ".join(rv.name for rv in self.classifier.hyperparameters)
        if names and len(self.hyper_posterior) == 1 and not self._told:
            _log.info(
                "Hyperparameters stay at their maximum: draws of %s are all the same, and traces of them flat lines. "
                "pm.fit(..., hyper='ccd') integrates over them.",
                names,
            )
        self._told = True

    def _generator(self, random_seed: Any) -> np.random.Generator:
        return np.random.default_rng(self._random.randint(2**30) if random_seed is None else random_seed)

    @cached_property
    def _random(self) -> np.random.RandomState:
        return np.random.RandomState(self.seed)

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws (draws, ...) of all value variables, and of latent values that are deterministic, by name."""
        return draw_variables(self.hyper_posterior, draws, rng)

    def draw_at_maximum(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws like those of `draw`, with the hyperparameters at their maximum."""
        theta = self.trace.best.theta
        functions = self.log_posterior.latent(theta, self.solution)
        point = self.log_posterior.point(theta)
        return Conditional(self.log_posterior.space.variables, point, functions).draw(draws, rng)

    @property
    def sample_dict_fn(self) -> Any:
        """Function of (draws, random_seed) that draws values of the model's value variables."""

        def sample(draws: int = 100, *, random_seed: Any = None) -> dict[str, Array]:
            values = self.draw(draws, np.random.default_rng(random_seed))
            return {name: values[name] for name in self.groups[0].ordering}

        return sample

    def to_datatree(self) -> xr.DataTree:
        """Make a DataTree of the fit, which xarray writes to a file; `gpep.from_datatree` makes a fit of it again.

        Returns
        -------
        DataTree
            The group `hyperparameters` has the nodes on their natural scale. Other groups are `history`, `best` and
            `observed_data`, and for a dense fit `latent`. `nodes` and `posterior` have the values that are needed to
            make the fit again. `state` is there where steps over batches can go on from it, and `chains` where the
            nodes were drawn by NUTS. Draws are not in it: `sample` returns a DataTree itself. Rows that came from
            `data=...` are not in it either: it says where they were, and what checksum a few of them have.

        Raises
        ------
        ValueError
            If there is no posterior, since the approximation failed.

        Examples
        --------
        >>> fit.to_datatree().to_netcdf("fit.nc")  # or to_zarr
        >>> with model:  # declared as when it was fitted
        ...     fit = gpep.from_datatree(arviz.from_netcdf("fit.nc"))
        """
        seconds = self.seconds, self.compile_seconds
        latent = self.latent if self.log_posterior.joint else None
        return to_datatree(
            self.log_posterior,
            self.trace,
            self.hyper_posterior,
            self.solution,
            latent,
            converged=self.converged,
            message=self.message,
            seconds=seconds,
        )

    # The face of PyMC's approximations.

    @cached_property
    def groups(self) -> list[GPGroup]:
        """The one group of all free variables, made when it is first asked for."""
        group = GPGroup(None, model=self.model, random_seed=self.seed)
        group.__init_group__(self._free)
        group.include_transformed = self.include_transformed
        group.show(self.hyper_posterior)
        return [group]

    @cached_property
    def _scale_cost_to_minibatch(self) -> Any:
        return pytensor.shared(np.int8(1))

    if not TYPE_CHECKING:  # a type checker would find any attribute

        def __getattr__(self, name: str) -> Any:
            """Return attributes of PyMC's groups; called where there is no such attribute."""
            if hasattr(type(self), name):  # it has one, which is not to be had of this fit: say so again
                return object.__getattribute__(self, name)
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            return getattr(self.groups[0], name)
