"""Warnings before a fit: of labels, magnitudes, starts and jitters that are hardly what was meant."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.gp.util import JITTER_DEFAULT
from pymc.pytensorf import get_symbolic_rv_shapes

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.latent.gp_latent import jitter_of
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.improper import LOST, large_offset
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.user_warnings import warn


def warn_of_single_class(classifier: GPClassifier, labels: NDArray[Any]) -> None:
    """Warn where all labels (n,) are of one class, with the same bounds at all rows; counts may be alike."""
    if classifier.observes_classes and labels.size and (labels == labels[0]).all() and not _given_by_row(classifier):
        _warn(classifier, int(labels[0]), labels.size)


def _given_by_row(classifier: GPClassifier) -> bool:
    """Whether the likelihood is given numbers of each row, such as the bounds between which a response is known."""
    if classifier.given is None:
        return False
    (shape,) = evaluate(get_symbolic_rv_shapes([classifier.given]))
    return int(shape[1]) > 1


def warn_of_single_count(classifier: GPClassifier, counts: Array) -> None:
    """The same, where only the number of rows with each label (number of labels,) is known."""
    if np.count_nonzero(counts) == 1:
        _warn(classifier, int(counts.argmax()), int(counts.sum()))


def _warn(classifier: GPClassifier, label: int, rows: int) -> None:
    if not classifier.observes_classes:
        return
    of = repr(classifier.response)
    alike = f"All {rows} labels of {of} are" if rows > 1 else f"The only label of {of} is"
    warn(
        f"{alike} of the class {classifier.class_names[label]!r}: there is nothing to tell it from, and "
        "hyperparameters are learned from next to nothing. Look at how the labels were coded and which rows were "
        "chosen, and give rows of other classes as well."
    )


_PROBE = 0.1  # of a hyperparameter, unconstrained
_NOTHING = 1e-5  # of a variance, more than a jitter


def warn_of_free_magnitude(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> None:
    """Warn where hyperparameters scale latent functions whose scale neither likelihood nor noise fixes.

    The check looks at the prior variance at the first row. It asks whether the variance has a part that other points at
    the same inputs do not share. It also asks whether the variance changes as all hyperparameters move, by drawn
    amounts.
    """
    likelihood = space.classifier.likelihood_model
    if likelihood.fixes_scale or not theta.size:
        return
    x = blocks.rows.inputs(slice(0, 1))

    def variance(at: Array) -> Array:
        return blocks.block(space.point(at), x[None], x).variance

    own = variance(theta)
    noise = own - blocks.inducing(space.point(theta), x[None])[:, :, 0]
    moved = variance(theta + _PROBE * np.random.default_rng(0).uniform(0.5, 1.0, size=theta.size))
    if (noise > _NOTHING * own).any() or np.allclose(moved, own, rtol=_NOTHING, atol=0.0):
        return
    warn(
        f"Nothing fixes the magnitude of the latent functions: a {likelihood.name} likelihood sees only which of them "
        "is largest, and they have no noise. It will end where its prior is largest. Add noise to the covariance, "
        "+ pm.gp.cov.WhiteNoise(1.0), or let the magnitude be a number."
    )


_STEP = 0.1
_MOVE = 1.0  # of what is symmetric, unconstrained
_ROWS = 20
_MOMENT_CHANGE = 1e-10  # Largest change, or derivative, of moments that counts as none.
_FEW = 20  # hyperparameters that are looked at without derivatives, whose graph takes a second to make


def off_symmetry(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> Array:
    """A start with those hyperparameters moved, and a warning, about which everything is symmetric.

    A search that sees the log posterior of all rows looks beside points without a slope. Steps by batches see slopes
    alone, and a magnitude that is used squared and begins at 0 would stay there.
    """
    if not theta.size:
        return theta
    x = blocks.rows.inputs(slice(0, min(_ROWS, blocks.rows.n_rows)))

    def moments(at: Array) -> Array:
        return np.concatenate([each.ravel() for each in blocks.block(space.point(at), x[None], x)])

    here, moves = moments(theta), np.zeros(theta.size)
    many = theta.size > _FEW
    still = _in_use(moments, here, theta, _without_slope(space, blocks, theta, x)) if many else range(theta.size)
    for j in still:
        step = _STEP * (np.arange(theta.size) == j)
        ahead, behind = theta + step, theta - step
        there = moments(ahead)
        symmetric = _same(there, moments(behind)) and _same(space.log_prior(ahead), space.log_prior(behind))
        moves[j] = _MOVE if symmetric and not _same(there, here) else 0.0
    if moves.any():
        names = " and ".join(repr(owner) for owner, move in zip(space.owners, moves, strict=True) if move)
        warn(
            f"The model is symmetric about where {names} begins, so that no gradient leads away from there. Batches "
            f"begin {_MOVE:g} beside it, unconstrained. Give another start=..."
        )
    return theta + moves


def _without_slope(space: Hyperparameters, blocks: InducingBlocks, theta: Array, x: Array) -> NDArray[np.intp]:
    """Places of the hyperparameters in which a drawn sum of all moments has the derivative 0."""
    point, rng = space.point(theta), np.random.default_rng(0)
    bars = Block(*(rng.normal(size=each.shape) for each in blocks.block(point, x[None], x)))
    slopes, _ = blocks.block_slopes(point, x[None], x, bars)
    return np.flatnonzero(np.abs(slopes) <= _MOMENT_CHANGE)


def _in_use(moments: Callable[[Array], Array], here: Array, theta: Array, which: NDArray[np.intp]) -> list[int]:
    """Places among `which` that change the moments, found by halves: most may belong to columns without an effect."""
    moved = theta.copy()
    moved[which] += _STEP
    if not which.size or _same(moments(moved), here):
        return []
    if which.size == 1:
        return [int(which[0])]
    half = which.size // 2
    return [*_in_use(moments, here, theta, which[:half]), *_in_use(moments, here, theta, which[half:])]


def _same(one: Array | float, other: Array | float) -> bool:
    return bool(np.allclose(one, other, rtol=_MOMENT_CHANGE, atol=_MOMENT_CHANGE))


_MUCH = 1e-3  # of the prior variance


def warn_of_jitter(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> None:
    """Warn where the jitter of a prior is more than PyMC's own, and than rounding needs at the first row.

    Raises
    ------
    StructureError
        If a jitter is no number.
    """
    latents = space.classifier.latents
    jitters = {latent.f.name: jitter_of(latent) for latent in latents}
    x = blocks.rows.inputs(slice(0, 1))
    least = float(blocks.block(space.point(theta), x[None], x).variance.min())
    for name, jitter in jitters.items():
        if jitter > max(JITTER_DEFAULT, _MUCH * least):
            warn(
                f"The prior of {name!r} has a jitter of {jitter:.3g}, which fits with inducing inputs leave out. Where "
                f"it is meant as noise, give the covariance a term + pm.gp.cov.WhiteNoise({jitter**0.5:.3g}) in its "
                "place."
            )


def warn_of_offset(classifier: GPClassifier) -> None:
    """Warn of inputs of Gaussian processes that are so far from 0 that distances between them are inaccurate."""
    if why := large_offset(classifier.prior.processes, LOST):
        warn(why)
