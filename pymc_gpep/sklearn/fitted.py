"""Likelihoods of the estimators, models of training rows, and fits that can be pickled."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.loading import from_datatree
from pymc_gpep.likelihoods.bernoulli import Probit
from pymc_gpep.likelihoods.multinomial_probit_distribution import MultinomialProbit
from pymc_gpep.tables.columns import Columns

RESPONSE = "y"
"""Name of the observed variable."""


@dataclass(frozen=True)
class Response(ABC):
    """Likelihood of an estimator's model."""

    magnitude: ClassVar[tuple[float, float]] = (1.0, 1.5)
    """Mean and standard deviation of the log magnitude of latent functions."""

    @property
    def functions(self) -> int:
        """Number of latent functions."""
        return 1

    @property
    def offset(self) -> float:
        """Prior mean of the latent function."""
        return 0.0

    @abstractmethod
    def observe(self, f: Any, y: Observed) -> None:
        """Add observations `y` (n,) given latent values to the current model."""


@dataclass(frozen=True)
class TwoClassResponse(Response):
    """Likelihood of two classes: a probit of one latent function."""

    def observe(self, f: Any, y: Observed) -> None:
        Probit(RESPONSE, f, observed=y, dims="row")


@dataclass(frozen=True)
class ClassResponse(Response):
    """Likelihood of several classes: a multinomial probit, with a latent function for each class.

    Attributes
    ----------
    n_classes : int
    """

    n_classes: int

    @property
    def functions(self) -> int:
        return self.n_classes

    def observe(self, f: Any, y: Observed) -> None:
        MultinomialProbit(RESPONSE, f.T, observed=y, dims="row")


@dataclass(frozen=True)
class NoisyClassResponse(ClassResponse):
    """Likelihood of several classes with label noise: a share of the labels are random classes.

    Attributes
    ----------
    noise : float
    """

    noise: float

    def observe(self, f: Any, y: Observed) -> None:
        MultinomialProbit(RESPONSE, f.T, epsilon=self.noise, observed=y, dims="row")


@dataclass(frozen=True)
class RealResponse(Response):
    """Likelihood of standardised numbers: normal noise of unknown standard deviation."""

    magnitude: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def observe(self, f: Any, y: Observed) -> None:
        pm.Normal(RESPONSE, f, pm.LogNormal("noise", -1.0, 1.0), observed=y, dims="row")


@dataclass(frozen=True)
class CountResponse(Response):
    """Likelihood of counts. The rate of a count is the exponential of the latent function.

    Attributes
    ----------
    level : float
        Prior mean of the latent function.
    kind : str
        Name of a likelihood in `COUNTS`.
    """

    level: float
    kind: str
    magnitude: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def offset(self) -> float:
        return self.level

    def observe(self, f: Any, y: Observed) -> None:
        COUNTS[self.kind](pt.exp(f), observed=y, dims="row")


def _poisson(rate: Any, **given: Any) -> None:
    pm.Poisson(RESPONSE, rate, **given)


def _negative_binomial(rate: Any, **given: Any) -> None:
    pm.NegativeBinomial(RESPONSE, mu=rate, alpha=pm.LogNormal("size", 1.0, 1.0), **given)


COUNTS: Mapping[str, Callable[..., None]] = {"poisson": _poisson, "negative_binomial": _negative_binomial}
"""Distributions of counts by name, as functions that add observations to the current model."""


type Kernel = str | Callable[[Columns], Any]


@dataclass(frozen=True)
class ModelRecipe:
    """All arguments from which the model of training rows is built. They can be pickled, unlike the model.

    Attributes
    ----------
    columns : Columns
    y : array (n,)
        Observations for the likelihood.
    response : Response
    kernel : str or function of Columns
    ard, linear : bool
    classes : list
        Names of the classes, for coordinates of the model; empty if there is a single latent function.
    """

    columns: Columns
    y: Observed = field(repr=False)
    response: Response
    kernel: Kernel
    ard: bool
    linear: bool
    classes: list[Any]

    def build(self) -> tuple[pm.Model, pm.gp.Latent]:
        """Build the PyMC model. Return it and its Gaussian process."""
        coords = dict(self.columns.coords) | {"row": np.arange(len(self.y))}
        if self.classes:
            coords["class"] = self.classes
        with pm.Model(coords=coords, model=None) as model:  # Not nested in an outer model.
            if callable(self.kernel):
                covariance = self.kernel(self.columns)
                if not isinstance(covariance, pm.gp.cov.BaseCovariance):
                    raise TypeError(
                        "kernel must return a covariance function of PyMC, such as pm.gp.cov.Matern52(...), but "
                        f"returned {covariance!r}."
                    )
            else:
                covariance = self.columns.covariance(
                    self.kernel, ard=self.ard, linear=self.linear, magnitude=self.response.magnitude
                )
            mean = pm.gp.mean.Constant(self.response.offset) if self.response.offset else pm.gp.mean.Zero()
            gp = pm.gp.Latent(mean_func=mean, cov_func=covariance)
            functions = self.response.functions
            if functions == 1:
                f = gp.prior("f", X=self.columns.X, dims="row")
            else:
                f = gp.prior("f", X=self.columns.X, n_outputs=functions, dims=("class", "row"))
            self.response.observe(f, self.y)
        return model, gp


class FittedEstimator:
    """A fit, with the recipe from which its model is built again after unpickling.

    A pickle contains the recipe and the fit's DataTree (`Fit.to_datatree`). The model is built, and the fit read, at
    the first use after unpickling.

    Parameters
    ----------
    recipe : ModelRecipe
    fit : Fit
    gp : pm.gp.Latent
        The process in the model of the recipe.
    """

    def __init__(self, recipe: ModelRecipe, fit: Fit, gp: pm.gp.Latent) -> None:
        self.recipe = recipe
        self._state: Mapping[str, Any] = {"made": (fit, gp)}

    @cached_property
    def _made(self) -> tuple[Fit, pm.gp.Latent]:
        if "made" in self._state:
            made: tuple[Fit, pm.gp.Latent] = self._state["made"]
            return made
        model, gp = self.recipe.build()
        return from_datatree(xr.DataTree.from_dict(self._state["datasets"], name="fit"), model), gp

    @property
    def model(self) -> pm.Model:
        """The fitted model."""
        return self.fit.model

    @property
    def fit(self) -> Fit:
        """The fit."""
        return self._made[0]

    def predict(self, inputs: Array, **options: Any) -> xr.Dataset:
        """Return predictions at new inputs. The stored process makes reading the graph of the model unnecessary."""
        return self.fit.predict(self._made[1], inputs, progressbar=False, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the recipe and the datasets that `Fit.to_datatree` stores in a file."""
        if "datasets" in self._state:  # Unpickled and not yet used.
            return {"recipe": self.recipe, "_state": self._state}
        tree = self.fit.to_datatree()
        datasets = {node.path: node.to_dataset(inherit=False) for node in tree.subtree}
        return {"recipe": self.recipe, "_state": {"datasets": datasets}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FittedEstimator":
        """Return itself, since a fitted estimator does not change."""
        return self
