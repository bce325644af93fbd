"""Rows that are kept back, to say which iteration of a fit predicts best, and when to stop."""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.callback import Callback
from pymc_gpep.fits.inducing_fit import InducingFit

__all__ = ["HeldOut"]


class HeldOut(Callback):
    """A callback of `pm.fit` that scores predictions of rows that are kept back, and keeps the fit that is best there.

    What a fit raises, an evidence or a bound, need not say how well it predicts: where inducing inputs or many length
    scales are learned it rises while predictions get worse. Rows that were not learned from do say it. The score of the
    best fit is a little too good for new rows, since it is the best of several.

    Parameters
    ----------
    X : array (m, d)
        Inputs of rows that are not among those of the fit.
    y : array (m,)
        What was observed there.
    every : int, optional
        Iterations from one score to the next, or steps of a fit by batches. If not given each iteration is scored, or
        by batches each epoch.
    patience : int, optional
        After how many scores in a row that are no better than the best one the fit ends. It goes on if not given.

    Attributes
    ----------
    scores : xarray.Dataset
        Means over the rows, by `iteration`: `mlpd`, the log predictive density, and what else `compare_methods` has for
        the likelihood, such as `accuracy`. Not a number where a fit had no posterior. The last one is of the fit that
        `pm.fit` returns if that integrates over hyperparameters, which iterations before do not.
    best : GPApproximation, SparseFit or StreamedFit
        The fit with the highest `mlpd`, as it was then. It is held in memory beside the one that goes on.

    Raises
    ------
    TypeError
        If `every` or `patience` is no whole number. By `pm.fit` if the method is `"ivm"`, which has no fit to show on
        the way.
    ValueError
        If there are no rows, or not as many observations; by `pm.fit` after the first iteration if the model has other
        columns or classes.

    Examples
    --------
    >>> held = gpep.HeldOut(Xheld, yheld, patience=5)
    >>> pm.fit(30_000, method="sparse_ep", batch_size=200, callbacks=[held])
    >>> held.best.predict(Xnew)
    """

    def __init__(self, X: ArrayLike, y: ArrayLike, *, every: int | None = None, patience: int | None = None) -> None:
        for name, value in (("every", every), ("patience", patience)):
            if value is not None:
                check_whole(name, value, 1)
        self._x, self._y = np.asarray(X), np.asarray(y)
        if self._x.ndim != 2 or not len(self._x):
            raise ValueError(f"X must be (rows, columns), with a row or more, but has shape {self._x.shape}.")
        if self._y.shape != self._x.shape[:1]:
            raise ValueError(f"y must have one label for each of {len(self._x)} rows, but has shape {self._y.shape}.")
        self._every, self._patience = every, patience
        self._scores: dict[int, dict[str, float]] = {}
        self._highest, self._since, self._iteration = -np.inf, 0, 0
        self._best: Any = None

    @property
    def best(self) -> Any:
        """The fit with the highest `mlpd`, as it was then."""
        if self._best is None:
            raise ValueError("No fit has been scored yet: give this callback to pm.fit(callbacks=[...]).")
        return self._best

    @property
    def scores(self) -> xr.Dataset:
        """Means over the rows, by iteration."""
        iterations, scores = list(self._scores), list(self._scores.values())
        names = dict.fromkeys(name for each in scores for name in each)
        values = {name: ("iteration", [each.get(name, np.nan) for each in scores]) for name in names}
        return xr.Dataset(values, coords={"iteration": np.array(iterations, dtype=int)})

    def check(self, method: str, batches: bool) -> None:
        """See `Callback`."""
        if method == "ivm":
            raise TypeError(
                'callbacks has a HeldOut, but "ivm" has no fit to score while rows are chosen. Leave it out, and score '
                "what pm.fit returns by gpep.learning_curve."
            )

    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """Score, if it is time to."""
        self._iteration = iteration
        if iteration % (self._every or fit.iterations_per_epoch):
            return
        self._score(fit)
        if self._patience is not None and self._since >= self._patience:
            raise StopIteration(f"No better on rows held out in {self._since} scores")

    def finish(self, fit: Any) -> None:
        """Score what `pm.fit` returns, unless that is an iteration which was scored."""
        if self._iteration not in self._scores or fit.nodes.sizes["node"] > 1:
            self._score(fit)

    def _score(self, fit: Any) -> None:
        self._since += 1
        if isinstance(fit, InducingFit) and fit.posterior is None:
            self._scores[self._iteration] = {"mlpd": np.nan}
            return
        found = fit.predict(self._x, observed=self._y, covariances=False)
        density = float(found["log_density"].mean())
        self._scores[self._iteration] = {"mlpd": density} | self._others(fit, found)
        if density > self._highest or self._best is None:
            self._highest, self._since = density, 0
            self._best = fit.kept(f"Kept, as it predicts {len(self._x)} rows held out best")

    def _others(self, fit: Any, found: xr.Dataset) -> dict[str, float]:
        """Scores beside the log density."""
        outcome = fit.classifier.likelihood.name
        classes = "p" in found
        p = found["p"].values if classes else np.empty((len(self._x), 0))
        moments = None if classes else np.stack([found[f"{outcome}_{each}"] for each in ("mean", "variance")])
        scores = fit.classifier.likelihood_model.scores(self._y, p, moments)
        return {name: float(values.mean()) for name, values in scores.items()}
