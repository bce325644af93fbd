"""Callbacks of `pm.fit`: base class, checkpoints in a file, and early stopping by scores of held-out rows."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.argument_types import check_number, check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.fitted import Gp
from pymc_gpep.fits.prediction import probabilities_and_moments
from pymc_gpep.fits.saving import checked_path, read_tree, write_tree
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.streaming.state import LeftOff


class Callback(ABC):
    """Callback that is also called when a fit begins and when it ends."""

    @abstractmethod
    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """Run after each iteration, or after each step of a fit by batches. StopIteration ends the fit."""

    @abstractmethod
    def begin(self, method: str, batches: bool) -> None:
        """Prepare for a fit that is about to start. Raise a TypeError if the method does not support this callback."""

    @abstractmethod
    def finish(self, fit: Any) -> None:
        """Run at the end, with the fit that `pm.fit` returns."""


def call(callbacks: Sequence[Any] | None, fit: Any, losses: Array, iteration: int) -> None:
    """Call all callbacks after an iteration. If a callback raises an error, its attribute `fit` is the fit so far."""
    for each in callbacks or ():
        try:
            each(fit, losses, iteration)
        except StopIteration:
            raise
        except Exception as error:
            _hand_over(error, fit, "the fit so far")
            raise


def finish(callbacks: Sequence[Any] | None, fit: Any) -> None:
    """Call `finish` of each `Callback`. If a callback raises an error, its attribute `fit` is the fit."""
    for each in callbacks or ():
        if isinstance(each, Callback):
            try:
                each.finish(fit)
            except Exception as error:
                _hand_over(error, fit, "the finished fit")
                raise


def _hand_over(error: Exception, fit: Any, what: str) -> None:
    vars(error)["fit"] = fit
    error.add_note(f"A callback of pm.fit failed. The attribute fit of this error is {what}.")


def check_callbacks(callbacks: Any, method: str, batches: bool) -> None:
    """Check that callbacks are functions that support the fit, and call `begin` of each `Callback`.

    Parameters
    ----------
    callbacks : list of functions of (fit, losses, iteration), or None
    method : str
        Method of the fit.
    batches : bool
        Whether the fit takes its steps on batches of rows.
    """
    if callbacks is None:
        return
    if not isinstance(callbacks, list | tuple):
        what = f"the class {callbacks.__name__}" if isinstance(callbacks, type) else f"a {type(callbacks).__name__}"
        raise TypeError(
            f"callbacks must be a list of functions of (fit, losses, iteration), but is {what}. Put it into a list."
        )
    for each in callbacks:
        if isinstance(each, type) or not callable(each):
            what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
            raise TypeError(f"callbacks contains {what}, but must contain functions of (fit, losses, iteration).")
        if isinstance(each, Callback):
            each.begin(method, batches)


class Checkpoint(Callback):
    """Callback of `pm.fit` that writes the state of a fit by batches every few minutes, and at the end.

    `pm.fit(n, ..., start=path)` continues from the file with n more steps. The file has the format of
    `fit.to_datatree()`, so `gpep.from_datatree` reads it.

    Parameters
    ----------
    path : path
        A Zarr store (`"run.zarr"`) or a netCDF file (`"run.nc"`). The file is written under a temporary name and then
        renamed, so the path always holds a complete file.
    minutes : float
        Minutes between two writes of the file.

    Raises
    ------
    ValueError
        If the path has another ending, or `minutes` is negative.
    TypeError
        If `minutes` is not a number.

    Examples
    --------
    >>> options = {"method": "sparse_ep", "batch_size": 10, "inducing": 5}
    >>> with model:
    ...     fit = pm.fit(20, callbacks=[gpep.Checkpoint("run.zarr")], **options)
    ...     fit = pm.fit(10, start="run.zarr", **options)  # ten more steps
    """

    def __init__(self, path: str | os.PathLike[str], minutes: float = 10.0) -> None:
        check_number("minutes", minutes)
        if not minutes >= 0.0:
            raise ValueError(f"minutes must be at least 0, but is {minutes}.")
        self._path = checked_path(path)
        self._minutes = minutes
        self._written = time.monotonic()

    def begin(self, method: str, batches: bool) -> None:
        if not batches:
            advice = "Give batch_size, or leave" if method in STREAMING_METHODS else "Leave"
            raise TypeError(
                f"callbacks has a Checkpoint, but a Checkpoint is for fits by batches. {advice} it out. Save a "
                "fit of all rows with fit.to_datatree() when it has ended."
            )

    def __call__(self, fit: Fit, losses: Array, iteration: int) -> None:
        """Write the file if enough minutes have passed."""
        if time.monotonic() - self._written >= 60.0 * self._minutes:
            self.write(fit)

    def finish(self, fit: Fit) -> None:
        """Write the file if the fit has taken a step."""
        if len(fit.hist):
            self.write(fit)

    def write(self, fit: Fit) -> None:
        """Write the file."""
        write_tree(fit.to_datatree(), self._path)
        self._written = time.monotonic()


def read_checkpoint(path: str | os.PathLike[str]) -> LeftOff:
    """Return the stored state of a fit from the file of a `Checkpoint`.

    Raises
    ------
    ValueError
        If the file does not exist, or was not written by a `Checkpoint`.
    """
    try:
        tree = read_tree(path)
    except FileNotFoundError:
        raise ValueError(
            f"start is the path {str(path)!r}, which does not exist. Give a Checkpoint's file or values by name."
        ) from None
    try:
        return LeftOff.of(tree)
    except ValueError as error:
        raise ValueError(
            f"start is {str(path)!r}, but that is not a file that gpep.Checkpoint wrote: {error}."
        ) from None


_SCORE_TOLERANCE = 1e-6  # Scores with a smaller relative difference are scores of the same fit.


class EarlyStopping(Callback):
    """Callback of `pm.fit` that scores predictions of held-out rows, and keeps the fit with the best score.

    A fit increases an evidence or a bound. If it learns inducing inputs or many length scales, the evidence may
    increase while predictions get worse. Held-out rows show this. The score of the best fit is a little too good for
    new rows, since it is the best of several scores.

    The callback works with the methods of this package. Each call of `pm.fit` resets the scores and the best fit, also
    if it continues an earlier fit.

    Parameters
    ----------
    X : array (m, d) or None
        Inputs of the held-out rows. None if `data` describes the rows completely.
    y : array (m,)
        Observations of these rows, with the codes of the fitted observations.
    data : dict, optional
        Other data of these rows by name, with an entry for each row, as in `fit.predict`.
    every : int, optional
        Number of iterations between two scores, or of steps in a fit by batches. The default is each iteration, or each
        epoch of a fit by batches. The final fit is scored as well. A score needs a prediction of the held-out rows, and
        with `update="inner"` also a solve.
    patience : int, optional
        Number of consecutive scores without improvement after which the fit ends, with all of its `starts`. By default
        the fit does not end early.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, as in `fit.predict`, if their prior cannot be read from the graph of the model.

    Attributes
    ----------
    scores : xarray.Dataset
        Means over the rows, by `iteration`: `mlpd`, the log predictive density, and other scores of `compare_methods`,
        such as `accuracy`. The numbers of iterations continue from start to start. If the fit integrates over
        hyperparameters, one more row has the scores of the fit that `pm.fit` returns. `mlpd` is NaN if the covariance
        of the inducing values was singular.
    best : Fit
        The fit at the iteration with the highest `mlpd`. It is held in memory. `gpep.Checkpoint` does not write it;
        `held.best.save(path)` does.

    Raises
    ------
    TypeError
        If `every` or `patience` is not an integer. `pm.fit` raises it if the method is not a method of this package.
    ValueError
        If rows are absent, or the number of observations differs from the number of rows. `pm.fit` raises it after the
        first iteration if the columns or classes differ from the model.

    Examples
    --------
    >>> held = gpep.EarlyStopping(Xnew, ynew, patience=5)
    >>> with model:
    ...     fit = pm.fit(20, method="sparse_ep", inducing=5, batch_size=10, callbacks=[held])
    >>> held.best.predict(Xnew)
    """

    def __init__(
        self,
        X: ArrayLike | None,
        y: ArrayLike,
        *,
        data: Mapping[str, ArrayLike] | None = None,
        every: int | None = None,
        patience: int | None = None,
        gp: Gp = None,
    ) -> None:
        for name, value in (("every", every), ("patience", patience)):
            if value is not None:
                check_whole(name, value, 1)
        self._x, self._y = None if X is None else np.asarray(X), np.asarray(y)
        if self._x is not None and (self._x.ndim != 2 or not len(self._x)):
            raise ValueError(f"X must be (rows, columns), with a row or more, but has shape {self._x.shape}.")
        if self._x is None and not data:
            raise ValueError("X is None and data is empty. Give the inputs of the rows, X, or their data by name.")
        self._data = {name: np.asarray(values) for name, values in (data or {}).items()}
        m = len(self._x) if self._x is not None else self._y.size
        if self._y.shape != (m,) or not m:
            flat = "; y.ravel() has one axis" if self._y.shape == (m, 1) else ""
            raise ValueError(f"y must have one label for each of {m} rows, but has shape {self._y.shape}{flat}.")
        if wrong := {name: each.shape for name, each in self._data.items() if each.shape[:1] != (m,)}:
            raise ValueError(f"data must have an entry for each of {m} rows, but have the shapes {wrong}.")
        self._every, self._patience, self._gp = every, patience, gp
        self._forget()

    def _forget(self) -> None:
        self._scores: dict[int, dict[str, float]] = {}
        self._highest, self._since, self._iteration = -np.inf, 0, 0
        self._best: tuple[int, Any] | None = None

    @property
    def best(self) -> Any:
        """The fit at the iteration with the highest `mlpd`."""
        if self._best is None:
            raise ValueError("No fit has been scored yet: give this callback to pm.fit(callbacks=[...]).")
        return self._best[1]

    @property
    def scores(self) -> xr.Dataset:
        """Means of the scores over the held-out rows, by iteration."""
        iterations, scores = list(self._scores), list(self._scores.values())
        names = dict.fromkeys(name for each in scores for name in each)
        values = {name: ("iteration", [each.get(name, np.nan) for each in scores]) for name in names}
        return xr.Dataset(values, coords={"iteration": np.array(iterations, dtype=int)})

    def __repr__(self) -> str:
        """Return the number of held-out rows and the best score."""
        rows = f"EarlyStopping of {len(self._y)} rows"
        if self._best is None:
            return f"{rows}, nothing scored yet"
        return f"{rows}, best at iteration {self._best[0]} of {self._iteration}: mlpd {self._highest:.4f}"

    def begin(self, method: str, batches: bool) -> None:
        self._forget()

    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """Score the fit, if enough iterations have passed."""
        if not isinstance(fit, Fit):
            raise TypeError(
                f"EarlyStopping scores fits by methods of pymc_gpep, but this method returns a {type(fit).__name__}."
            )
        if not self._iteration:
            self._check(fit)
        self._iteration = iteration
        if iteration % (self._every or fit.iterations_per_epoch):
            return
        self._score(fit)
        if self._patience is not None and self._since >= self._patience:
            raise StopIteration(f"No improvement on held-out rows in {self._since} scores")

    def finish(self, fit: Any) -> None:
        """Score the fit that `pm.fit` returns, unless it was scored already."""
        if not self._iteration:
            self._check(fit)
        several = fit.nodes.sizes["node"] > 1
        scored = self._iteration in self._scores
        if scored and not several and self._is_scored(fit):
            return
        if scored or several:
            self._iteration += 1
        self._score(fit)

    def _is_scored(self, fit: Any) -> bool:
        """Return whether the held-out rows have the same mean log density under this fit as at the last score."""
        if self._predicts_nothing(fit):
            return True
        density = float(self._predict(fit, slice(None))["log_density"].mean())
        return bool(np.isclose(density, self._scores[self._iteration]["mlpd"], rtol=_SCORE_TOLERANCE))

    def _check(self, fit: Any) -> None:
        """Check the held-out rows against the model before the first score."""
        classifier = fit.classifier
        classifier.check_one()
        classifier.likelihood_model.check(self._y, classifier.n_functions, len(self._y), "y of EarlyStopping")
        if self._predicts_nothing(fit):
            return
        try:
            self._predict(fit, slice(0, 1))
        except (TypeError, ValueError) as error:
            error.add_note("The error concerns the rows of EarlyStopping: Xnew is its argument X.")
            raise

    @staticmethod
    def _predicts_nothing(fit: Any) -> bool:
        return fit.solution.posterior is None

    def _predict(self, fit: Any, rows: slice) -> xr.Dataset:
        x = None if self._x is None else self._x[rows]
        data = {name: values[rows] for name, values in self._data.items()} or None
        found: xr.Dataset = fit.predict(self._gp, x, data=data, observed=self._y[rows], covariances=False)
        return found

    def _score(self, fit: Any) -> None:
        self._since += 1
        if self._predicts_nothing(fit):
            self._scores[self._iteration] = {"mlpd": np.nan}
            return
        found = self._predict(fit, slice(None))
        density = float(found["log_density"].mean())
        others = fit.classifier.likelihood_model.scores(self._y, *probabilities_and_moments(fit.classifier, found))
        self._scores[self._iteration] = {"mlpd": density} | {name: float(each.mean()) for name, each in others.items()}
        if density > self._highest or self._best is None:
            self._highest, self._since = density, 0
            self._best = self._iteration, fit.kept(f"Fit with the best score of {len(self._y)} held-out rows")
