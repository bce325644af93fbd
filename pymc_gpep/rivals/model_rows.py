"""The prior of a model at its own rows, block by block, as the choice of active rows asks for it.

The covariance of a row with itself is the prior variance. Terms of the diagonal alone, such as PyMC's jitter, are part
of it. The covariance of different rows is that of the covariance function, even where their inputs are the same.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType

from pymc_gpep.array_types import Array
from pymc_gpep.latent.gp_latent import jitter_of
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.solvers.inducing import Block


class RowInputs(NamedTuple):
    """Inputs of all rows, and what their prior covariances are made by."""

    blocks: InducingBlocks
    inputs: Array
    """(n, columns)."""
    jitter: Array
    """On the diagonal of the covariance of each function, or of the one that all have, (q, 1)."""

    @classmethod
    def of(cls, classifier: GPClassifier, blocks: InducingBlocks) -> "RowInputs":
        """Return the inputs of the rows of a model.

        Raises
        ------
        StructureError
            If the jitter of a prior is not a number.
        """
        jitter = np.empty((classifier.n_functions, 1))
        for latent in classifier.latents:
            jitter[list(latent.classes)] = jitter_of(latent)
        rows = blocks.rows
        return cls(blocks, np.asarray(rows.inputs(slice(0, rows.n_rows))), jitter[: blocks.n_covariances])


class ModelRows:
    """The prior at fixed hyperparameters; a `pymc_gpep.rivals.selection.row_site_rules.RowPrior`.

    Parameters
    ----------
    given : RowInputs
    point : dict
        Values of the model's value variables.
    """

    def __init__(self, given: RowInputs, point: PointType) -> None:
        self._blocks, self._inputs, self._jitter = given
        self._point = point
        self.n_points = len(self._inputs)
        self.n_functions = self._blocks.n_functions
        self.n_covariances = self._blocks.n_covariances

    def block(self, columns: NDArray[np.int64], rows: NDArray[np.int64]) -> Block:
        some = columns if columns.size else rows[:1]
        found = self._blocks.block(self._point, self._inputs[some][None], self._inputs[rows])
        cross, variance = found.cross[:, : columns.size], found.variance + self._jitter
        if np.intersect1d(columns, rows).size:
            at, where = np.nonzero(columns[:, None] == rows)
            cross[:, at, where] = variance[:, where]
        return Block(cross, variance, found.mean)

    def slopes(self, columns: NDArray[np.int64], rows: NDArray[np.int64], bars: Block) -> Array:
        """Return derivatives in the hyperparameters, flat, from those in the moments of rows outside the columns."""
        return self._blocks.block_slopes(self._point, self._inputs[columns][None], self._inputs[rows], bars)[0]

    def own_slopes(self, rows: NDArray[np.int64], covariance: Array, mean: Array) -> Array:
        """The same from those in the covariance (q, d, d) among some rows and in their means (c, d)."""
        every = np.arange(len(rows))
        apart = covariance.copy()
        apart[:, every, every] = 0.0
        variance = np.ascontiguousarray(covariance[:, every, every])
        none = np.zeros((len(covariance), 1, len(rows)))
        return np.asarray(
            self._blocks.inducing_slopes(self._point, self._inputs[rows][None], apart)[0]
            + self.slopes(rows[:1], rows, Block(none, variance, mean))
        )
