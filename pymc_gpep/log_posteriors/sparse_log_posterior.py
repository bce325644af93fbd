"""Log posterior with inducing inputs, and the base class of log posteriors without a covariance matrix of all rows.

The base class computes prior moments of blocks of rows. The posterior of inducing values, or of latent values of a few
rows, determines the latent functions.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from pymc_gpep.approximations.methods import SPARSE_APPROXIMATIONS
from pymc_gpep.approximations.solution import Convergence, Neighbours
from pymc_gpep.approximations.sparse_ep import Number, Solved, SparseApproximation, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.memory_check import check_memory
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters, checked_labels
from pymc_gpep.log_posteriors.latent_functions import DistanceToFit, LatentFunctions, NewRows
from pymc_gpep.log_posteriors.log_posterior import Gps, LogPosterior, StoredFit
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.processes.processes import inputs_by_name
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import LikelihoodAtNewRows
from pymc_gpep.rows.rows import Rows, column_deviations
from pymc_gpep.solvers.inducing import Block, InducingWhitening, row_blocks
from pymc_gpep.solvers.problem import from_start_or_cold
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened, WhitenedPosterior

OVER_FITTED = (
    "Inducing inputs were fitted to the labels, so this evidence is too high. Do not compare it with the evidence for "
    "fixed inducing inputs or for all rows."
)
"""Warning about the evidence of an EP fit with learned inducing inputs."""

FEW = 6
"""A file stores the prior covariance of this number of inputs. A loaded model must have the same covariance."""

_PLACES, _MANY = 20, 400  # A sample of the rows has `_MANY` rows in total, from `_PLACES` positions.
_SOME = 200  # `among_fitted` uses about this number of fitted rows.
_INDEPENDENT = (
    "The sites of this fit treat the functions of a point as independent, so leave-one-out is off by a tenth or "
    'more. Fit with sites that couple them (sites="nested" of "sparse_ep" without batches, sites="coupled" of "ivm"), '
    "or hold out rows, and score fit.predict(Xtest) on them."
)


class AnchoredPosterior(Protocol):
    """Posterior of values of the latent functions that predicts blocks of points."""

    @property
    def size(self) -> int:
        """Number of values of each function that determine the posterior."""

    @property
    def as_inducing(self) -> InducingPosterior:
        """Return the same posterior as a posterior of inducing values."""

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Return posterior means (c, m) and covariances (m, c, c) at m points, from the prior moments `block`."""


