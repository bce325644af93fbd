"""Callbacks of `pm.fit`: their contract, checkpoints in a file, and early stopping by held-out rows."""

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.argument_types import check_number, check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.fitted import Gp
from pymc_gpep.fits.prediction import probabilities_and_moments
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.streaming.state import LeftOff


class Callback(ABC):
    """A callback that is told when a fit begins, and when it has ended."""

    @abstractmethod
    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """After each iteration, or step of a fit by batches; StopIteration ends the fit."""

    @abstractmethod
    def begin(self, method: str, batches: bool) -> None:
        """Before any work of a fit: get ready, or raise a TypeError if this is no callback for the method."""

    @abstractmethod
    def finish(self, fit: Any) -> None:
        """At the end, with what `pm.fit` is about to return."""


def call(callbacks: Sequence[Any] | None, fit: Any, losses: Array, iteration: int) -> None:
    """Call each, after an iteration. An error of one, such as of a full disk, has the fit so far in its `fit`."""
    for each in callbacks or ():
        try:
            each(fit, losses, iteration)
        except StopIteration:
            raise
        except Exception as error:
            _hand_over(error, fit, "what had been learned")
            raise


def finish(callbacks: Sequence[Any] | None, fit: Any) -> None:
    """Tell those that want to know that the fit has ended. An error of one has the fit in its `fit`."""
    for each in callbacks or ():
        if isinstance(each, Callback):
            try:
                each.finish(fit)
            except Exception as error:
                _hand_over(error, fit, "the fit, which had ended")
                raise


def _hand_over(error: Exception, fit: Any, what: str) -> None:
    vars(error)["fit"] = fit
    error.add_note(f"A callback of pm.fit failed. The attribute fit of this error is {what}.")


def check_callbacks(callbacks: Any, method: str, batches: bool) -> None:
    """Raise a TypeError unless callbacks are functions, and fit the fit; tell each `Callback` that this begins.

    Parameters
    ----------
    callbacks : list of functions of (fit, losses, iteration), or None
    method : str
        Method of the fit.
    batches : bool
        Whether the fit goes batch by batch.
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
            raise TypeError(f"callbacks has {what}, and needs functions of (fit, losses, iteration).")
        if isinstance(each, Callback):
            each.begin(method, batches)


class Checkpoint(Callback):
    """A callback of `pm.fit` that writes where a fit with batches stands, every few minutes and when it has ended.

    `pm.fit(n, ..., start=path)` goes on from there, with n steps more. It is the file that `fit.to_datatree()` makes,
    so that `gpep.from_datatree` reads it too.

    Parameters
    ----------
    path : path
        A Zarr store (`"run.zarr"`) or a netCDF file (`"run.nc"`). It is written beside and renamed, so that there is
        always a whole one.
    minutes : float
        How often.

    Raises
    ------
    ValueError
        If the path has another ending, or `minutes` is negative.
    TypeError
        If `minutes` is no number.

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
        self._path = Path(path)
        if self._path.suffix not in {".zarr", ".nc"}:
            raise ValueError(f"path must end in .zarr or .nc, but is {str(path)!r}.")
        self._minutes = minutes
        self._written = time.monotonic()

    def begin(self, method: str, batches: bool) -> None:
        if not batches:
            advice = "Give batch_size, or leave it out" if method in STREAMING_METHODS else "Leave it out"
            raise TypeError(
                f"callbacks has a Checkpoint, which is for fits by batches. {advice}: a fit of all rows is saved with "
                "fit.to_datatree() when it has ended."
            )

    def __call__(self, fit: Fit, losses: Array, iteration: int) -> None:
        """Write if it is time to."""
        if time.monotonic() - self._written >= 60.0 * self._minutes:
            self.write(fit)

    def finish(self, fit: Fit) -> None:
        """Write, unless nothing has been done."""
        if len(fit.hist):
            self.write(fit)

    def write(self, fit: Fit) -> None:
        """Write."""
        tree = fit.to_datatree()
        beside, old = _in_place(self._path)
        for each in (beside, old):
            _remove(each)
        if self._path.suffix == ".zarr":
            tree.to_zarr(beside, consolidated=False)
        else:
            tree.to_netcdf(beside)
        if self._path.is_dir():  # a folder cannot take the place of another one
            self._path.rename(old)
        beside.rename(self._path)
        _remove(old)
        self._written = time.monotonic()


def _in_place(path: Path) -> tuple[Path, Path]:
    """Where a new file is written, and where an old folder goes; what was broken off between the two is ended."""
    beside, old = (path.with_name(f".{path.name}.{which}") for which in ("new", "old"))
    if old.exists() and beside.exists() and not path.exists():
        beside.rename(path)
    return beside, old


def read_checkpoint(path: str | os.PathLike[str]) -> LeftOff:
    """Return the content of a file.

    Raises
    ------
    ValueError
        If there is no such file, or if it is something else.
    """
    where = Path(path)
    _in_place(where)
    if not where.exists():
        raise ValueError(f"start is {str(path)!r}, but there is no such file; it may be initial values, by name.")
    zarr = where.suffix == ".zarr"
    with xr.open_datatree(where, engine="zarr", consolidated=False) if zarr else xr.open_datatree(where) as opened:
        tree = opened.load()
    try:
        return LeftOff.of(tree)
    except ValueError as error:
        raise ValueError(
            f"start is {str(path)!r}, but that is not a file that gpep.Checkpoint wrote: {error}."
        ) from None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_SCORE_TOLERANCE = 1e-6  # relative difference of scores of a fit that was solved once more


