"""A random walk over hyperparameters that learns its scale and directions while it is tuned, and then keeps them."""

import numpy as np
from numpy.typing import NDArray
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state

from pymc_gpep.array_types import Array

__all__ = ["RandomWalk"]


_TARGET = 0.3  # acceptance; 0.44 is best in one dimension and 0.23 in many
_GAIN = 3.0  # a draw is forgotten as the cube of how far back it is
_DELAY = 30.0  # draws that the first guess counts for
_KEPT = 0.01  # of the first guess, so that no direction is ever given up


@dataclass_state
class RandomWalkState(DataClassState):
    """What is learned."""

    log_scale: float
    proposals: int
    draws: int
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


class RandomWalk(WithSamplingState):
    """Gaussian proposals with the covariance of the draws seen so far, scaled to be accepted often enough.

    It is learned while tuning only (Andrieu and Thoms 2008, algorithm 4).

    Parameters
    ----------
    covariance : array (d, d)
        A first guess of the posterior covariance.
    """

    _state_class = RandomWalkState

    def __init__(self, covariance: Array) -> None:
        self._guess = covariance
        self.reset()

    def reset(self) -> None:
        """Forget what was learned."""
        self.log_scale = float(np.log(2.4 / np.sqrt(max(len(self._guess), 1))))
        self.proposals = 0
        self.draws = 0
        self.mean = np.zeros(len(self._guess))
        self.covariance = self._guess.copy()

    def step(self, rng: np.random.Generator) -> Array:
        """A proposed change (d,)."""
        root = np.linalg.cholesky(self.covariance + _KEPT * self._guess)
        return np.asarray(np.exp(self.log_scale) * (root @ rng.standard_normal(len(root))))

    def learn_scale(self, acceptance: float) -> None:
        """Take account of the acceptance probability of a proposal."""
        self.proposals += 1
        self.log_scale += (acceptance - _TARGET) / self.proposals**0.6

    def learn_directions(self, theta: Array) -> None:
        """Take account of a draw (d,)."""
        if self.draws == 0:
            self.mean = theta.copy()
        self.draws += 1
        gain = _GAIN / (self.draws + _DELAY)
        difference = theta - self.mean
        self.mean = self.mean + gain * difference
        self.covariance = self.covariance + gain * (np.outer(difference, difference) - self.covariance)