class BlockFunctions(LatentFunctions):
    """Latent functions from the posterior of M values of each function, for example of inducing values.

    Parameters
    ----------
    log_posterior : BlockLogPosterior
    x : array
        A flat vector.
    solution : SparseSolution, ActiveSolution or BatchSolution
        The solution at this vector.
    gps : tuple of pm.gp.Latent or None
    """

    def __init__(self, log_posterior: "BlockLogPosterior", x: Array, solution: Any, gps: Gps) -> None:
        self._log_posterior, self._x, self._solution, self._gps = log_posterior, x, solution, gps
        self._blocks, self._posterior = log_posterior.blocks(gps), log_posterior.posterior(solution)
        self._prior = log_posterior.prior_at(x, gps, solution)
        self.n_functions, self.n_points, self.size = self._prior.n_functions, self._prior.n_points, self._posterior.size

    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Array:
        if self._blocks.effect_rows:
            return self._blocks.effect_rows.new_rows(x, data)
        return inputs_by_name(x, data, self._blocks.named, self._blocks.rows.n_inputs)

    @property
    def takes(self) -> Collection[str]:
        if self._blocks.effect_rows:
            return self._blocks.effect_rows.takes
        return () if self._blocks.named is None else (str(self._blocks.named.name),)

    @cached_property
    def likelihood(self) -> Likelihood:
        return self._log_posterior.likelihood_at(self._x, self._blocks.rows.n_rows)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        return self._log_posterior.observed(self._gps)

    @cached_property
    def _own_prior(self) -> DensePrior:
        """Prior of the latent values at the points of the model."""
        log_posterior = self._log_posterior
        check_memory(log_posterior.classifier, "fit.mean, as fit.std and fit.cov,")
        moments = prior_moments(log_posterior.classifier, log_posterior.space.data)(log_posterior.point(self._x))
        return DensePrior(moments.k, moments.mean)

    @property
    def own(self) -> Array:
        return self._prior.inducing().diagonal(axis1=1, axis2=2)

    def _block(self, inputs: Array) -> Block:
        return self._blocks.block(self._prior.point, self._prior.z, inputs)

    def at(self, inputs: Array) -> NewRows:
        block = self._block(inputs)
        return NewRows(*self._posterior.predict(block), block)

    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        return self._posterior.predict(self._prior.block(rows))

    def left_out(self) -> Iterator[LeftOut]:
        found = self._log_posterior.left_out(self._x, self._solution, self._gps)
        if found is None:
            raise NotImplementedError(_INDEPENDENT)
        return found

    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        raise NotImplementedError(
            "loo(refit_above=...) fits rows again by a method that works on all latent values together. Leave "
            "refit_above out, or hold out rows, and score fit.predict(Xtest) on them."
        )

    def among_fitted(self) -> DistanceToFit:
        z = self._prior.z
        try:
            some = self._blocks.rows.inputs(slice(0, min(_SOME, self.n_points)))
        except ValueError:  # A fit from a file may be without its rows.
            some = z[0]
        block = self._block(some)
        same = (z[:, :, None] == some[:, : z.shape[-1]]).all(axis=-1)
        return DistanceToFit(np.where(same, np.nan, block.cross).swapaxes(1, 2), block.variance, self.own)

    def _at_model(self) -> Block:
        return self._block(self._log_posterior.own_inputs(self._gps))

    def _linear(self, rotated: NDArray[np.bool_]) -> tuple[Array, list[Array], list[Array], Array]:
        """Return m, B, C and the mean of v for latent values f = m + Bᵀv + e with inducing values v.

        Here m is the prior mean, C the prior covariance, and e ~ N(0, C − BᵀB) the residual given inducing values. For
        `rotated` functions z = L⁻¹ (f − m) replaces f, where L Lᵀ = C. The covariance of z is the identity.
        """
        prior, posterior = self._own_prior, self._posterior.as_inducing
        features = posterior.whitening.features(self._at_model())
        maps, covariances, mean = [], [], prior.mean.copy()
        for k, own in enumerate(posterior.whitening.owner(self.n_functions)):
            w, covariance = features.w[own], prior.k[k % len(prior.k)]
            if rotated[k]:
                w = solve_triangular(prior.roots[k % len(prior.k)], w.T, lower=True, check_finite=False).T
                covariance, mean[k] = np.eye(len(covariance)), 0.0
            maps.append(w)
            covariances.append(covariance)
        return mean, maps, covariances, posterior.whitened.mean

    def _effects(self) -> tuple[Array, Array]:
        """Return mean (1, p) and a root R (p, ·) of the covariance R Rᵀ of the p standard normals of effects."""
        posterior = self._posterior.as_inducing
        own = slice(posterior.whitening.n_inducing, None)
        return posterior.whitened.mean[:, own], posterior.whitened.root[0][:, own].T

    def whitened(self) -> tuple[Array, Array]:
        """Return moments of z, see `LatentFunctions`; for a process plus effects, only z of the effects."""
        if self._blocks.effect_rows:
            centre, root = self._effects()
            return centre, (root * root).sum(axis=1)[None]
        mean, maps, covariances, v = self._linear(np.full(self.n_functions, True))
        _, explained = self._posterior.as_inducing.whitened.moments(maps)
        rest = [c.diagonal() - (b * b).sum(axis=0) for b, c in zip(maps, covariances, strict=True)]
        variance = explained.diagonal(axis1=1, axis2=2).T + np.array(rest)
        return mean + np.stack([own @ b for own, b in zip(v, maps, strict=True)]), np.maximum(variance, 0.0)

    def marginals(self) -> tuple[Array, Array]:
        mean, cov = self._posterior.predict(self._at_model())
        return mean, cov.diagonal(axis1=1, axis2=2).T

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return a covariance, see `LatentFunctions`; for a process plus effects, only of z of the effects."""
        if self._blocks.effect_rows:
            _, root = self._effects()
            return (root @ root.T)[None, :, None]
        _, maps, covariances, _ = self._linear(rotated)
        joint = self._posterior.as_inducing.whitened.joint_covariance(maps)
        for k, (b, covariance) in enumerate(zip(maps, covariances, strict=True)):
            joint[k, :, k] += covariance - b.T @ b
        return joint

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws of f and z, see `LatentFunctions`; for a process plus effects, only z of the effects."""
        if self._blocks.effect_rows:
            v = self._posterior.as_inducing.whitened.draw(rng, count)
            return np.empty((count, self.n_functions, 0)), v[..., self._posterior.as_inducing.whitening.n_inducing :]
        _, maps, covariances, _ = self._linear(np.full(self.n_functions, True))
        v = self._posterior.as_inducing.whitened.draw(rng, count)
        z = np.empty((count, self.n_functions, maps[0].shape[1]))
        for k, (b, covariance) in enumerate(zip(maps, covariances, strict=True)):
            values, vectors = np.linalg.eigh(covariance - b.T @ b)
            noise = rng.standard_normal((count, len(values))) * np.sqrt(np.maximum(values, 0.0))
            z[:, k] = v[:, k] @ b + noise @ vectors.T
        return self._own_prior.latent(z), z

    def standard_normals(self, f: Array) -> Array:
        """Return z = L⁻¹ (f − m) (s, c, n) for latent values f with prior mean m and prior covariance L Lᵀ."""
        prior, z = self._own_prior, np.empty_like(f)
        for k in range(self.n_functions):
            apart = (f[:, k] - prior.mean[k]).T
            z[:, k] = solve_triangular(prior.roots[k % len(prior.k)], apart, lower=True, check_finite=False).T
        return z

    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        posterior = self._posterior.as_inducing
        v = posterior.whitened.draw(rng, count)
        n = self.n_points if inputs is None else len(inputs)
        for rows in row_blocks(n, self.n_functions * max(self.size, count)):
            block = self._prior.block(rows) if inputs is None else self._block(inputs[rows])
            yield rows, posterior.draw_at(rng, v, block)