class EarlyStopping(Callback):
    """A callback of `pm.fit` that scores predictions of rows that are kept back, and keeps the fit that is best there.

    A fit raises an evidence or a bound, which need not say how well it predicts. Where inducing inputs or many length
    scales are learned this number rises while predictions get worse. Rows that were not learned from do say it. The
    score of the best fit is a little too good for new rows, since it is the best of several.

    It is for the methods of this package. Scores and the best fit are those of the latest fit that it was
    given to, also where that goes on from another one.

    Parameters
    ----------
    X : array (m, d) or None
        Inputs of rows that are not among those of the fit; None if `data` says all of these rows.
    y : array (m,)
        Observations of these rows, coded as those of the fit.
    data : dict, optional
        Other data of these rows by name, each with an entry for each row, as of `fit.predict`.
    every : int, optional
        Iterations from one score to the next, or steps of a fit by batches. If not given each iteration is scored, or
        by batches each epoch. The end is scored as well. A score takes a prediction, and where hyperparameters move
        after each sweep (`update="inner"`) first a solve.
    patience : int, optional
        Number of scores in a row that are no better than the best one, after which the fit ends, with all of its
        `starts`. It goes on if not given.
    gp : pm.gp.Latent or sequence of them, optional
        Processes that made the latent values, as of `fit.predict`, where the graph of the model does not say what their
        prior is.

    Attributes
    ----------
    scores : xarray.Dataset
        Means over the rows, by `iteration`: `mlpd`, the log predictive density, and what else `compare_methods` has for
        the likelihood, such as `accuracy`. Iterations are counted on over several `starts`. A fit that integrates over
        hyperparameters has one row more, for what `pm.fit` returns. `mlpd` is not a number at an iteration after which
        the covariance of the inducing values was singular.
    best : Fit
        The fit with the highest `mlpd`, as it was then. It is held in memory beside the one that goes on, and in no
        file that `gpep.Checkpoint` writes: `held.best.to_datatree()` is for that.

    Raises
    ------
    TypeError
        If `every` or `patience` is not a whole number. `pm.fit` raises it if the method is another one.
    ValueError
        If there are no rows, or not as many observations. `pm.fit` raises it after the first iteration if the model has
        other columns or classes.

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
            raise ValueError("X is None and there is no data: give the inputs of the rows, or their data by name.")
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
        """The fit with the highest `mlpd`, as it was then."""
        if self._best is None:
            raise ValueError("No fit has been scored yet: give this callback to pm.fit(callbacks=[...]).")
        return self._best[1]

    @property
    def scores(self) -> xr.Dataset:
        """Means over the rows, by iteration."""
        iterations, scores = list(self._scores), list(self._scores.values())
        names = dict.fromkeys(name for each in scores for name in each)
        values = {name: ("iteration", [each.get(name, np.nan) for each in scores]) for name in names}
        return xr.Dataset(values, coords={"iteration": np.array(iterations, dtype=int)})

    def __repr__(self) -> str:
        """How many rows, and what their best score is."""
        rows = f"EarlyStopping of {len(self._y)} rows"
        if self._best is None:
            return f"{rows}, nothing scored yet"
        return f"{rows}, best at iteration {self._best[0]} of {self._iteration}: mlpd {self._highest:.4f}"

    def begin(self, method: str, batches: bool) -> None:
        self._forget()

    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """Score, if it is time to."""
        if not isinstance(fit, Fit):
            raise TypeError(
                f"callbacks has an EarlyStopping for the methods of pymc_gpep, but got a {type(fit).__name__}."
            )
        if not self._iteration:
            self._check(fit)
        self._iteration = iteration
        if iteration % (self._every or fit.iterations_per_epoch):
            return
        self._score(fit)
        if self._patience is not None and self._since >= self._patience:
            raise StopIteration(f"No better on rows held out in {self._since} scores")

    def finish(self, fit: Any) -> None:
        """Score what `pm.fit` returns, unless that is an iteration which was scored."""
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
        """Whether a fit is that of the last iteration: active rows that are chosen anew make another one."""
        if self._predicts_nothing(fit):
            return True
        density = float(self._predict(fit, slice(None))["log_density"].mean())
        return bool(np.isclose(density, self._scores[self._iteration]["mlpd"], rtol=_SCORE_TOLERANCE))

    def _check(self, fit: Any) -> None:
        """Raise an error if there is something wrong with the rows, before time has been spent on a fit."""
        classifier = fit.classifier
        classifier.check_one()
        classifier.likelihood_model.check(self._y, classifier.n_functions, len(self._y), "y of EarlyStopping")
        if self._predicts_nothing(fit):
            return
        try:
            self._predict(fit, slice(0, 1))
        except (TypeError, ValueError) as error:
            error.add_note("Raised for the rows of an EarlyStopping: Xnew is its X.")
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
            self._best = self._iteration, fit.kept(f"Kept, as it predicts {len(self._y)} rows held out best")
