"""The contract of a prior of latent functions that are sums, as those who move it to other rows see it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.affine_variables import InNormals
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.latent_prior import Elsewhere
from pymc_gpep.structure.row_parts import PartsElsewhere


class MovedProcess(NamedTuple):
    """A Gaussian process at other inputs than its own."""

    inputs: TensorVariable
    """Its inputs (n, d) in the model."""
    moments: Elsewhere


class RowSum(InNormals, Protocol):
    """A prior of latent functions that are sums, at rows."""

    @property
    def n_points(self) -> int:
        """Number of rows, n."""

    @property
    def argument(self) -> TensorVariable:
        """The argument of the likelihood: (n, c), (n,) of one function, or what broadcasts to it."""

    @property
    def everywhere(self) -> TensorVariable | None:
        """The argument at all rows of the data, where the responses of some are missing."""

    @property
    def fitted(self) -> NDArray[np.int64] | None:
        """Positions among these of the rows that have a response."""

    @property
    def n_rows(self) -> int:
        """How many rows the data have; 0 where all have a response."""

    @property
    def by_class(self) -> bool:
        """Whether the argument has an axis for functions."""

    @property
    def processes(self) -> tuple[LatentGP, ...]:
        """Gaussian processes among the terms."""

    @property
    def places(self) -> dict[TensorVariable, slice]:
        """Places of the normals of each integrated variable, or of the values of a process, among all."""

    @property
    def recipe_means(self) -> list[TensorVariable]:
        """Means of all other variables that are integrated."""

    def shaped(self, values: TensorVariable, n_points: int, batched: bool = False) -> TensorVariable:
        """Return values of the argument at points as (c, n), or with a first axis of normals as (c, n, q)."""

    def parts_elsewhere(self, data: Mapping[Variable, Variable]) -> PartsElsewhere | None:
        """Return coefficients of rows apart from those of parts, at other data; None where they are not apart."""

    def process(
        self, latent: LatentGP, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]
    ) -> MovedProcess:
        """Return a process without its mean at other inputs."""