class BlockLogPosterior(LogPosterior):
    """Log posterior if latent values at anchors determine all functions. Anchors are inducing inputs or active rows.

    Parameters
    ----------
    space : Hyperparameters
    blocks : InducingBlocks or None
        Prior moments of blocks, with the fitted rows. None if the model determines them (fit from a file without `gp`).
    rows : Rows, optional
        Fitted rows, if they are not the rows of the model.
    """

    def __init__(self, space: Hyperparameters, blocks: InducingBlocks | None, rows: Rows | None) -> None:
        self.space = space
        self._blocks = blocks
        self._rows = rows
        self._made: dict[Gps, InducingBlocks] = {}

    @property
    def rows(self) -> Rows | None:
        return self._rows

    @abstractmethod
    def anchors(self, x: Array, solution: Any = None) -> Array:
        """Return the anchors (1 or c, M, d): one set for all functions, or a set for each function."""

    @abstractmethod
    def posterior(self, solution: Any) -> AnchoredPosterior:
        """Return the posterior of a solution; raise a ValueError if the solution has no posterior."""

    @abstractmethod
    def left_out(self, x: Array, solution: Any, gps: Gps) -> Iterator[LeftOut] | None:
        """Yield leave-one-out moments of all rows; None if sites treat functions as independent."""

    def blocks(self, gps: Gps = None) -> InducingBlocks:
        """Return prior moments of blocks, with the fitted data."""
        if gps is None and self._blocks is not None:
            return self._blocks
        if gps not in self._made:
            self._made[gps] = InducingBlocks(self.classifier, gps, self.space.data, rows=self._rows)
        return self._made[gps]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels of all rows, (n,); empty if each worker reads the labels of its rows."""
        return checked_labels(self.blocks().rows, self.classifier.likelihood_model, self.classifier.n_functions)

    def prior_at(self, x: Array, gps: Gps = None, solution: Any = None) -> PriorAt:
        """Return the prior and the anchors at a flat vector."""
        return PriorAt(self.blocks(gps), self.point(x), self.anchors(x, solution))

    def likelihood_at(self, x: Array, n_points: int) -> Likelihood:
        """Return the likelihood of n points, at the hyperparameters of a flat vector."""
        return LikelihoodAtNewRows(self.classifier, n_points, self.space.data)(self.point(x))

    def covariance(self, x: Array) -> tuple[Array, NDArray[np.int64]]:
        rows = self.blocks().rows
        # Rows may be sorted, so the sample has equal numbers of rows from several positions.
        places = np.linspace(0, rows.n_rows, _PLACES + 1).astype(int)
        some = [slice(a, min(a + _MANY // _PLACES, b)) for a, b in pairwise(places) if a < b]
        inputs = np.concatenate([rows.inputs(each) for each in some])
        labels = np.concatenate([rows.labels(each) for each in some])
        return self.blocks().block(self.point(x), inputs[None], inputs).cross, labels

    def few_prior(self, x: Array) -> Array:
        return self.blocks().inducing(self.point(x), self.anchors(x)[:, :FEW])

    def inputs(self, gps: Gps = None) -> Array:
        rows = self.blocks(gps).rows
        return rows.inputs(slice(0, rows.n_rows))

    def observed(self, gps: Gps = None) -> NDArray[np.int64]:
        rows = self.blocks(gps).rows
        return rows.labels(slice(0, rows.n_rows))

    def latent(self, x: Array, solution: Any, gps: Gps = None) -> BlockFunctions:
        return BlockFunctions(self, x, solution, gps)

    def own_inputs(self, gps: Gps) -> Array:
        """Return the inputs (n, d) of the points of the model."""
        own = self.blocks(gps) if self._rows is None else InducingBlocks(self.classifier, gps, self.space.data)
        return own.rows.inputs(slice(0, own.rows.n_rows))

    def count(self, anchors: Array) -> str:
        """Return the number of anchors as text, for a message."""
        sets, size, _ = anchors.shape
        shared = "" if self.classifier.n_functions == 1 else " for each function" if sets > 1 else " for all functions"
        return f"{size} {self.by}{shared}"


class SparseLogPosterior(BlockLogPosterior):
    """Log posterior log p(θ, Z | y) up to a constant, with its gradient. Inducing inputs Z have a flat prior.

    A flat vector contains unconstrained θ, followed by Z if inducing inputs are learned. The unit of a column of Z is
    the standard deviation of this column in the inputs of the model.

    Parameters
    ----------
    space : Hyperparameters
    approximator : SparseApproximation
    blocks : InducingBlocks or None
        Prior moments of blocks. None if the model determines them (fit from a file without `gp`).
    inducing : array (1 or c, M, d)
        Initial inducing inputs.
    learn : bool
        Whether inducing inputs are learned. Otherwise they are fixed.
    rows : Rows, optional
        Fitted rows, if they are not the rows of the model.
    units : array (d,), optional
        Units of the columns of inducing inputs, needed if the rows are unavailable.
    """

    kind: ClassVar[str] = "inducing"
    by: ClassVar[str] = "inducing inputs"

    def __init__(
        self,
        space: Hyperparameters,
        approximator: SparseApproximation,
        blocks: InducingBlocks | None,
        inducing: Array,
        learn: bool,
        rows: Rows | None = None,
        units: Array | None = None,
    ) -> None:
        super().__init__(space, blocks, rows)
        self.approximator = approximator
        self._inducing = inducing
        self._learn = learn
        if units is not None:
            self._units = units

    @classmethod
    def in_form(cls, classifier: GPClassifier) -> GPClassifier:
        return by_inducing(classifier)

    @classmethod
    def of_file(cls, file: StoredFit) -> Self:
        stored, space = file.posterior, file.space
        made = SPARSE_APPROXIMATIONS[file.attrs["approximation"]](**file.options)
        learned = file.best.theta.size > space.size
        units = stored["units"].values if learned else None
        return cls(space, made, file.blocks, stored["inputs"].values, learned, file.rows, units)

    @property
    def learns(self) -> str:  # type: ignore[override]  # it depends on the learned parameters
        return "Hyperparameters and inducing inputs" if self._learn else "Hyperparameters"

    @property
    def entries(self) -> int:
        return 2 * (self.classifier.n_functions * self._inducing.shape[1]) ** 2

    @property
    def number(self) -> str:
        of_model = self.classifier.likelihood_model, self.classifier.n_functions, self._inducing.shape[1]
        return self.approximator.number(*of_model).value.partition(" {")[0]

    @cached_property
    def _units(self) -> Array:
        deviations = column_deviations(self.blocks().places)
        return np.where(deviations > 0.0, deviations, 1.0)

    @cached_property
    def _likelihood(self) -> Likelihood:
        # Likelihoods of classes have equal parameters at all rows. More rows may be fitted than the model has.
        (parameters,) = evaluate([self.classifier.parameters])
        every_row = len(parameters), self.blocks().rows.n_rows
        return self.classifier.likelihood_model.given(np.broadcast_to(parameters[:, :1], every_row))

    def held(self, best: Evaluation) -> "SparseLogPosterior":
        if not self._learn:
            return self
        other = copy(self)
        other._inducing, other._learn = self.anchors(best.theta), False
        return other

    def flat(self, theta: Array) -> Array:
        """Return the flat vector of hyperparameters θ and the initial inducing inputs."""
        return np.concatenate([theta, (self._inducing / self._units).ravel()]) if self._learn else theta

    def anchors(self, x: Array, solution: Any = None) -> Array:
        """Return the inducing inputs; see `BlockLogPosterior`."""
        if not self._learn:
            return self._inducing
        return np.asarray(x[self.space.size :].reshape(self._inducing.shape) * self._units)

    def check_moments(self, x: Array) -> None:
        """Raise a ValueError if the prior covariance of inducing values is invalid at one point."""
        if bad := np.count_nonzero(~np.isfinite(self.prior_at(x).inducing())):
            raise ValueError(
                f"The prior covariance of the inducing values must be finite, but has {bad} values that are not. Check "
                "the initial hyperparameters of the model."
            )

    def posterior(self, solution: SparseSolution) -> InducingPosterior:
        if solution.posterior is None:
            raise ValueError(
                f"The fit has no posterior and cannot predict: {self.approximator.title} {solution.convergence}."
            )
        return solution.posterior

    def left_out(self, x: Array, solution: SparseSolution, gps: Gps) -> Iterator[LeftOut] | None:
        coupled = isinstance(self.posterior(solution).whitened, CoupledWhitened)
        if self.classifier.n_functions > 1 and not coupled:
            return None
        prior = self.prior_at(x, gps)
        if not solution.start.size:  # A file of a fit does not contain sites.
            labels = self.observed(gps)
            solution = self.approximator.solve(prior, labels, likelihood=self.likelihood_at(x, len(labels)))
        return self.approximator.left_out(prior, solution)

    def stored(self, x: Array, solution: SparseSolution) -> xr.Dataset:
        posterior = solution.posterior
        if posterior is None:
            raise ValueError(f"The fit has no posterior to save: {self.approximator.title} {solution.convergence}.")
        white, whitened, found = posterior.whitening, posterior.whitened, solution.convergence
        square = "inducing", "inducing_other"
        value = "value" if white.n_effects else "inducing"
        coupled = "function_and_inducing", "function_and_inducing_other"
        few = white.factor[:, :FEW]
        table = xr.Dataset(
            {
                "inputs": (("set_of_inputs", "inducing", "column"), self.anchors(x)),
                "factor": (("set", *square), white.factor),
                "mean": (("function", value), whitened.mean),
                "root": (("function", value, f"{value}_other") if whitened.root.ndim == 3 else coupled, whitened.root),
                "prior_covariance": (("set", "some", "others"), few @ few.swapaxes(1, 2)),
            },
            attrs={
                "jitter": white.jitter,
                "log_normaliser": whitened.log_normaliser,
                "value": solution.evidence,
                "floored": solution.floored,
            },
        )
        table = found.stored(table)
        return table.assign(units=("column", self._units)) if self._learn else table

    def restored(self, x: Array, table: xr.Dataset) -> SparseSolution:
        attrs, likelihood = table.attrs, self.classifier.likelihood_model
        factor = table["factor"].values
        whitened = WhitenedPosterior if table["root"].ndim == 3 else CoupledWhitened
        return SparseSolution(
            evidence=float(attrs["value"]),
            number=self.approximator.number(likelihood, *table["mean"].shape),
            posterior=InducingPosterior(
                InducingWhitening(factor, float(attrs["jitter"]), table["mean"].shape[1] - factor.shape[1]),
                whitened(table["mean"].values, table["root"].values, float(attrs["log_normaliser"])),
            ),
            labels=self.labels if self._rows is None else np.empty(0, np.int64),
            likelihood=likelihood,
            start=np.empty(0),
            convergence=Convergence.restored(table, self.approximator.tolerance),
            floored=int(attrs["floored"]),
        )

    def heading(self, trace: Trace, solution: SparseSolution, converged: bool) -> str:
        chosen = f"{self.approximator.chosen}{self.count(self.anchors(trace.best.theta))}"
        widened = f", {solution.floored} sites have precision 0" if solution.floored else ""
        number = solution.number.text(solution.evidence)
        return f"{self.name} ({chosen}): {number}, {self.state(converged)}{widened}."

    def ending(self, trace: Trace, solution: Callable[[], SparseSolution]) -> str:
        title = self.approximator.title
        if not trace.best.theta.size:
            return f"Nothing to learn; {title} {solution().convergence}."
        ended = f"{self.learns} {trace.outcome}"
        if trace.interrupted:  # After an interrupt the user waits, so do not solve again.
            return f"{ended}."
        found = solution()
        over = "" if not self._learn or found.number is Number.BOUND else f" {OVER_FITTED}"
        return f"{ended}; {title}, started near its solution, {found.convergence}.{over}"

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        if isinstance(start, Neighbours):
            start = start.predict(self.approximator, theta)
        prior = self.prior_at(theta)
        found = self._solve(prior, start)
        slopes = prior.row_slopes(found.bars()) if found.solution.converged else None
        return self._evaluated(theta, prior, found.solution, slopes)

    def after_one_sweep(self, theta: Array, start: Array) -> Evaluation:
        """Evaluate after one sweep of EP, starting from the sites at a near point.

        The value belongs to the sites before the sweep. If EP has converged, it equals the log posterior of the model.
        The gradient is exact for the updated sites.
        """
        prior = self.prior_at(theta)
        found = self.approximator.one_sweep().solved(prior, self.labels, start, likelihood=self._likelihood)
        went = found.solution.convergence.status in (CONVERGED, OUT_OF_ITERATIONS)
        return self._evaluated(theta, prior, found.solution, prior.row_slopes(found.bars()) if went else None)

    def _evaluated(
        self, theta: Array, prior: PriorAt, solution: SparseSolution, slopes: tuple[Array, ...] | None
    ) -> Evaluation:
        """Return an evaluation from a solution and sums of `PriorAt.row_slopes`; without slopes the gradient is NaN."""
        of_theta, of_inducing = np.full(self.space.size, np.nan), np.full(self._inducing.shape, np.nan)
        if slopes and solution.posterior is not None:
            product = solution.posterior.whitening.pull_factor(slopes[2])
            of_theta, of_inducing = (a + b for a, b in zip(slopes, prior.inducing_slopes(product), strict=False))
        log_prior, of_prior = self.space.log_prior_and_slope(self.theta(theta))
        gradient = of_theta + of_prior
        if self._learn:
            gradient = np.concatenate([gradient, (of_inducing * self._units).ravel()])
        return Evaluation(
            np.array(theta), solution.evidence + log_prior, gradient, solution.evidence,
            solution.convergence.iterations, solution.convergence.status, solution.start,
        )  # fmt: skip

    def solve(self, theta: Array, start: Array | None = None) -> SparseSolution:
        """Return the approximate posterior of the latent functions at one point; `start` as for an evaluation."""
        return self._solve(self.prior_at(theta), start if start is not None and start.size else None).solution

    def _solve(self, prior: PriorAt, start: Array | None) -> Solved:
        """Solve from `start`. If this solve does not converge, solve from a cold start.

        A variational bound is accepted without convergence, since a cold start would lead to a lower bound.
        """

        def is_good(found: Solved) -> bool:
            bound = found.solution.number is Number.BOUND and np.isfinite(found.solution.evidence)
            return found.solution.converged or bool(bound)

        return from_start_or_cold(
            lambda begin: self.approximator.solved(prior, self.labels, begin, likelihood=self._likelihood),
            start,
            is_good,
        )
