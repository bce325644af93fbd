"""Step sizes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

__all__ = ["AveragingSchedule", "ReplacingSchedule", "Schedule"]

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

    That is all of it but for large batches: sites that change together overshoot.
    """

    def __call__(self, step: int) -> float:
        return self._shrinking(step) * (1.0 - (1.0 - _LARGEST) / self.per_epoch)
