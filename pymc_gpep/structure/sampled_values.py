"""The contract of what samplers move: an array x, and how it and a model's free variables are made of each other."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.whitening import Sampled


class SampledValues(ABC):
    """The values that samplers move in place of integrated variables, at given hyperparameters.

    They are an array x with a Gaussian prior: latent values where they have a density, and standard normals that make
    them otherwise.

    Attributes
    ----------
    shape : tuple of int
        Shape of x.
    data : mapping
        Data of the model → what takes their place in all expressions.
    """

    shape: tuple[int, int]
    data: Mapping[Variable, Variable]

    @property
    @abstractmethod
    def names(self) -> Mapping[TensorVariable, TensorVariable]:
        """The variables that stand for an integrated one → the one that users know."""

    @property
    @abstractmethod
    def moments(self) -> list[TensorVariable]:
        """Expressions of the random variables of the model that make the prior."""

    @abstractmethod
    def prior(self, *moments: Array) -> Sampled:
        """Return the prior, given values of `moments`."""

    @abstractmethod
    def parts(self) -> list[TensorVariable]:
        """Return new symbols for x, as far as the likelihood is computed from it without factors of a covariance."""

    @abstractmethod
    def in_parts(self, outputs: Sequence[TensorVariable], parts: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return expressions in terms of such symbols, in place of integrated variables.

        Raises
        ------
        StructureError
            If an expression depends on a variable in another way than by way of latent values.
        """

    @abstractmethod
    def parts_of(self, x: Array, prior: Sampled) -> list[Array]:
        """Return values of the parts."""

    @abstractmethod
    def slope_of(self, slopes: Sequence[Array], prior: Sampled) -> Array:
        """Return the derivative with respect to x of what has these derivatives with respect to parts."""

    @abstractmethod
    def by_white(self, outputs: Sequence[TensorVariable], z: TensorVariable) -> list[TensorVariable]:
        """Return expressions in terms of standard normals z, in the shape of x, and of hyperparameters."""

    @abstractmethod
    def from_point(self, point: PointType, prior: Sampled, rng: np.random.Generator) -> Array:
        """Return the x that a point of the model stands for; what is needed besides the point to know it is drawn."""

    @abstractmethod
    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        """Return values of the integrated variables by the names of their value variables.

        Parameters
        ----------
        point : dict
            Values of the value variables of the hyperparameters, at which the prior was computed.
        x : array
        prior : DensePrior or NormalsPrior
        """
