"""A batch in the graph of a step: its features and labels, and which function each of its sites acts on."""

from typing import NamedTuple

from pytensor.tensor.variable import TensorVariable

from pymc_gpep.streaming.features import BatchFeatures

__all__ = ["BatchGraph"]


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
