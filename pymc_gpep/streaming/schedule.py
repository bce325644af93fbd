"""Step sizes of q(v)."""

from dataclasses import dataclass

__all__ = ["Schedule"]

_LARGEST = 0.5  # a whole step of all sites at once overshoots


@dataclass(frozen=True)
class Schedule:
    """A step replaces the part β of q's sites that a batch is of all rows, and less as epochs go by.

    The first steps take the average of what they have seen. All rows at once have no noise, and β stays at its limit.

    Parameters
    ----------
    per_epoch : int
        Batches in an epoch.
    decay : float
        β after e epochs is 1 / (1 + decay · e) of what it is in the first one. With 0 the noise of batches stays.
    largest : float, optional
        Limit of β.
    """

    per_epoch: int
    decay: float
    largest: float = _LARGEST

    def __call__(self, step: int) -> float:
        """β of a step, counted from 0."""
        if self.per_epoch == 1:
            return self.largest
        later = 1.0 / (self.per_epoch * (1.0 + self.decay * (step // self.per_epoch)))
        return min(self.largest, max(later, 1.0 / (step + 2) if step < self.per_epoch else 0.0))
