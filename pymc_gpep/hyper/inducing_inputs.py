"""Initial inducing inputs, and a search that moves hyperparameters and inducing inputs while EP runs.

Initial inducing inputs are rows far from each other, or centres of classes. Distances are computed by products of
matrices, without an array of all pairs of rows.

`alternate_updates` alternates one sweep of EP with one step along the gradient (Villacampa-Calvo and Hernández-Lobato
2017, section 2.3). The gradient of the evidence is computed with fixed sites, which are natural parameters of whitened
inducing values. The gradient is exact at any state of the iteration. A variational bound increases in the same way, by
a step along its natural gradient in place of a sweep. The bound holds for any sites; a step that lowers it is rejected.
"""

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.optimum import Optimum, how_many, maximise, off_start, refuse
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.rows.rows import Rows, chunks, inputs_at, sample_inputs, sample_numbers
from pymc_gpep.tables.table import of_size_one

_DEFAULT = 50  # Default number of inducing inputs.


def initial_inducing(
    given: Any,
    rows: Rows,
    functions: int,
    shared: bool,
    random_seed: int,
    *,
    default: int = _DEFAULT,
    centre_scales: Array | None = None,
) -> Array:
    """Return inducing inputs (1 or c, M, d).

    Parameters
    ----------
    given : int or array (M, d) or (c, M, d), or None
        Number of inducing inputs of each function, or the inputs. None stands for the number `default`, or the number
        of rows if it is smaller.
    rows : Rows
        Rows of the data.
    functions : int
        Number of latent functions, c.
    shared : bool
        Whether all functions share the inducing inputs.
    random_seed : int
    default : int
    centre_scales : array (d,), optional
        Scale factors of columns in distances. If given, shared inputs are centres of classes by k-means. Otherwise
        inputs are rows (k-means++).

    Raises
    ------
    TypeError
        If `given` has another type.
    ValueError
        If the number is not between 1 and the number of rows. If an array has a wrong shape or values that are not
        finite.
    """
    sets = 1 if shared else functions
    n, d = rows.n_rows, rows.n_inputs
    if given is None:
        given = min(default, n)
    if not isinstance(given, bool) and isinstance(given, Integral):
        count = int(given)
        if not 1 <= count <= n:
            instead = (
                " A fit without inducing inputs, by method='nested_ep' or 'ep', has the exact prior. "
                "For so few rows it is not slower."
            )
            raise ValueError(
                f"inducing must be from 1 to {n}, the number of rows, but is {count}.{instead if count > n else ''}"
            )
        rng = np.random.default_rng(random_seed)
        if centre_scales is not None and sets == 1:
            return centres_of_classes(rows, count, centre_scales, rng)[None]
        return np.stack([spread_rows(rows, count, rng) for _ in range(sets)])
    try:
        z = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"inducing must be a whole number or an array of inputs, but is a {type(given).__name__}."
        ) from None
    wanted = f"(M, {d})" + ("" if shared or functions == 1 else f" or ({functions}, M, {d})")
    found = f"is {given!r}" if z.ndim == 0 else f"has shape {z.shape}"
    if z.ndim not in (2, 3) or z.shape[-1] != d or 0 in z.shape or (z.ndim == 3 and len(z) not in (1, sets)):
        sets_too_many = z.ndim == 3 and sets == 1 and len(z) > 1
        advice = " All functions share one set: call gpep.class_centres with shared=True." if sets_too_many else ""
        raise ValueError(f"inducing must be a whole number or an array {wanted}, but {found}.{advice}")
    if not np.isfinite(z).all():
        raise ValueError(f"inducing must be finite, but has {np.count_nonzero(~np.isfinite(z))} values that are not.")
    return np.broadcast_to(z, (sets, *z.shape[-2:])).copy()


_CANDIDATES = 4_000  # Largest number of candidate rows.
_OF_A_CLASS = 2_000
_ROUNDS = 5  # Number of rounds of k-means.
_DISTANCE_ROUNDING = 1e-13  # Squared distance that counts as 0, relative to squared norms.


def spread_rows(data: Rows, count: int, rng: np.random.Generator) -> Array:
    """Draw rows (count, d) with probabilities proportional to squared distances to the drawn rows (k-means++).

    See Arthur and Vassilvitskii (2007). Columns are divided by their standard deviations. Equal rows are drawn only if
    there are too few different rows.
    """
    rows = sample_inputs(data, max(_CANDIDATES, count), rng)
    scaled, _ = of_size_one(rows, axis=0)
    deviations = scaled.std(axis=0)
    return rows[_spread(_centred(scaled / np.where(deviations > 0.0, deviations, 1.0)), count, rng)].copy()


