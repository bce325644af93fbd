"""Warnings before a fit: of labels, magnitudes, starts and jitters that are hardly what was meant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.gp.util import JITTER_DEFAULT
from pymc.pytensorf import get_symbolic_rv_shapes

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.latent import jitter_of
from pymc_gpep.user_warnings import warn

__all__ = ["off_symmetry", "warn_of_free_magnitude", "warn_of_jitter", "warn_of_single_class", "warn_of_single_count"]


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
    the same inputs do not share, and whether it changes with the hyperparameters.
    """
    likelihood = space.classifier.likelihood_model
    if likelihood.fixes_scale or not theta.size:
        return
    x = blocks.rows.inputs(slice(0, 1))

    def variance(at: Array) -> Array:
        return blocks.block(space.point(at), x[None], x).variance

    own = variance(theta)
    noise = own - blocks.inducing(space.point(theta), x[None])[:, :, 0]
    moved = [variance(theta + _PROBE * step) for step in np.eye(theta.size)]
    if (noise > _NOTHING * own).any() or all(np.allclose(each, own, rtol=_NOTHING, atol=0.0) for each in moved):
        return
    warn(
        f"Nothing fixes the magnitude of the latent functions: a {likelihood.name} likelihood sees only which of them "
        "is largest, and they have no noise. It will end where its prior is largest. Add noise to the covariance, "
        "+ pm.gp.cov.WhiteNoise(1.0), or let the magnitude be a number."
    )


_STEP = 0.1
_MOVE = 1.0  # of what is symmetric, unconstrained
_ROWS = 20
_SAME = 1e-10


def off_symmetry(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> Array:
    """A start with those hyperparameters moved, and a warning, about which everything is symmetric.

    A search that sees the log posterior of all rows looks beside points without a slope. Steps by batches see slopes
    alone, and a magnitude that is used squared and begins at 0 would stay there.
    """
    x = blocks.rows.inputs(slice(0, min(_ROWS, blocks.rows.n_rows)))

    def looked_at(at: Array) -> Array:
        block = blocks.block(space.point(at), x[None], x)
        return np.concatenate([*(each.ravel() for each in block), [space.log_prior(at)]])

    here, moves = looked_at(theta) if theta.size else np.empty(0), np.zeros(theta.size)
    for j, step in enumerate(_STEP * np.eye(theta.size)):
        ahead, behind = looked_at(theta + step), looked_at(theta - step)
        same = np.allclose(ahead, behind, rtol=_SAME, atol=_SAME)
        moves[j] = _MOVE if same and not np.allclose(ahead, here, rtol=_SAME, atol=_SAME) else 0.0
    if moves.any():
        names = " and ".join(repr(owner) for owner, move in zip(space.owners, moves, strict=True) if move)
        warn(
            f"The model is symmetric about where {names} begins, so that no gradient leads away from there. Batches "
            f"begin {_MOVE:g} beside it, unconstrained. Give another start=..."
        )
    return theta + moves


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
