"""BFGS search for the maximum of a log posterior, with escape from saddles and detection of unbounded densities.

A density without a bound concentrates: its total mass is finite, so the region in which it exceeds a height shrinks as
the height grows. The log posterior then becomes sharper in some direction as long as the search rises. Near a maximum,
in contrast, its curvature converges.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.log_posteriors.quasi_newton import Curvature, Metric, line_search

_STEP = 0.03  # Step of finite differences of gradients, in the unconstrained space.
_PRODUCTS = 6  # Largest number of products with the matrix of second derivatives.
_UPWARDS = 1e-3  # Upward curvature above which a direction is tried as an escape from a saddle.
_REACHES = (0.1, -0.1, 1.0, -1.0)  # Lengths of the trial moves in a direction, in the unconstrained space.
_MARGIN = 1e-5  # Smallest relative increase of the log posterior that is not rounding.
_NO_SLOPE = 1e-7  # Slope that counts as zero, relative to the largest slope.
_STILL = 1e-3  # Largest move of a hyperparameter that counts as unmoved.

type Evaluate = Callable[..., Evaluation]


def higher_nearby(evaluate: Evaluate, history: Sequence[Evaluation], size: int) -> Evaluation | None:
    """Return the highest of some points near the best point of a search; None if the best point is the highest.

    The points lie in directions that had no slope at any point of the search. By symmetry of the log posterior a start
    may have no slope although it is not a maximum, and two exchangeable hyperparameters stay equal. The directions are
    the direction of largest upward curvature, each hyperparameter that never moved, and the sum of these
    hyperparameters. The sum is needed for products: a product of two zeros stays 0 if only one factor moves.

    Parameters
    ----------
    evaluate : callable
        Function that evaluates the log posterior at a vector, given `Neighbours` for the start of the solve.
    history : sequence of Evaluation
        The points of the search.
    size : int
        Number of first elements of a vector that are hyperparameters. The remaining elements stay fixed.
    """
    best = here = max(history, key=lambda evaluation: evaluation.log_posterior)
    if not size:  # The search moved only inducing inputs.
        return None
    slopes = np.array([evaluation.gradient[:size] for evaluation in history])
    largest = np.abs(slopes).max(axis=0)
    scale = np.where(largest > 0.0, largest, 1.0)  # Slopes of coefficients depend on the units of covariates.
    _, seen, directions = np.linalg.svd(slopes / scale)
    unseen = directions[np.count_nonzero(seen > _NO_SLOPE * seen[0]) :] / scale
    if not len(unseen):
        return None
    unseen = np.linalg.qr(unseen.T)[0].T
    still = (np.abs(here.theta - history[0].theta)[:size] < _STILL) & (largest < _NO_SLOPE)
    near = Neighbours((here.theta,), (here.start,))
    moves = np.eye(size)[still]
    together = moves.sum(axis=0, keepdims=True)[: len(moves) - 1]
    for direction in (*_upwards(evaluate, here, near, unseen), *moves, *together):
        for reach in _REACHES:
            found = evaluate(_moved(here, reach * direction), near)
            there = np.isfinite(found.log_posterior) and np.isfinite(found.gradient).all()
            if there and found.log_posterior > best.log_posterior + _MARGIN * (1.0 + abs(best.log_posterior)):
                best = found
    return None if best is here else best


def defined_nearby(evaluate: Evaluate, theta: Array, size: int) -> Evaluation | None:
    """Return an evaluation near a failed point, with zero elements moved; None if no move succeeds.

    With a magnitude of 0 the prior covariance is 0 and has no Cholesky factor.
    """
    zero = np.flatnonzero(theta[:size] == 0.0)
    moves = np.eye(theta.size)[zero]
    for move in (*moves, moves.sum(axis=0)) if len(moves) > 1 else moves:
        found = evaluate(theta + _REACHES[0] * move)
        if np.isfinite(found.log_posterior) and np.isfinite(found.gradient).all():
            return found
    return None


def _upwards(evaluate: Evaluate, here: Evaluation, near: Neighbours, among: Array) -> Iterator[Array]:
    """Yield the direction with the largest second derivative, if positive, in the span of some directions.

    Lanczos' method finds the direction from a fixed vector. With as many products as directions the method is exact, up
    to the error of finite differences. With fewer products it approximates extreme eigenvalues best.
    """
    size = among.shape[1]
    basis: list[Array] = []
    images: list[Array] = []
    following = np.random.default_rng(0).standard_normal(len(among))
    while len(basis) < min(len(among), _PRODUCTS):
        for each in [*basis, *basis]:  # Twice, since rounding errors remain after one orthogonalisation.
            following = following - (each @ following) * each
        length = np.linalg.norm(following)
        if not length > _NO_SLOPE:
            break
        basis.append(following / length)
        ahead = evaluate(_moved(here, _STEP * basis[-1] @ among), near)
        following = among @ (ahead.gradient - here.gradient)[:size] / _STEP
        if not np.isfinite(following).all():
            return
        images.append(following)
    projected = np.array(images) @ np.array(basis).T
    values, vectors = np.linalg.eigh(0.5 * (projected + projected.T))
    if values[-1] > _UPWARDS:
        direction = vectors[:, -1] @ np.array(basis) @ among
        yield direction * np.sign(direction[np.abs(direction).argmax()])


def _moved(here: Evaluation, by: Array) -> Array:
    theta = here.theta.copy()
    theta[: by.size] += by
    return theta


class Sharpness:
    """Sharpness of the log posterior along a search, as standard deviations estimated from its steps.

    Parameters
    ----------
    first : array (d,)
        First point of the search.
    """

    def __init__(self, first: Array) -> None:
        self._first, self._way = first, np.zeros_like(first)
        self._last: list[float] = []
        self._looks: list[tuple[float, float]] = []

    def learn(self, here: Evaluation, there: Evaluation) -> None:
        """Record a step of the search.

        A step s and the decrease y of the gradient over it satisfy s = H y with the inverse curvature H. The ratio yᵀs
        / yᵀy lies between the smallest and largest eigenvalue of H. The unit of a parameter is its largest distance
        from its first value.

        Parameters
        ----------
        here, there : Evaluation
            Evaluations before and after the step.
        """
        fall = here.gradient - there.gradient
        product = float(fall @ (there.theta - here.theta))
        self._way = np.maximum(self._way, np.abs(there.theta - self._first))
        length = float(np.linalg.norm(fall * self._way))
        self._last.append(np.sqrt(product) / length if product > 0.0 and 0.0 < length < np.inf else np.inf)
        if len(self._last) == _WINDOW:
            self._looks.append((min(self._last), there.log_posterior))
            self._last.clear()

    @property
    def unbounded(self) -> bool:
        """Whether the log posterior rose over many steps, and its width fell to the size of rounding errors."""
        if len(self._looks) <= _WINDOWS or self._looks[-1][0] > _POINT:
            return False
        sharpness, heights = np.transpose(self._looks[-1 - _WINDOWS :])
        return bool(sharpness[-1] < _SHARPER * sharpness[0] and (np.diff(heights) > _HIGHER).all())


_WINDOW, _WINDOWS = 10, 3  # Number of steps in a window, and number of consecutive windows that are compared.
_SHARPER, _HIGHER = 0.1, 1.0  # If unbounded: largest ratio of last to first sd; smallest rise between windows.
_POINT = 1e-8  # Standard deviation, relative to the distance from the start, that counts as 0.


FLAT = 1e-8
"""Largest relative change of the log posterior that counts as zero."""

STUCK = "no step along the gradient increases the log posterior"
"""Message of a search that cannot continue."""

UNBOUNDED = "the log posterior had no upper bound as far as the search went"
"""Message of a search that ends because of its `Sharpness`."""

type Curve = Callable[[Evaluation], Curvature | None]
"""Function that returns the curvature of a log posterior in some hyperparameters at a point; None if unavailable."""


def no_curvature(here: Evaluation) -> None:
    """Return None: a `Curve` that computes no curvature."""


class HyperAscent:
    """Iterations of a BFGS search for the maximum.

    Parameters
    ----------
    evaluate, rough : LogPosterior
        Log posterior, and a cheaper approximation of it that is used while the search rises fast.
    here : Evaluation
        Evaluation of `rough` at the first point.
    max_iterations, callback, flat
        As for `pymc_gpep.hyper.optimum.maximise`.
    """

    def __init__(
        self,
        evaluate: LogPosterior,
        rough: LogPosterior,
        here: Evaluation,
        max_iterations: int,
        callback: Callable[[tuple[Evaluation, ...]], None],
        flat: float,
    ) -> None:
        self._evaluate, self._rough, self._callback = evaluate, rough, callback
        self._max, self._flat, self._quiet = max_iterations, flat, 1 if flat > FLAT else 2
        self.history, self._here = [here], here
        self._roughly = set[bytes]() if rough is evaluate else {here.theta.tobytes()}
        self._near = Neighbours((here.theta,), (here.start,))
        self._metric = Metric(here.theta.size)
        self._gain = np.inf
        self._curvature: Curve = no_curvature
        self._sharpness = Sharpness(here.theta)

    def begin(self, curvature: Curve, units: Array | None) -> None:
        """Set the first curvatures, and take Newton steps in the hyperparameters for which `curvature` is available.

        Parameters
        ----------
        curvature : function of an Evaluation
            Curvature of the log posterior in some hyperparameters at an evaluation, or None.
        units : array (d, d), optional
            Initial inverse curvature, in which the first steps are taken.
        """
        self._metric, self._curvature = Metric(self._here.theta.size, units), curvature
        for _ in range(_NEWTON):
            if self._full or (found := curvature(self._here)) is None:
                return
            self._metric.begin(found)
            step = np.where(self._metric.known, self._metric.times(self._here.gradient), 0.0)
            promised = 0.5 * float(step @ self._here.gradient)
            if promised < _GAIN or not self._step(step) or abs(self._gain - promised) < _AS_PROMISED * promised:
                return

    def run(self) -> tuple[bool, str]:
        """Iterate to the end. Return whether the end is a maximum, and the reason for the end."""
        ended = self._iterate()
        if self._metric.units is not None and self._steep and not self._full:
            self.begin(self._curvature, None)
            ended = self._iterate()
        if not ended and not self._full and not self._sharpness.unbounded and self._look_around():
            ended = self._iterate()
        if ended:
            return True, _CONVERGED
        if self._sharpness.unbounded:
            return False, UNBOUNDED
        return False, f"the limit of n={self._max} iterations was reached" if self._full else STUCK

    @property
    def _full(self) -> bool:
        return len(self.history) > self._max

    @property
    def _steep(self) -> bool:
        return bool(np.abs(self._here.gradient).max() > _STEEP)

    def _iterate(self) -> bool:
        """Iterate until the expected gain is negligible. Return whether the gain became negligible.

        The iteration also ends if no step leads higher, at the limit of iterations, and if the density is unbounded.
        """
        quiet = 0
        while quiet < self._quiet:
            done = self._trusted and self.decrement < _ENOUGH
            if done or self._full:
                if self._refined():
                    continue
                return done
            if not self._step(self._metric.times(self._here.gradient)):
                if self._refined():
                    continue
                if not (self._large and self._metric.pairs):
                    return self._is_close
                self._metric.forget()
            least = self._flat if self._flat > FLAT or self._large else _ROUNDING
            quiet = quiet + 1 if self._gain <= least * max(1.0, abs(self._here.log_posterior)) else 0
            if quiet == self._quiet and self._refined():
                quiet = 0
            if self._sharpness.unbounded:
                return False
        return self._large or self._is_close

    def go_to(self, there: Evaluation) -> None:
        """Continue the search from another point."""
        self._metric.forget()
        self._record(there, False)

    @property
    def decrement(self) -> float:
        """Expected rise of the log posterior up to the maximum, ½ gᵀH g."""
        slope = self._here.gradient
        return 0.5 * float(slope @ self._metric.times(slope))

    @property
    def _is_close(self) -> bool:
        return self._trusted and is_close(self.decrement, self._here.theta.size)

    @property
    def _large(self) -> bool:
        """Whether there are too many parameters to compute all curvatures."""
        return self._here.theta.size > _FEW

    @property
    def _trusted(self) -> bool:
        """Whether the decrement is accurate: parameters without a computed curvature have small slopes."""
        metric = self._metric
        slope = np.abs(self._here.gradient[~metric.known]).max(initial=0.0)
        several = _STEEP if metric.pairs >= int((~metric.known).sum()) else _SMALL
        return bool(slope < (several if metric.pairs else _SLOPE))

    def judgement(self) -> dict[str, Any]:
        """Return the decrement and standard deviations at the end, as arguments of `Optimum`."""
        if self._large or not self._trusted or not np.isfinite(self._here.gradient).all():
            return {}
        deviations = np.sqrt(np.maximum(self._metric.matrix().diagonal(), 0.0))
        return {"decrement": self.decrement, "deviations": deviations}

    def polished(self, exact: Evaluation, log_posterior: LogPosterior) -> Evaluation:
        """Return the end of the search after a few more steps that make coefficients accurate to more digits.

        Parameters
        ----------
        exact : Evaluation
            End of the search, by `log_posterior`.
        log_posterior : LogPosterior
        """
        for _ in range(_LAST):
            slope = exact.gradient
            step = self._metric.times(slope)
            left = 0.5 * float(slope @ step)
            if not (self._metric.known.any() and _DIGITS < left < _CLOSE):
                break
            there = log_posterior(exact.theta + step, exact.start)
            rest = 0.5 * float(there.gradient @ self._metric.times(there.gradient))
            if not (there.usable and rest < left):
                break
            self._metric.learn(step, slope - there.gradient)
            exact = there
        return exact

    def highest(self) -> Evaluation:
        """Return the highest point of the search."""
        return max(self.history, key=lambda evaluation: evaluation.log_posterior)

    def _step(self, step: Array) -> bool:
        """Search along a step and move to a higher point. Return whether a higher point was found."""
        here, slope = self._here, float(step @ self._here.gradient)
        found: dict[float, tuple[Evaluation, bool]] = {}
        rises = self._rough is not self._evaluate and self._gain > _GAIN

        def look(part: float) -> tuple[float, float]:
            # After `_TRIALS` rough evaluations, the log posterior differs little between points: evaluate accurately.
            rough = rises and len(found) < _TRIALS
            there = (self._rough if rough else self._evaluate)(here.theta + part * step, self._near)
            found[part] = there, rough
            if there.status == CONVERGED:
                self._near = self._near.joined(there.theta, there.start, _NEIGHBOURS)
            return there.log_posterior - here.log_posterior, float(there.gradient @ step)

        part = line_search(look, slope, few=0.5 * slope < _CLOSE) if slope > 0.0 else 0.0
        self._gain = 0.0
        if not part:
            return False
        there, rough = found[part]
        self._gain = there.log_posterior - here.log_posterior
        self._metric.learn(there.theta - here.theta, here.gradient - there.gradient)
        self._sharpness.learn(here, there)
        self._record(there, rough)
        return True

    def _record(self, there: Evaluation, rough: bool) -> None:
        self._here = there
        if rough:
            self._roughly.add(there.theta.tobytes())
        self.history.append(there)
        top = self.highest()  # Starts are large: keep only the starts of the last and of the highest point.
        self.history[:-1] = [each if each is top else each._replace(start=_NO_START) for each in self.history[:-1]]
        self._callback(tuple(self.history))

    def _refined(self) -> bool:
        """Evaluate the highest point accurately, and move to it. Return whether an evaluation was needed."""
        news = False
        # After the accurate evaluation, another rough evaluation may be the highest.
        while (top := self.highest()).theta.tobytes() in self._roughly:
            at = next(i for i, each in enumerate(self.history) if each is top)
            self.history[at] = self._evaluate(top.theta, self._near)
            self._roughly.discard(top.theta.tobytes())
            news = True
        self._here = top
        return news

    def _look_around(self) -> bool:
        """Set curvatures by finite differences of gradients. Return whether all curvatures are downwards."""
        here, size = self._here, self._here.theta.size
        if self._large:
            return False
        rows = []
        for i, spread in enumerate(np.sqrt(np.maximum(self._metric.matrix().diagonal(), 0.0))):
            step = _PART * spread * np.eye(size)[i]
            there = self._evaluate(here.theta + step, self._near)
            rows.append((here.gradient - there.gradient) / step[i])
        matrix = 0.5 * (np.array(rows) + np.transpose(rows))
        scale = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
        if not (np.isfinite(matrix).all() and scale.all()):
            return False
        if np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] < _CURVED:
            return False
        self._metric = Metric(size)
        self._metric.begin(Curvature(np.ones(size, dtype=bool), matrix))
        return True


def is_close(decrement: float, size: int) -> bool:
    """Return whether an expected gain of the log posterior is negligible for this number of parameters."""
    return decrement < _CLOSE * size


_GAIN = 0.1  # Gain of an iteration above which the next iteration evaluates the rough log posterior.
_TRIALS = 2  # Largest number of rough evaluations in a line search.
_NEWTON, _AS_PROMISED = 6, 0.3  # Limit on first Newton steps; relative error of a predicted gain that ends them.
_ENOUGH = 1e-7  # Expected gain of the log posterior below which a search ends.
_LAST, _DIGITS = 2, 1e-13  # Number of accurate steps at the end; expected gain below which they are skipped.
_CLOSE = 1e-3  # Expected gain for each parameter below which a search that cannot continue has converged.
_ROUNDING = 1e-10  # Relative rounding error of the log posterior.
_FEW = 30  # Largest number of parameters for second derivatives by differences in a stuck search.
_PART = 0.1  # Step of the differences for second derivatives, in standard deviations.
_CURVED = 1e-6  # Smallest eigenvalue, relative to the diagonal, that counts as curvature.
_NEIGHBOURS = 3  # Number of solutions from which a start is predicted.
_SLOPE, _SMALL = 1e-3, 1e-2  # Slopes that count as zero, before and after curvatures are estimated.
_STEEP = 0.1  # Slope above which a search that began with given units begins again without these units.
_NO_START = np.empty(0)
_CONVERGED = "a further gain is not expected"
