"""How a search leaves a point without a slope that is no maximum: points beside it that are higher."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation

_STEP = 0.03  # of differences of gradients, in units of the unconstrained space
_PRODUCTS = 6  # of the matrix of second derivatives, at most
_UPWARDS = 1e-3  # least curvature that is looked along
_REACHES = (0.1, -0.1, 1.0, -1.0)  # of the moves that are tried
_MARGIN = 1e-5  # relative, by which a log posterior is higher
_NO_SLOPE = 1e-7  # relative to the largest
_STILL = 1e-3  # of a hyperparameter that has not moved

type Evaluate = Callable[..., Evaluation]


def higher_beside(evaluate: Evaluate, history: Sequence[Evaluation], size: int) -> Evaluation | None:
    """The highest of some points beside the best one of a search; None if none of them is higher.

    Looked at are directions in which no point of the search had a slope. What is symmetric about its start has none
    there, be it a maximum or not, and two hyperparameters that can be exchanged stay the same. Among these directions
    that in which the log posterior is curved upwards most is one, and so is each hyperparameter that never moved. All
    of these together are one more: a product of two that are 0 stays 0 where one of them is moved.

    Parameters
    ----------
    evaluate : callable
        From a vector and neighbours.
    history : sequence of Evaluation
        The points of the search.
    size : int
        How many elements of a vector, from the first, are hyperparameters. The others stay.
    """
    best = here = max(history, key=lambda evaluation: evaluation.log_posterior)
    if not size:  # inducing inputs alone were moved
        return None
    slopes = np.array([evaluation.gradient[:size] for evaluation in history])
    largest = np.abs(slopes).max(axis=0)
    scale = np.where(largest > 0.0, largest, 1.0)  # slopes in raw covariates are far larger than others
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


def defined_beside(evaluate: Evaluate, theta: Array, size: int) -> Evaluation | None:
    """A point beside one at which nothing can be computed, by a move of what is 0 there; None if no move finds one.

    A magnitude that begins at 0 makes a prior covariance of zeros, which has no Cholesky factor.
    """
    zero = np.flatnonzero(theta[:size] == 0.0)
    moves = np.eye(theta.size)[zero]
    for move in (*moves, moves.sum(axis=0)) if len(moves) > 1 else moves:
        found = evaluate(theta + _REACHES[0] * move)
        if np.isfinite(found.log_posterior) and np.isfinite(found.gradient).all():
            return found
    return None


def _upwards(evaluate: Evaluate, here: Evaluation, near: Neighbours, among: Array) -> Iterator[Array]:
    """The direction of the largest second derivative, if that is positive, among combinations of some directions.

    It is found by Lanczos' method from a fixed vector. With as many products as directions it is exact, up to
    differences of gradients; with fewer it finds extreme ones first.
    """
    size = among.shape[1]
    basis: list[Array] = []
    images: list[Array] = []
    following = np.random.default_rng(0).standard_normal(len(among))
    while len(basis) < min(len(among), _PRODUCTS):
        for each in [*basis, *basis]:  # twice, for rounding
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
