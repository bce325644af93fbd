"""The result of an estimator: how its model is made, and the fit, also out of a pickle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.reading import from_datatree
from pymc_gpep.sklearn.response import Response
from pymc_gpep.tables.columns import Columns

type Kernel = str | Callable[[Columns], Any]


@dataclass(frozen=True)
class Recipe:
    """How a model is made of training rows. It can be pickled, which a model cannot.

    Attributes
    ----------
    columns : Columns
    y : array (n,)
        Observations as the likelihood wants them.
    response : Response
    kernel : str or function of Columns
    ard, linear : bool
    classes : list
        Names of the classes, for the coordinates of the model; empty where there is one latent function.
    """

    columns: Columns
    y: Observed = field(repr=False)
    response: Response
    kernel: Kernel
    ard: bool
    linear: bool
    classes: list[Any]

    def build(self) -> tuple[pm.Model, pm.gp.Latent]:
        """Make the model, with the process in it."""
        coords = dict(self.columns.coords) | {"row": np.arange(len(self.y))}
        if self.classes:
            coords["class"] = self.classes
        with pm.Model(coords=coords, model=None) as model:  # not part of a model around it
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


class Fitted:
    """A fit, and the recipe of its model.

    A pickle holds the recipe and what `Fit.to_datatree` makes of the fit. The model is made again, and the fit read,
    when one of them is first asked for.

    Parameters
    ----------
    recipe : Recipe
    fit : Fit
    gp : pm.gp.Latent
        The process in the model, as the recipe made it.
    """

    def __init__(self, recipe: Recipe, fit: Fit, gp: pm.gp.Latent) -> None:
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
        """The model that was fitted."""
        return self.fit.model

    @property
    def fit(self) -> Fit:
        """The fit."""
        return self._made[0]

    def predict(self, inputs: Array, **options: Any) -> xr.Dataset:
        """Predict at new inputs, by the process itself: it takes less time than to read it from the model's graph."""
        return self.fit.predict(self._made[1], inputs, progressbar=False, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the recipe and the data sets of the fit's own file."""
        if "datasets" in self._state:  # read from a pickle and perhaps not looked at since
            return {"recipe": self.recipe, "_state": self._state}
        tree = self.fit.to_datatree()
        datasets = {node.path: node.to_dataset(inherit=False) for node in tree.subtree}
        return {"recipe": self.recipe, "_state": {"datasets": datasets}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Fitted":
        """Return itself: what was learned is a value."""
        return self
