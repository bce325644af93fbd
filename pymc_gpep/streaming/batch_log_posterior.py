"""Result of a fit by batches: log posterior, and posterior q(v) of whitened inducing values v, after the last step."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import xarray as xr
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from pymc_gpep.approximations.methods import SPARSE_APPROXIMATIONS
from pymc_gpep.approximations.site_rules import ScalarSites
from pymc_gpep.approximations.sparse_ep import SparseApproximation, sweep_of
from pymc_gpep.approximations.sparse_vi import point_averages
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import Gps, LogPosterior, StoredFit
from pymc_gpep.log_posteriors.sparse_log_posterior import FEW, OVER_FITTED, BlockLogPosterior, SparseLogPosterior
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import LikelihoodAtNewRows
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import InducedPrior, InducingWhitening, RowFeatures, whitening
from pymc_gpep.solvers.site_ep import site_of
from pymc_gpep.solvers.sparse_ep import SparseEPSweeps, SparseVISweeps, Tilted
from pymc_gpep.solvers.sparse_sweeps import LeftOut, SparseSweeps
from pymc_gpep.solvers.team import ALONE, Team, gather, one_blas_thread
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior, whitened_posterior
from pymc_gpep.streaming.memories import CAVITY_SHARE, STREAMING_METHODS, Memory
from pymc_gpep.streaming.rules import Rule, rule_for
from pymc_gpep.streaming.state import LeftOff

_ITERATIONS = 50  # Number of iterations that compute sites of rows from q.


class Recovered(NamedTuple):
    """Sites of all rows, computed from the posterior q(v) of a fit by batches."""

    sweeps: SparseSweeps
    """Sweeps over these sites, with the features of all rows."""
    sites: Array
    """Precisions and locations of the sites, (2, n, d)."""

    def log_normaliser(self) -> float:
        """Return the log normaliser of EP with these sites; NaN if a cavity is improper."""
        with np.errstate(all="ignore"):
            target, scale = np.empty_like(self.sites), np.empty(self.sites.shape[1:])
            went, evidence, _ = sweep_of(self.sweeps)(self.sites.copy(), target, scale)
        return evidence if went else np.nan


def recovered(
    prior: InducedPrior,
    whitening: InducingWhitening,
    posterior: WhitenedPosterior,
    rule: ScalarSites,
    likelihood: Likelihood,
    labels: NDArray[np.int64],
    team: Team = ALONE,
) -> Recovered:
    """Return the sites of all rows from the posterior q. At a fixed point of EP, q and the factors determine them.

    Parameters
    ----------
    prior : InducedPrior
    whitening : InducingWhitening
    posterior : WhitenedPosterior
        q(v).
    rule : ScalarSites
    likelihood : Likelihood
    labels : array (n,)
    team : Team
    """
    factors = rule.factors(likelihood, labels, prior.n_functions)
    sites = np.zeros((2, *factors.shape))
    features = RowFeatures(prior, whitening)
    for rows, block in features.blocks():
        pairs = [posterior.marginals(k, block.w[own]) for k, own in enumerate(features.owner)]
        functions = factors.functions[rows]
        mean, variance, prior_mean, rest = (
            np.take_along_axis(np.array(values).T, functions, axis=1)
            for values in (*zip(*pairs, strict=True), block.mean, block.rest[features.owner])
        )
        with np.errstate(all="ignore"):
            sites[:, rows] = _sites(factors.tilted, rows, mean, variance, prior_mean, rest)
    return Recovered(SparseEPSweeps(features, factors, team), sites)


def recovered_by_bound(
    prior: InducedPrior,
    whitening: InducingWhitening,
    posterior: WhitenedPosterior,
    likelihood: Likelihood,
    labels: NDArray[np.int64],
    team: Team = ALONE,
) -> Recovered:
    """Return sites of all rows for a variational bound, from average log likelihoods, as at a maximum of the bound."""
    averages = point_averages(likelihood, labels, prior.n_functions)
    sweeps = SparseVISweeps(RowFeatures(prior, whitening), averages, team)
    sites = np.zeros((2, *averages.shape))
    sweeps.match(sites.copy(), posterior, None, sites, np.empty(averages.shape))
    return Recovered(sweeps, sites)


def _sites(
    tilted: Callable[[slice, Array, Array], Tilted],
    rows: slice,
    mean: Array,
    variance: Array,
    prior_mean: Array,
    rest: Array,
) -> Array:
    """Return sites (2, B, d). They are computed by iterations of site = update(q / site), from sites of 0."""
    t, nu = np.zeros((2, *mean.shape))
    for _ in range(_ITERATIONS):
        keep = 1.0 - t * variance
        cavity_mean, cavity_variance = (mean - nu * variance) / keep, variance / keep
        found = tilted(rows, prior_mean + cavity_mean, rest + cavity_variance)
        gamma = np.maximum(found.gamma, 0.0)
        new, location = site_of(found.rho, gamma, cavity_mean, cavity_variance)
        bounded = np.minimum(new, (1.0 - CAVITY_SHARE) / variance)
        t, nu = bounded, np.where(new > bounded, location * bounded / new, location)
    return np.array([t, nu])


def average_loss(losses: Array) -> float:
    """Return the average loss of the successful steps; NaN without such steps."""
    known = losses[np.isfinite(losses)]
    return float(known.mean()) if known.size else np.nan


@dataclass(frozen=True, eq=False)
class StepTrace:
    """Trace of the steps of a fit by batches, see `pymc_gpep.log_posteriors.evaluation.Trace`.

    Attributes
    ----------
    read : function
        Function that returns the values of the state by name. It is called once, when the values are first used.
    settings : dict
        Settings, such as batch size, number of batches in an epoch, and seed.
    losses : array (steps,)
        Estimates of the negative log posterior; NaN for a failed step.
    floored : array (steps,)
        For each step, the share of points in the batch with a limited site precision.
    ended : str
        Description of the end of the steps.
    space : Hyperparameters
    interrupted : bool
    """

    read: Callable[[], Mapping[str, Array]]
    settings: Mapping[str, Any]
    losses: Array
    floored: Array
    ended: str
    space: Hyperparameters
    interrupted: bool = False
    remark: str = ""

    unit: ClassVar[str] = "step"
    agreement: ClassVar[str] = ""
    ends: ClassVar[tuple[Evaluation, ...]] = ()
    units: ClassVar[None] = None

    @property
    def first(self) -> Evaluation:
        """See `Trace`. The first evaluation is not stored: the last is returned."""
        return self.best

    @property
    def outcome(self) -> str:
        return self.ended

    @cached_property
    def values(self) -> Mapping[str, Array]:
        """Values of the state, by name."""
        return self.read()

    @property
    def per_epoch(self) -> int:
        return int(self.settings["per_epoch"])

    @property
    def columns(self) -> dict[str, Array]:
        return {"log_posterior": -self.losses, "floored": self.floored}

    @property
    def slopes(self) -> Array:
        """See `Trace`. All are NaN: steps compute only slopes of batches."""
        return np.full(self.losses.size, np.nan)

    def stored(self) -> xr.Dataset:
        return xr.Dataset({name: (self.unit, values) for name, values in self.columns.items()})

    def described(self) -> dict[str, Any]:
        return {
            "settings": json.dumps(dict(self.settings)),
            "trace_message": self.ended,
            "trace_remark": self.remark,
            "trace_interrupted": int(self.interrupted),
        }

    @classmethod
    def restored(cls, tree: xr.DataTree, space: Hyperparameters) -> Self:
        """Return the steps of a fit in a file."""
        left_off, attrs = LeftOff.of(tree), tree.attrs
        settings, values, losses, floored = left_off
        ended, remark = attrs["trace_message"], attrs["trace_remark"]
        return cls(lambda: values, settings, losses, floored, ended, space, bool(attrs["trace_interrupted"]), remark)

    def broken_off(self, why: str) -> Self:
        return replace(self, remark=f" {why[0].upper()}{why[1:]}.", interrupted=True)

    def ended_as(self, why: str) -> Self:
        values = self.values
        return replace(self, ended=why, read=lambda: values)

    @property
    def left_off(self) -> LeftOff:
        """State at which the steps stopped, from which another fit continues."""
        return LeftOff(self.settings, self.values, self.losses, self.floored)

    @property
    def converged(self) -> bool:
        """Whether all losses of the last epoch are finite. More steps may still be needed: see `history`."""
        last = self.losses[-self.per_epoch :]
        return bool(last.size) and bool(np.isfinite(last).all()) and not self.remark

    @property
    def loss(self) -> float:
        """Average loss of the last complete epoch, or of all steps before its end; NaN without successful steps."""
        steps = len(self.losses)
        end = steps - steps % self.per_epoch or steps  # Losses from two epochs would count some rows twice.
        return average_loss(self.losses[max(end - self.per_epoch, 0) : end])

    @cached_property
    def best(self) -> Evaluation:
        """See `Trace`. Hyperparameters are from the last step. Their log posterior is minus the average `loss`."""
        theta = self.values["theta"]
        value, unknown = -self.loss, np.full(theta.size, np.nan)
        evidence = value - self.space.log_prior(theta)
        return Evaluation(theta, value, unknown, evidence, len(self.losses), CONVERGED, np.empty(0))


class BatchLogPosterior(BlockLogPosterior):
    """Log posterior after the last step of a fit by batches; at other hyperparameters see `held`.

    Parameters
    ----------
    space : Hyperparameters
    method : str
    memory : Memory
    rule : Rule
    steps : StepTrace
    blocks : InducingBlocks or None
        Prior moments of the fitted rows; None in a fit that was read from a file without `gp`.
    rows : Rows, optional
        Fitted rows, if they replace the rows of the model.
    white : InducingWhitening, optional
        Whitening of the inducing values, if it is computed already.
    """

    kind: ClassVar[str] = "batches"
    by: ClassVar[str] = "inducing inputs"

    def __init__(
        self,
        space: Hyperparameters,
        method: str,
        memory: Memory,
        rule: Rule,
        steps: StepTrace,
        blocks: InducingBlocks | None,
        rows: Rows | None = None,
        white: InducingWhitening | None = None,
    ) -> None:
        super().__init__(space, blocks, rows)
        self.approximator = memory
        self.rule, self.steps = rule, steps
        self._method, self._white = method, white

    @classmethod
    def in_form(cls, classifier: GPClassifier) -> GPClassifier:
        return by_inducing(classifier)

    @classmethod
    def of_file(cls, file: StoredFit) -> Self:
        space, name = file.space, file.attrs["approximation"]
        steps = StepTrace.restored(file.tree, space)
        memory = {kind.name: kind for kind in STREAMING_METHODS[name]}[file.attrs["memory"]](**file.options)
        at_a_row = LikelihoodAtNewRows(space.classifier, 1, space.data)(space.point(steps.best.theta))
        rule = rule_for(memory.functional, steps.settings["sites"], at_a_row)
        return cls(space, name, memory, rule, steps, file.blocks, file.rows)

    @property
    def own_trace(self) -> StepTrace:
        return self.steps

    @property
    def name(self) -> str:
        return self._method

    def described(self) -> dict[str, Any]:
        return super().described() | {"memory": self.approximator.name}

    @property
    def entries(self) -> int:
        return 2 * self.classifier.n_functions * int(np.prod(self.steps.values["precision"].shape[1:]))

    @property
    def of_ep(self) -> bool:
        """Whether the sites are sites of EP."""
        return self.approximator.functional == "log normaliser"

    @property
    def has_evidence(self) -> bool:
        """Whether the log evidence is defined: it needs sites of EP for the exact likelihood."""
        return self.of_ep and self.rule.expresses.exact

    def held(self, best: Evaluation) -> LogPosterior:
        """See `LogPosterior`. The result is computed by sweeps over all rows, at fixed inducing inputs."""
        return SparseLogPosterior(
            self.space, self._sweeps(), self._blocks, self.anchors(best.theta), learn=False, rows=self._rows
        )

    def _sweeps(self) -> SparseApproximation:
        """Return the approximation for sweeps over all rows. Its fixed point is the limit of the steps."""
        name = "sparse_ep" if self.of_ep else "sparse_vi"
        kind = SPARSE_APPROXIMATIONS[name]
        given: dict[str, Any] = {"jitter": float(self.steps.values["jitter"])}
        made = kind(**given, sites=self.rule.expresses.name) if self.of_ep else kind(**given)  # type: ignore[call-arg]
        likelihood, c = self.classifier.likelihood_model, self.classifier.n_functions
        return made.named(likelihood, c, self.steps.values["location"].shape[1])

    @property
    def _n_effects(self) -> int:
        """Number of standard normals of effects."""
        values = self.steps.values
        return int(values["location"].shape[1] - values["inducing"].shape[1])

    def check_moments(self, x: Array) -> None:
        self.held(self.steps.best).check_moments(x)

    def __call__(self, x: Array, start: Any = None) -> Evaluation:
        """See `LogPosterior`. The evaluation takes sweeps over all rows."""
        return self.held(self.steps.best)(x, start)

    def solve(self, x: Array, start: Array | None = None) -> "BatchSolution":
        """See `LogPosterior`. The result is the solution after the last step, at any x."""
        return BatchSolution(self)

    def anchors(self, x: Array, solution: Any = None) -> Array:
        """Return the inducing inputs; see `BlockLogPosterior`."""
        return self.steps.values["inducing"] * self.steps.values["units"]

    def posterior(self, solution: "BatchSolution") -> InducingPosterior:
        if solution.posterior is None:
            ended = self.ending(self.steps, lambda: solution)
            raise ValueError(f"The fit has no posterior and cannot predict: {ended}")
        return solution.posterior

    def white(self) -> InducingWhitening | None:
        """Return the whitening of the inducing values; None if their covariance has no Cholesky factor."""
        if self._white is None:
            jitter = float(self.steps.values["jitter"])
            self._white = whitening(self.prior_at(self.steps.best.theta).inducing(), jitter, self._n_effects)
        return self._white

    def recovered(self, gps: Gps, posterior: InducingPosterior, team: Team) -> Recovered:
        """Return the sites of all rows, computed from the posterior q of the inducing values."""
        values, theta = self.steps.values, self.steps.best.theta
        prior = self.prior_at(theta, gps)
        given = prior, posterior.whitening, whitened_posterior(values["precision"], values["location"])
        of_rows = self.likelihood_at(theta, prior.n_points), self.observed(gps), team
        if not self.of_ep:
            return recovered_by_bound(*given, *of_rows)
        factors = self.rule.expresses()
        assert isinstance(factors, ScalarSites)
        return recovered(*given, factors, *of_rows)

    def left_out(self, x: Array, solution: "BatchSolution", gps: Gps) -> Iterator[LeftOut] | None:
        return None if self.classifier.n_functions > 1 else self._each_left_out(solution, gps)

    def _each_left_out(self, solution: "BatchSolution", gps: Gps) -> Iterator[LeftOut]:
        posterior = self.posterior(solution)
        with one_blas_thread(), gather(self.blocks(gps).rows.n_rows) as team:
            found = self.recovered(gps, posterior, team)
            yield from found.sweeps.left_out(found.sites, posterior.whitened)

    def stored(self, x: Array, solution: "BatchSolution") -> xr.Dataset:
        """See `LogPosterior`. The table has the state, from which another fit can continue."""
        table = self.steps.left_off.table
        if (white := self.white()) is None:
            return table
        few = white.factor[:, :FEW]
        return table.assign(
            factor=(("set", "inducing_value", "inducing_value_other"), white.factor),
            prior_covariance=(("set", "some", "others"), few @ few.swapaxes(1, 2)),
        )

    def restored(self, x: Array, table: xr.Dataset) -> "BatchSolution":
        if "factor" in table:
            jitter = float(self.steps.values["jitter"])
            self._white = InducingWhitening(table["factor"].values, jitter, self._n_effects)
        return BatchSolution(self)

    def heading(self, trace: Trace, solution: "BatchSolution", converged: bool) -> str:
        steps, per_epoch = len(trace.losses), trace.per_epoch
        number = f"{self.approximator.objective} {solution.objective:.4f}" if steps else "no steps yet"
        held_back = float(self.steps.floored[-per_epoch:].mean()) if steps else 0.0
        floored = f", {100 * held_back:.2g} % of points with a limited site" if held_back else ""
        evidence = ", which fit.log_evidence computes" if self.has_evidence else ""
        averaged = "the last whole epoch" if steps >= per_epoch else "all steps"
        chosen = f"sites={self.rule.expresses.name!r}, {self.count(self.anchors(trace.best.theta))}"
        return f"{self.name} ({chosen}): {number}, averaged over {averaged} (not the evidence{evidence}{floored})."

    def ending(self, trace: Trace, solution: Callable[[], "BatchSolution"]) -> str:
        settings, steps = self.steps.settings, len(trace.losses)
        epochs, warmup = steps / trace.per_epoch, int(settings["warmup"] or 0)
        stayed = bool(self.space.size) and epochs <= warmup and settings["warmup"] is not None
        still = f" Hyperparameters have their initial values (warmup={warmup} epochs)." if stayed else ""
        over = f" {OVER_FITTED}" if self.of_ep and settings["learn_inducing"] and epochs > warmup else ""
        return (
            f"{trace.outcome} after {steps} step{'' if steps == 1 else 's'} of {settings['batch_size']} rows, "
            f"{epochs:.3g} epochs.{still}{over}{self.steps.remark}"
        )


class BatchSolution:
    """Approximate posterior of the latent functions after the last step of a fit by batches."""

    convergence = None
    """None: steps do not show whether the posterior is at a fixed point."""
    converged = True
    start = np.empty(0)

    def __init__(self, log_posterior: BatchLogPosterior) -> None:
        self._of = log_posterior

    @property
    def labels(self) -> NDArray[np.int64]:
        """Return the labels of all rows, (n,)."""
        return self._of.observed()

    @cached_property
    def posterior(self) -> InducingPosterior | None:
        """Posterior of the inducing values; None if their prior or posterior covariance has no Cholesky factor."""
        values, white = self._of.steps.values, self._of.white()
        if white is None:
            return None
        try:
            return InducingPosterior(white, whitened_posterior(values["precision"], values["location"]))
        except LinAlgError:
            return None

    @property
    def objective(self) -> float:
        """Return the average estimate of the objective, without the log prior; see `StepTrace.loss`."""
        return self._of.steps.best.evidence

    @property
    def lower_bound(self) -> float:
        """Objective of `"sparse_vi"`, an estimate of a lower bound; NaN for other methods.

        It is also NaN in the first epoch, while q adapts.
        """
        first = len(self._of.steps.losses) < self._of.steps.per_epoch
        return np.nan if self._of.of_ep or first else self.objective

    @cached_property
    def log_evidence(self) -> float:
        """Log normaliser of EP, from sites of all rows that are computed from q in a few passes over the rows.

        It approximates the log marginal likelihood of the sparse model. NaN for `sites="pairwise"` and for bounds.
        """
        if not self._of.has_evidence or self.posterior is None:
            return np.nan
        with one_blas_thread(), gather(self._of.blocks().rows.n_rows) as team:
            return self._of.recovered(None, self.posterior, team).log_normaliser()
