"""The memory of a fit between batches: the q(v) of whitened inducing values, and its consequences at a batch.

A memory says which sites a batch gets, what they do to q, and what the batch adds to the objective and its gradient.
Sites and Gaussians are constants there, being natural parameters of v, whose prior has no hyperparameters. Only the
features w and the residual variances s of the batch, in the moments that its factors see, depend on hyperparameters.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.limits import check_limits
from pymc_gpep.solvers.batch_sites import ArrayMemory
from pymc_gpep.streaming.features import BatchFeatures
from pymc_gpep.streaming.rules.rule import Rule
from pymc_gpep.streaming.state import State

_LARGEST = 0.5  # a whole step of all sites at once overshoots


@dataclass(frozen=True)
class Schedule(ABC):
    """Step sizes β, smaller as epochs go by.

    Parameters
    ----------
    per_epoch : int
        Batches in an epoch.
    decay : float
        β after e epochs is 1 / (1 + decay · e) of what it is in the first one.
    """

    per_epoch: int
    decay: float

    @abstractmethod
    def __call__(self, step: int) -> float:
        """β of a step, counted from 0."""

    def _shrinking(self, step: int) -> float:
        return 1.0 / (1.0 + self.decay * (step // self.per_epoch))


class AveragingSchedule(Schedule):
    """A step replaces the part β of q's sites that a batch is of all rows; with no decay the noise of batches stays.

    The first steps take the average of what they have seen. All rows at once have no noise, and β stays at its limit.
    """

    def __call__(self, step: int) -> float:
        if self.per_epoch == 1:
            return _LARGEST
        later = self._shrinking(step) / self.per_epoch
        return min(_LARGEST, max(later, 1.0 / (step + 2) if step < self.per_epoch else 0.0))


class ReplacingSchedule(Schedule):
    """A step takes the part β of the way from the stored sites of its rows to new ones.

    Small batches take nearly the whole way. In large ones, sites that change together would overshoot.
    """

    def __call__(self, step: int) -> float:
        return self._shrinking(step) * (1.0 - (1.0 - _LARGEST) / self.per_epoch)


class BatchGraph(NamedTuple):
    """A batch of B points with d sites each."""

    features: BatchFeatures
    labels: TensorVariable
    """Labels, (B,)."""
    weights: TensorVariable
    """1, or 0 for rows that make up the number, (B,)."""
    by_site: TensorVariable
    """Whether a site acts on a function, (B, d, c)."""
    batches: int
    """Number of batches in an epoch."""
    rows: int
    """How many there are in all."""
    differences: bool
    """Whether the likelihood sees differences of functions only."""

    @property
    def scale(self) -> TensorVariable:
        """How many rows each point stands for, (B,)."""
        return self.weights * float(self.batches)

    def at_sites(self, values: TensorVariable) -> TensorVariable:
        """Return the values of each site's own function, (B, d), from those of all functions, (c, B)."""
        return (values.T[:, None, :] * self.by_site).sum(axis=2)

    def by_function(self, values: TensorVariable) -> TensorVariable:
        """Sums (c, B) over the sites (B, d) of each function."""
        return (values[:, :, None] * self.by_site).sum(axis=1).T


class Marginals(NamedTuple):
    """Moments that the sites of a batch see, (B, d)."""

    mean: TensorVariable
    """Mean of x."""
    variance: TensorVariable
    """Variance of x."""
    prior_mean: TensorVariable
    """Prior mean that is added to x in the latent value."""
    rest: TensorVariable
    """Variance that is added."""


class Effect(NamedTuple):
    """Consequences of a batch, before anything is changed."""

    value: TensorVariable
    """Estimate of the objective over all rows."""
    surrogate: TensorVariable
    """A number with the derivatives of the objective in the features of the batch."""
    constants: list[TensorVariable]
    """Variables that are constants in these derivatives."""
    changes: list[tuple[SharedVariable, TensorVariable]]
    """Remembered variables, and their new values."""
    floored: TensorVariable
    """Whether a site of a point was held back, (B,)."""
    former: tuple[TensorVariable, ...] = ()
    """Stored values of the rows of the batch: inputs of the step, as `StoredSites.of` returns them."""
    latter: tuple[TensorVariable, ...] = ()
    """Values to be stored in their place, as `StoredSites.put` takes them."""


@dataclass(frozen=True)
class Memory(ABC):
    """A way to make sites of a batch, and to remember them.

    Raises
    ------
    ValueError, TypeError
        If an option has a value that makes no sense.
    """

    name: ClassVar[str]
    """Name of the memory in `memory=`."""
    functional: ClassVar[str]
    """Functional that the memory needs of a rule, see `Rule.functional`."""
    objective: ClassVar[str]
    """Title of the printed number."""
    decay: ClassVar[float]
    """Part by which steps shrink in the first epoch, and as fast from there, if nothing else is said."""
    schedule: ClassVar[type[Schedule]]
    """Its step sizes."""

    def __post_init__(self) -> None:
        check_limits(self)

    def in_arrays(self) -> ArrayMemory | None:
        """The same for arrays; None where it is not written."""
        return None

    @abstractmethod
    def take(self, rule: Rule, state: State, batch: BatchGraph, counts: TensorVariable, beta: TensorVariable) -> Effect:
        """Take a batch in, with the number of sites on each function (c,) and a step size."""


def site_of(
    rho: TensorVariable, gamma: TensorVariable, mean: TensorVariable, variance: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return the site t, ν that makes a cavity N(mean, variance) have the moments of the tilted distribution.

    A tilted distribution may be wider than its cavity, as with labels that may be noise. The site then matches its mean
    alone.
    """
    gamma = pt.maximum(gamma, 0.0)
    narrower = 1.0 - gamma * variance
    return gamma / narrower, (rho + gamma * mean) / narrower


def log_site_normalisers(
    t: TensorVariable, nu: TensorVariable, mean: TensorVariable, variance: TensorVariable
) -> TensorVariable:
    """log ∫ N(x | mean, variance) exp(ν x − ½ t x²) dx, summed over the sites (B, d) of each point."""
    stretch = 1.0 + t * variance
    quadratic = nu * nu * variance + 2.0 * nu * mean - t * mean**2
    return 0.5 * (quadratic / stretch - pt.log(stretch)).sum(axis=1)
