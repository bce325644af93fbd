"""The result of `pm.fit`: a PyMC `Approximation` whose latent values are Gaussian given the hyperparameters."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.backends.base import MultiTrace
from pymc.variational.approximations import SingleGroupApproximation

from pymc_gpep.approximations import Convergence, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.checks.corrected_evidence import CorrectedEvidence, corrected_evidence
from pymc_gpep.checks.importance import ImportanceCheck, ResampledDraws, importance_check, resampled_draws
from pymc_gpep.checks.learned import nothing_learned
from pymc_gpep.checks.leave_one_out import leave_one_out
from pymc_gpep.fits import datasets
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.prediction import predict, process_and_inputs
from pymc_gpep.fits.saving import to_datatree
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.structure import GPClassifier
from pymc_gpep.user_warnings import warn
from pymc_gpep.variational.group import GPGroup
from pymc_gpep.variational.trace_recorder import Recorder

if TYPE_CHECKING:
    from pymc_gpep.fits.left_out import CavityELPD

__all__ = ["GPApproximation", "warn_if_nothing_learned", "warn_unless_converged"]

_log = logging.getLogger("pymc")  # where pm.sample says what it does; what silences that silences this


class GPApproximation(SingleGroupApproximation):
    """Approximate posterior of a Gaussian process classifier, as `pm.fit` returns it.

    Hyperparameters are at the maximum of their approximate posterior (type-II MAP, in the unconstrained space) or, with
    another `hyper`, at weighted points that stand for it; given them the latent values are Gaussian. Everything else
    that a PyMC `Approximation` offers works as everywhere: `sample`, `mean`, `std`, `cov`, `mean_data`, `state`,
    `hist`, and `sample_node`, which draws from the Gaussian with this mean and covariance.

    Attributes
    ----------
    log_evidence : float
        Approximate log marginal likelihood at the maximum.
    hyperparameters : xarray.Dataset
        Their values at the maximum, on their natural scale.
    hyper_posterior : HyperPosterior
        The points that draws, moments and predictions average over, and the log evidence with the hyperparameters
        integrated out.
    nodes : xarray.Dataset
        These points on their natural scale, their weights and evidences.
    latent : xarray.Dataset
        Posterior `mean` (point, class) and `cov` (point, class, class) of the latent values; `mean` and `variance`
        (point) where a point has one latent function.
    history : xarray.Dataset
        Evidence, log posterior and solver iterations at each iteration of the optimiser, from the start that was kept.
    starts : xarray.Dataset
        Hyperparameters at which the optimiser ended from each start, and the log posteriors there.
    convergence : Convergence
        How the approximation itself ended, at the maximum.
    converged : bool
        Whether optimiser, approximation and integration over the hyperparameters all went well.
    message : str
        How the fit ended, in words.
    hist : array
        Negative log posterior at each iteration, what other methods call the loss.
    seconds : float
        Time that the fit took, without `compile_seconds`; NaN if unknown.
    compile_seconds : float
        Time that it took to make the graph of the log posterior, and what numba compiled meanwhile: much in the first
        fit on a machine, little later. Other backends' compiling counts as part of `seconds`. NaN if unknown.
    """

    _group_class = GPGroup

    fitted: Fit | None = None
    """What all else is read from; none before there is a fit."""
    _told: HyperPosterior | None = None

    def show(self, fit: Fit) -> None:
        """Become the face of a fit. What takes work is computed when it is asked for."""
        self.fitted = fit
        self.hist = fit.optimum.losses
        # Later gp.conditional and the like do not change a fit that exists.
        self._deterministics = list(self.model.deterministics)
        self.__dict__.pop("_recorder", None)
        self.groups[0].show(fit)

    iterations_per_epoch = 1
    """How often callbacks are called while all rows are gone through once."""

    def kept(self, why: str) -> "GPApproximation":
        """Return another one with the fit that this one shows now, as one that has ended for a reason."""
        return self.showing(replace(self._fit, optimum=replace(self.optimum, message=why)))

    def __deepcopy__(self, memo: dict[int, Any]) -> "GPApproximation":
        """Another one with the fit that this one shows now, which is a value; the model stays the same one."""
        return self.showing(self._fit)

    def showing(self, fit: Fit) -> "GPApproximation":
        """Return another one, with a fit of the same model."""
        approximation = GPApproximation(model=self.model, random_seed=0)
        approximation.show(fit)
        return approximation

    @property
    def _fit(self) -> Fit:
        if self.fitted is None:
            raise ValueError("There is no fit yet: pm.fit makes one, or the inference's own fit().")
        return self.fitted

    @property
    def log_posterior(self) -> LogPosterior:
        """Of the hyperparameters, with the approximation that it stands on."""
        return self._fit.log_posterior

    @property
    def optimum(self) -> Optimum:
        """Its maximum, and how that was found."""
        return self._fit.optimum

    @property
    def hyper_posterior(self) -> HyperPosterior:
        """The nodes that draws, moments and predictions average over."""
        return self._fit.hyper_posterior

    @property
    def solution(self) -> Solution:
        """The approximate posterior of the latent values at the maximum."""
        return self._fit.solution

    @property
    def seconds(self) -> float:
        """Time that the fit took, without `compile_seconds`."""
        return self._fit.seconds

    @property
    def compile_seconds(self) -> float:
        """Time that it took to make the graph of the log posterior, and what numba compiled meanwhile."""
        return self._fit.compile_seconds

    @property
    def classifier(self) -> GPClassifier:
        """What was read from the model."""
        return self._fit.classifier

    @property
    def log_evidence(self) -> float:
        """Approximate log marginal likelihood at the maximum."""
        return self._fit.log_evidence

    @property
    def lower_bound(self) -> float:
        """Lower bound of the log marginal likelihood that the Gaussian of the latent values gives at the maximum.

        Jensen's, E_q log p(y | f) − KL(q ‖ prior), for likelihoods of one latent function; NaN for others.
        """
        return self._fit.lower_bound

    @property
    def convergence(self) -> Convergence:
        """How the approximation ended, at the maximum."""
        return self._fit.convergence

    @property
    def converged(self) -> bool:
        """Whether optimiser, approximation and integration over the hyperparameters all went well."""
        return self._fit.converged

    @property
    def message(self) -> str:
        """How the fit ended, in words."""
        return self._fit.message

    @property
    def hyperparameters(self) -> xr.Dataset:
        """Hyperparameters at the maximum on their natural scale, with the model's dims and coords."""
        return datasets.hyperparameters(self._fit)

    @property
    def nodes(self) -> xr.Dataset:
        """Hyperparameters that draws, moments and predictions average over, on their natural scale.

        With dim `node`, and for each node the coordinates `weight`, `evidence` and `log_posterior` (unconstrained).
        """
        return datasets.nodes(self._fit)

    @property
    def latent(self) -> xr.Dataset:
        """Posterior mean (point, class) and covariance (point, class, class) of the latent values.

        `sd` (point, class) is of values less their mean over functions, which is what the likelihood sees of them.
        `mean` and `variance` (point) where a point has one latent function, and the model no axis for it.
        """
        return datasets.latent(self._fit)

    def latent_moments(self) -> tuple[Array, Array]:
        """The same as arrays with an axis of latent functions always: mean (n, c), covariance (n, c, c)."""
        return self._fit.latent_moments()

    @one_blas_thread()
    def joint_latent_moments(self, points: Sequence[int]) -> tuple[Array, Array]:
        """Mean (m, c) and covariance (m, c, m, c) of the latent values of m points, by their positions in the data.

        `latent_moments` has those of each point by itself.

        Raises
        ------
        ValueError
            If there is no point at one of the positions.
        """
        n = self.classifier.n_points
        if missing := [i for i in points if not 0 <= i < n]:
            raise ValueError(f"points must be positions from 0 to {n - 1}, but {missing} are among them.")
        return self._fit.joint_latent_moments(points)

    @property
    def starts(self) -> xr.Dataset:
        """Hyperparameters at which the optimiser ended from each start, with dim `start`, on their natural scale.

        With the coordinates `evidence` and `log_posterior` (unconstrained); NaN for starts at which the approximation
        failed. One for a fit with `starts=1`.
        """
        return datasets.starts(self._fit)

    @property
    def history(self) -> xr.Dataset:
        """Evidence, log posterior and solver iterations at each iteration of the optimiser."""
        return datasets.history(self._fit)

    @one_blas_thread()
    def predict(
        self,
        gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None = None,
        Xnew: ArrayLike | None = None,
        *,
        data: Mapping[str, ArrayLike] | None = None,
        observed: ArrayLike | None = None,
        probabilities: str | None = None,
        correction: str | None = None,
        tolerance: float = 5e-5,
        covariances: bool = True,
        dim: str = "new_point",
        progressbar: bool = True,
    ) -> xr.Dataset:
        """Predict latent functions and class probabilities at new inputs: `predict(Xnew)`, or `predict(gp, Xnew)`.

        Averaged over the nodes that stand for the hyperparameters.

        Parameters
        ----------
        gp : pm.gp.Latent or sequence of them, optional
            What made the latent values of the model; a list where classes have their own. Without it the covariance at
            new inputs is read from the graph of the model.
        Xnew : array (m, d)
            New inputs, with the columns that the model's have; a DataArray gives its first dim and coords to the
            result. Where the model computes inputs from its data, they are as the data.
        data : dict of str to array, optional
            What data of the model (`pm.Data`) are at the new points, where the likelihood is given them besides latent
            values: an exposure of counts, for example. A number stands for all points. What is the same at all points
            of the fit is taken to be so everywhere, and need not be given.
        observed : array (m,), optional
            What was observed at the new points, for `log_density`.
        probabilities : {"orthant", "inner_ep", "average"}, optional
            How class probabilities are computed from the Gaussian at a new point. For a multinomial probit:
            `"orthant"`, the default, the probability that the function of a class plus unit noise is the largest,
            accurate; `"inner_ep"`, the paper's own way, an approximation that is fast, normalised to sum to 1. For a
            softmax, and for two classes by one latent function: `"average"`, the expectation.
        correction : {"tk"}, optional
            For the Laplace approximation of a softmax: Tierney and Kadane's correction of the class probabilities (the
            nested EP paper's LA-TKP), by a Laplace approximation for every new point with every class. Moments of the
            latent functions are not corrected.
        tolerance : float
            Error allowed in the probabilities of `"orthant"` where there are five classes or more, of `"average"` with
            four or more. Where classes are independent given the data `"orthant"` is exact with any number of them.
        covariances : bool
            Whether to return `cov`. Of a million points with ten classes it takes 800 MB, all else 170 MB, and what is
            held on the way is the same for any number of points.
        dim : str
            Name of the new dimension.
        progressbar : bool
            Whether to show how many rows are done and the time that is left, where that takes more than a second.

        Returns
        -------
        xarray.Dataset
            `p` (new point, class), `mean` (new point, class) and `cov` (new point, class, class) of the latent
            functions, `mean` and `variance` (new point) where there is one, and `error` (new point): for `"orthant"`
            and `"average"` the estimated error of the probabilities, for `"inner_ep"` how far their sum was from 1
            before it was normalised, NaN with a correction. Where observations are no classes, instead of `p` and
            `error` the mean and the variance of an observation, `y_mean` and `y_variance` if its name is `y`. With
            `observed`, `log_density` (new point), the log of its predictive probability.

        Raises
        ------
        TypeError
            If `Xnew` is missing, or `gp` is something else.
        StructureError
            If `gp` is missing, and the graph of the model does not say what the prior is at other inputs; if there is
            one, and inputs that the model computes from its data would be others with it than without.
        ValueError
            If `gp` is not of this model, if `Xnew` has a wrong shape or values that are not finite, or if the way to
            compute the probabilities does not fit the likelihood; if what the likelihood is given besides latent values
            differs between points, and `data` does not say what it is at new ones.

        Warns
        -----
        UserWarning
            If rows of `Xnew` are further from all data than the length scales reach; it says how many.
        """
        gp, Xnew = process_and_inputs(gp, Xnew)
        return predict(
            self._fit,
            gp,
            Xnew,
            data=data,
            observed=observed,
            probabilities=probabilities,
            correction=correction,
            tolerance=tolerance,
            covariances=covariances,
            dim=dim,
            progressbar=progressbar,
        )

    @one_blas_thread()
    def loo(self, *, refit_above: float = np.inf, tolerance: float = 5e-5, progressbar: bool = True) -> "CavityELPD":
        """Leave-one-out cross-validation from this one fit (Vehtari, Mononen, Tolvanen, Sivula and Winther 2016).

        The log predictive density of each label given all the others, log ∫ p(y_i | f_i) q₋ᵢ(f_i) df_i, where q₋ᵢ is
        the cavity: the posterior of the latent values of a point with its own site left out.

        A fit that integrates over the hyperparameters, `hyper="ccd"` and so on, does so here too, with weights that
        leave the label out. With `hyper="map"` they are held at the maximum. What they owe to the label that is left
        out stays in then, and their uncertainty stays out: the result is a little too good, the more so the more
        hyperparameters there are for the data, and differences in this between models are differences in `elpd` as
        well.

        The other sites are held. That is right to first order in what a label does to the others' posterior, and wrong
        by some tenths at points with a large `p_loo_i`; these can be fitted again at little cost.

        Parameters
        ----------
        refit_above : float
            Points whose `p_loo_i` from the cavity is larger are left out by approximating the posterior of the others,
            at the same hyperparameters; that takes one solve for each, and each node. 0.3 is a good value, `-inf`
            refits all.
        tolerance : float
            Error to begin with in probabilities that have to be integrated by quasi-Monte Carlo: a multinomial probit
            with five classes or more, a softmax with four or more. Where it would be more than a hundredth of a
            probability, that is computed to a higher precision.
        progressbar : bool
            Whether to show how many rows are done and the time that is left, where that takes more than a second.

        Returns
        -------
        CavityELPD
            An `arviz.ELPDDataLOO` that `az.compare` takes beside results of `az.loo`. `elpd_i` and `p_loo_i`, the
            excess of a label's log density under the whole posterior, have the dims and coords of the labels. There
            are no draws, and so no Pareto k. `warning` is set where the fit, or one without a point, did not converge.
        """
        return leave_one_out(self._fit, refit_above=refit_above, tolerance=tolerance, progressbar=progressbar)

    @one_blas_thread()
    def importance(self, draws: int = 1000, *, random_seed: Any = None) -> ImportanceCheck:
        """Hold the fit against the exact posterior of the latent values, by Pareto-smoothed importance sampling.

        Draws from the Gaussian are weighted by the exact joint density over their own, and the tail of the weights is
        smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Its Pareto k says whether weighted draws stand for the
        posterior, and so whether the evidence and means that come with it can be held against the fit's own (Yao,
        Vehtari, Simpson and Gelman 2018). Hyperparameters are held at the fit's values: nothing is said about these.

        All latent values are weighted together. The more there are, the more easily that fails, for fits that are fair
        for each of them. What is known about the fit is said apart: by how much weights on blocks of points that move
        together change the probability of each point's label.

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
        ValueError
            If there are too few draws, or if the approximation failed, so that its draws have no density.
        """
        return importance_check(self._fit, self._fit.draw_at_maximum(draws, self._generator(random_seed)))

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
        TypeError
            If the approximation is no EP.
        ValueError
            If there are more latent values than `max_size`.
        """
        return corrected_evidence(self._fit.approximator, self._fit.solution, max_size=max_size)

    def to_datatree(self) -> xr.DataTree:
        """Make a DataTree of the fit, which xarray writes to a file; `gpep.from_datatree` makes a fit of it again.

        Returns
        -------
        DataTree
            With groups `hyperparameters`, the nodes on their natural scale; `latent`; `history`; `nodes`, what is
            needed to make the fit again; `observed_data`; and `chains` where the nodes were drawn by NUTS. Draws are
            not in it: what `sample` returns is a DataTree itself.

        Examples
        --------
        >>> fit.to_datatree().to_netcdf("fit.nc")  # or to_zarr
        >>> with model:  # declared as when it was fitted
        ...     fit = gpep.from_datatree(arviz.from_netcdf("fit.nc"))
        """
        return to_datatree(self._fit)

    def fitted_inputs(self, gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None) -> Array:
        """Inputs (n, d) that the model had when it was fitted; `gp` is what made its latent values, if given."""
        return self._fit.cross_covariance(gp).inputs

    @one_blas_thread()
    def sample(
        self,
        draws: int = 500,
        *,
        chains: int = 1,
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
        importance : bool
            Whether to resample draws by their Pareto-smoothed importance weights, see the method of this name, so that
            they follow the exact posterior of the latent values at these hyperparameters. As many draws as are asked
            for, but at least 1000, are weighted; each is then repeated or left out as its weight has it, in random
            order. Draws have equal weights again, but repeats add nothing, and ArviZ does not know of them: they are
            worth no more than `effective_size`. The result has a group `sample_stats`, with the `log_weight` that each
            draw had, not to be used again, and `pareto_k`, `effective_size` and `log_evidence` as `attrs`.
        random_seed : int, Generator or None
        return_inferencedata : bool
            Whether to return a DataTree like that of `pm.sample`, or a MultiTrace.
        **kwargs
            For `pm.to_inference_data`.

        Warns
        -----
        UserWarning
            If the verdict on the weights is "do not use": the draws then follow neither posterior.
        """
        if draws < 1 or chains < 1:
            raise ValueError(f"draws and chains must be at least 1, but are {draws} and {chains}.")
        self._tell_of_points()
        rng = self._generator(random_seed)
        weighted = self._draw_exactly(draws, chains, rng) if importance else None
        traces = [
            self._recorder.trace(
                self._recorded(weighted.chain(chain) if weighted else self._fit.draw(draws, rng)), chain
            )
            for chain in range(chains)
        ]
        multitrace = MultiTrace(traces)
        if not return_inferencedata:
            return multitrace
        kwargs["log_likelihood"] = False
        data = pm.to_inference_data(multitrace, model=self.model, **kwargs)
        data["posterior"].attrs |= {
            "approximation": self.log_posterior.approximator.name,
            "hyper": self.hyper_posterior.name,
            "log_evidence": self.log_evidence,
            "pymc_gpep_version": version("pymc_gpep"),
        }
        if weighted:
            data["sample_stats/log_weight"] = weighted.labelled_weights(data["posterior"].coords)
            data["sample_stats"].attrs |= weighted.attrs
        return data

    @property
    def sample_dict_fn(self) -> Any:
        """Function of (draws, random_seed) that draws values of the model's value variables."""

        def sample(draws: int = 100, *, random_seed: Any = None) -> dict[str, Array]:
            values = self._fit.draw(draws, np.random.default_rng(random_seed))
            return {name: values[name] for name in self.groups[0].ordering}

        return sample

    def __repr__(self) -> str:
        """Method, evidence and how the fit ended."""
        return str(self)

    def __str__(self) -> str:
        """Method, evidence and how the fit ended."""
        return super().__str__() if self.fitted is None else str(self.fitted)

    def _tell_of_points(self) -> None:
        """Say once of a fit whose hyperparameters are the same in every draw that trace plots of them will be flat."""
        names = ", ".join(rv.name for rv in self.classifier.hyperparameters)
        if names and len(self.hyper_posterior) == 1 and self._told is not self.hyper_posterior:
            _log.info(
                "Hyperparameters stay at their maximum: draws of %s are all the same, and traces of them flat lines. "
                "pm.fit(..., hyper='ccd') integrates over them.",
                names,
            )
        self._told = self.hyper_posterior

    def _generator(self, random_seed: Any) -> np.random.Generator:
        return np.random.default_rng(self.rng.randint(2**30) if random_seed is None else random_seed)

    def _draw_exactly(self, draws: int, chains: int, rng: np.random.Generator) -> ResampledDraws:
        """Draws of the fit at its maximum, resampled by their importance weights."""
        result = resampled_draws(self._fit, (chains, draws), rng)
        if not result.check.usable:
            warn(result.check.about_draws)
        return result

    def _recorded(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Of draws by name those that a trace is made from: value variables, and deterministic latent values."""
        rotated = [latent.f.name for latent in self.classifier.latents if latent.rotated]
        return {name: values[name] for name in [*self.groups[0].ordering, *rotated]}

    @cached_property
    def _recorder(self) -> Recorder:
        return Recorder(self.classifier, self.groups[0].group, self._deterministics, self.log_posterior.data)


def warn_unless_converged(approximation: GPApproximation) -> None:
    """Warn, with what happened, if a fit did not converge."""
    if not approximation.converged:
        warn(approximation.message, RuntimeWarning)


def warn_if_nothing_learned(approximation: GPApproximation) -> None:
    """Warn, with a reason and a remedy, if a fit that converged learned nothing."""
    if approximation.converged and (why := nothing_learned(approximation._fit)):
        warn(why)
