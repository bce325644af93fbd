"""Meaning of the number that an approximation with inducing inputs prints, and what it may be compared with."""

from enum import Enum

__all__ = ["Number"]


class Number(Enum):
    """Kind of the number; the value says so in words."""

    EVIDENCE = "log evidence {:.4f} (of the model with inducing inputs)"
    """An approximation of the log marginal likelihood of the model with the FITC prior."""
    BOUND = "lower bound {:.4f} of the log evidence"
    """Not above the log marginal likelihood of the model, with all its latent values or with the FITC prior."""
    OBJECTIVE = "objective {:.4f} (no evidence, and not to be compared with one)"
    """A number by which hyperparameters are chosen, and no more."""

    def text(self, value: float) -> str:
        """A number of this kind in words."""
        return self.value.format(value)