def centres_of_classes(data: Rows, count: int, scales: Array, rng: np.random.Generator) -> Array:
    """Return centres (count, d) by k-means within classes, equally many for each class if it has enough rows.

    Parameters
    ----------
    data : Rows
        Rows with labels.
    count : int
        Number of centres, at most the number of rows.
    scales : array (d,)
        Factors of columns in distances.
    rng : Generator
    """
    labels = np.concatenate([data.labels(chunk) for chunk in chunks(data)])
    _, places = np.unique(labels, return_inverse=True)
    shares = in_turn(np.bincount(places), count)
    found = []
    for kind, share in enumerate(shares):
        if not share:
            continue
        own = np.flatnonzero(places == kind)
        drawn = own[np.sort(sample_numbers(len(own), max(_OF_A_CLASS, int(share)), rng))]
        rows = inputs_at(data, drawn)
        found.append(k_means(rows, rows * scales, int(share), rng))
    return np.concatenate(found)


def in_turn(available: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Divide `size` into shares (k,) as equally as possible, with the upper limits `available` (k,)."""
    taken = np.zeros_like(available)
    while (left := size - int(taken.sum())) > 0:
        takers = np.flatnonzero(taken < available)[:left]
        taken[takers] += 1
    return taken


def _centred(rows: Array) -> Array:
    """Subtract the mean of rows, and divide by a number so that squared distances cannot overflow."""
    scaled, _ = of_size_one(rows)
    return scaled - scaled.mean(axis=0)


def _spread(scaled: Array, count: int, rng: np.random.Generator) -> list[int]:
    norms = np.einsum("ij,ij->i", scaled, scaled)
    chosen = [int(rng.integers(len(scaled)))]
    distance = np.full(len(scaled), np.inf)
    while len(chosen) < count:
        last = chosen[-1]
        apart = norms + norms[last] - 2.0 * (scaled @ scaled[last])
        apart[apart <= _DISTANCE_ROUNDING * (norms + norms[last])] = 0.0
        distance = np.minimum(distance, apart)
        total = distance.sum()
        weights = distance / total if total > 0.0 else None
        chosen.append(int(rng.choice(len(scaled), p=weights)))
    return chosen


def k_means(rows: Array, scaled: Array, count: int, rng: np.random.Generator) -> Array:
    """Return centres (count, d) of rows (n, d) by k-means, with distances between `scaled` rows.

    The initial centres are distant rows. SciPy computes the rounds (Lloyd 1982). A centre to which no row is nearest
    does not move.
    """
    scaled = _centred(scaled)
    chosen = _spread(scaled, count, rng)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
        nearest = kmeans2(scaled, scaled[chosen], iter=_ROUNDS, minit="matrix")[1]
    members = (nearest == place for place in range(count))
    return np.stack(
        [rows[own].mean(axis=0) if own.any() else rows[at] for own, at in zip(members, chosen, strict=True)]
    )


class Direction(Protocol):
    """Rule that computes steps of the parameters from gradients."""

    def __call__(self, gradient: Array) -> Array:
        """Return the step to add to the parameters."""

    def shorten(self) -> None:
        """Shorten the following steps, after a step that lowered the log posterior or failed."""

    def forget(self) -> None:
        """Reset the momentum, so that the next step follows the gradient."""


class SignedSteps:
    """Steps in the direction of the signs of slopes, with a length for each parameter (Riedmiller and Braun 1993).

    A length grows while the slope keeps its sign, and is halved when the sign changes.
    """

    def __init__(self) -> None:
        self._length: Array = np.empty(0)
        self._before: Array = np.empty(0)

    def __call__(self, gradient: Array) -> Array:
        if self._length.size != gradient.size:
            self._length, self._before = np.full(gradient.size, _FIRST), np.zeros(gradient.size)
        agreed = gradient * self._before
        factor = np.where(agreed > 0.0, _LONGER, np.where(agreed < 0.0, _SHORTER, 1.0))
        self._length = np.clip(self._length * factor, _LEAST, _MOST)
        self._before = gradient
        return self._length * np.sign(gradient)

    def shorten(self) -> None:
        self._length *= _SHORTER

    def forget(self) -> None:
        self._before = np.zeros_like(self._before)  # A new array: the old array may belong to an evaluation.


class OptimiserSteps:
    """Steps of an optimiser of PyMC, such as `pm.adam(learning_rate=0.02)`.

    Each accepted step makes the following steps slightly longer, and a rejected step halves them.

    Parameters
    ----------
    optimiser : function of ([gradient], [shared variable])
        Optimiser of PyMC that minimises.
    most : float
        Largest value of the factor that multiplies the steps of the optimiser. Its first value is 1.
    """

    def __init__(self, optimiser: Callable[..., Any], most: float = 1.0) -> None:
        self._optimiser = optimiser
        self._scale, self._most = 1.0, most
        self._function: Any = None
        self._begun: dict[Any, Any] = {}

    def __call__(self, gradient: Array) -> Array:
        if self._function is None:
            slope = pt.dvector("gradient")
            place = pytensor.shared(np.zeros(gradient.size), "place")
            updates = dict(self._optimiser([-slope], [place]))
            self._begun = {state: state.get_value() for state in updates}
            moved = updates[place] - place
            self._function = pytensor.function([slope], moved, updates=updates, mode="FAST_COMPILE")
        step = self._scale * self._function(gradient)
        self._scale = min(_GROWTH * self._scale, self._most)
        return np.asarray(step)

    def shorten(self) -> None:
        self._scale *= _SHORTER

    def forget(self) -> None:
        for state, value in self._begun.items():
            state.set_value(value)


def alternate_updates(
    log_posterior: SparseLogPosterior,
    theta: Array,
    max_iterations: int,
    callback: Callable[[tuple[Evaluation, ...]], None],
    direction: Direction,
    flat: float,
    bounded: bool = False,
) -> Optimum:
    """Alternate sweeps of EP with steps of the parameters. Solve to convergence at the end.

    Parameters
    ----------
    log_posterior : SparseLogPosterior
    theta : array
        First hyperparameters and inducing inputs, at which EP is first solved.
    max_iterations : int
    callback : callable
        Function that is called with the history after each iteration. StopIteration or KeyboardInterrupt from it ends
        the search.
    direction : Direction
    flat : float
        Largest relative change of the log posterior in ten steps that counts as zero.
    bounded : bool
        Whether each log posterior is a lower bound, also before convergence. If so, a step that lowers it is rejected.

    Raises
    ------
    ValueError
        If EP fails at the beginning.
    """
    if not theta.size or not max_iterations:
        return maximise(log_posterior, theta, 0)
    here, remark = off_start(log_posterior, log_posterior(theta), how_many(log_posterior, theta))
    if not np.isfinite(here.log_posterior):
        refuse(log_posterior, here)
    if not np.isfinite(here.gradient).all():  # Before EP has converged, the gradient needs a sweep.
        here = log_posterior.after_one_sweep(here.theta, here.start)
    if not np.isfinite(here.gradient).all():
        refuse(log_posterior, here)
    history, taken = [here], [here.log_posterior]
    step = direction(here.gradient)
    refused = 0
    converged, message = False, f"Limit of {max_iterations} iterations reached."
    ended_by: BaseException | None = None
    try:
        for _ in range(max_iterations):
            found = log_posterior.after_one_sweep(here.theta + step, here.start)
            there = bool(np.isfinite(found.log_posterior) and np.isfinite(found.gradient).all())
            if there and not (bounded and found.log_posterior < here.log_posterior):
                here, refused = found, 0
                step = direction(here.gradient)
                taken.append(here.log_posterior)
            else:
                refused += 1
                direction.shorten()
                step = _SHORTER * step
                if refused % _SEVERAL == 0:
                    direction.forget()
                    step = direction(here.gradient)
                if np.abs(step).max() < _LEAST:  # The search is at a maximum, unless evaluations nearby fail.
                    converged, message = there, "No step raises the log posterior."
                    break
            history[-1:] = [history[-1]._replace(start=_NO_START), here]
            callback(tuple(history))
            if _is_flat(taken, flat):
                converged, message = True, "The log posterior changes no more."
                break
    except (KeyboardInterrupt, StopIteration) as stopped:
        ended_by = stopped
    best = here
    if not isinstance(ended_by, KeyboardInterrupt):
        try:
            exact = log_posterior(here.theta, here.start)
            if exact.usable or (bounded and exact.log_posterior >= here.log_posterior):
                best = exact
        except KeyboardInterrupt as stopped:
            ended_by = stopped
    optimum = Optimum(best, converged, message, tuple(history), remark=remark)
    return optimum if ended_by is None else optimum.stopped_by(ended_by)


def _is_flat(values: Sequence[float], flat: float) -> bool:
    """Return whether the last ten steps changed the log posterior by less than `flat` (relative)."""
    last = values[-_PATIENCE - 1 :]
    return len(last) > _PATIENCE and bool(np.ptp(last) < flat * (1.0 + abs(last[-1])))


_NO_START = np.empty(0)
_PATIENCE = 10
_FIRST, _LEAST, _MOST = 0.02, 1e-6, 0.3  # Steps: first, smallest, largest; unconstrained, or in column deviations.
_LONGER, _SHORTER = 1.1, 0.5
_GROWTH = 1.03  # Growth factor of the optimiser's steps after a success.
_SEVERAL = 4  # Number of consecutive rejected steps, each half as long, after which momentum is reset.
