"""Warnings about a model: labels of one class, undetermined magnitudes, jitter, offsets of inputs, joint maxima.

If variables with a common scale are not integrated out, the joint maximum of variables and scale is far from the
posterior. The scale is wrong, and standard deviations of other effects are too small. The maximum over the
scale alone, with the variables integrated out, is near the posterior of the scale.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV
from pymc.gp.util import JITTER_DEFAULT
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Add, Sub
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.graphs.errors import describe, listing
from pymc_gpep.graphs.interpreted import AtPoint, evaluate
from pymc_gpep.latent.gp_latent import as_it_is, jitter_of
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.integrated import LOST, large_offset
from pymc_gpep.recipes import why_no_recipe
from pymc_gpep.recipes.recipe import shape_of
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.user_warnings import warn


def warn_of_single_class(classifier: GPClassifier, labels: NDArray[Any]) -> None:
    """Warn if all labels (n,) are of one class, unless each row has separate bounds. Counts may all be equal."""
    if classifier.observes_classes and labels.size and (labels == labels[0]).all() and not _given_by_row(classifier):
        _warn(classifier, int(labels[0]), labels.size)


def _given_by_row(classifier: GPClassifier) -> bool:
    """Return whether the likelihood has arguments for each row, such as bounds of interval-censored responses."""
    if classifier.given is None:
        return False
    (shape,) = evaluate(get_symbolic_rv_shapes([classifier.given]))
    return int(shape[1]) > 1


def warn_of_single_count(classifier: GPClassifier, counts: Array) -> None:
    """Warn if all rows have the same label, given the number of rows with each label."""
    if np.count_nonzero(counts) == 1:
        _warn(classifier, int(counts.argmax()), int(counts.sum()))


def _warn(classifier: GPClassifier, label: int, rows: int) -> None:
    if not classifier.observes_classes:
        return
    of = repr(classifier.response)
    alike = f"All {rows} labels of {of} are" if rows > 1 else f"The only label of {of} is"
    warn(
        f"{alike} of the class {classifier.class_names[label]!r}, so that the data contain almost no information on "
        "hyperparameters. Check how the labels were coded and which rows were chosen, and add rows of other classes."
    )


_PROBE = 0.1  # Unconstrained change of a hyperparameter.
_NOTHING = 1e-5  # Relative change of a variance up to which the change may be due to jitter.


def warn_of_free_magnitude(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> None:
    """Warn if hyperparameters scale the latent functions, and neither likelihood nor noise determines this scale.

    Noise is the prior variance at the first row, minus the covariance with another point with the same inputs. The
    scale is undetermined if noise is zero, and random changes of all hyperparameters change the variance.
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
        f"The magnitude of the latent functions is undetermined: a {likelihood.name} likelihood depends only on "
        "which function is the largest, and the functions have no noise. The fit returns the prior mode of the "
        "magnitude. Add noise to the covariance, + pm.gp.cov.WhiteNoise(1.0), or fix the magnitude."
    )


_STEP = 0.1
_MOVE = 1.0  # Unconstrained shift of a hyperparameter about which the log posterior is symmetric.
_ROWS = 20
_MOMENT_CHANGE = 1e-10  # Largest change or derivative of moments that counts as 0.
_FEW = 20  # Largest number of hyperparameters for which differences are faster than a graph of derivatives.


def off_symmetry(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> Array:
    """Return a start about which the log posterior is not symmetric; warn if hyperparameters were moved.

    A search over all rows evaluates neighbouring points if the slope is 0. Steps over batches use only slopes. If the
    covariance depends on the square of a hyperparameter, steps from 0 would stay at 0.
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
            f"The model is symmetric about the initial value of {names}, where the gradient is zero. Batches start "
            f"from this value plus {_MOVE:g} in the unconstrained space. To choose another value, give start=..."
        )
    return theta + moves


def _without_slope(space: Hyperparameters, blocks: InducingBlocks, theta: Array, x: Array) -> NDArray[np.intp]:
    """Return the indices of hyperparameters for which a randomly weighted sum of all moments has the derivative 0."""
    point, rng = space.point(theta), np.random.default_rng(0)
    bars = Block(*(rng.normal(size=each.shape) for each in blocks.block(point, x[None], x)))
    slopes, _ = blocks.block_slopes(point, x[None], x, bars)
    return np.flatnonzero(np.abs(slopes) <= _MOMENT_CHANGE)


def _in_use(moments: Callable[[Array], Array], here: Array, theta: Array, which: NDArray[np.intp]) -> list[int]:
    """Return the hyperparameters among `which` that change the moments, by bisection, since most have no effect."""
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


_MUCH = 1e-3  # Share of the prior variance above which jitter is reported.


def warn_of_jitter(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> None:
    """Warn if the jitter of a prior exceeds PyMC's default, and the jitter that rounding requires at the first row.

    Raises
    ------
    StructureError
        If a jitter is not a number.
    """
    latents = space.classifier.latents
    jitters = {latent.f.name: jitter_of(latent) for latent in latents}
    x = blocks.rows.inputs(slice(0, 1))
    least = float(blocks.block(space.point(theta), x[None], x).variance.min())
    for name, jitter in jitters.items():
        if jitter > max(JITTER_DEFAULT, _MUCH * least):
            warn(
                f"The prior of {name!r} has a jitter of {jitter:.3g}, which fits with inducing inputs leave out. If "
                f"it is meant as noise, give the covariance a term + pm.gp.cov.WhiteNoise({jitter**0.5:.3g}) in its "
                "place."
            )


def warn_of_offset(classifier: GPClassifier) -> None:
    """Warn if inputs of Gaussian processes are so far from 0 that distances between them are inaccurate."""
    if why := large_offset(classifier.prior.processes, LOST):
        warn(why)


_FEW_FOR_DESIGN = 15  # Largest number of hyperparameters for which a message advises a central composite design.
_STEP_OF_SLOPES = 1e-3  # Unconstrained step of a hyperparameter.
_AT = (-0.6, 0.0, 0.5)  # Latent values minus prior mean at which slopes of log densities are compared.
_SLOPE_TOLERANCE = 1e-4  # Largest relative difference between equal slopes.


def warn_of_joint_maximum(fit: Fit) -> None:
    """Warn if a part of the linear predictor is maximised together with its scale, or with other effects."""
    space, classifier = fit.log_posterior.space, fit.classifier
    poor = poor_maxima(space, fit.theta[: space.size], fit.at_maximum)
    if not poor:
        return
    it, is_ = ("it", "is") if len(poor) == 1 else ("them", "are")
    names = [str(rv.name) for rv in poor]
    ways = as_it_is(classifier.model)
    if fit.converged and space.size <= _FEW_FOR_DESIGN:
        ways = f"pm.fit(..., hyper='adaptive') integrates over {it}. {ways}"
    whys: dict[str, str] = {}
    for rv in poor:
        own = classifier.reasons.get(str(rv.name)) or why_no_recipe(rv, classifier.model)
        why = own or f"{describe(rv)} is not Gaussian."
        whys.setdefault(why.replace(describe(rv), "").replace(repr(rv.name), ""), why)
    warn(
        f"{listing(poor)} {is_} maximised with other hyperparameters, not integrated. Scales are then wrong, and "
        f"standard deviations of other effects are too small. {' '.join(whys.values())} {ways} "
        f"pm.fit(..., hyperparameters={names}) accepts the maximum without this warning."
    )


def poor_maxima(space: Hyperparameters, theta: Array, at_maximum: Collection[str]) -> list[TensorVariable]:
    """Return the hyperparameters that a joint maximum represents poorly, in the order of the model.

    They are parts of the linear predictor with several entries, or with a scale that is itself a hyperparameter.
    Factors of integrated variables and other likelihood parameters need both properties, since thresholds, dispersions
    and noise usually are hyperparameters. Local scales, for example of a horseshoe, are also included. They have an
    entry for each integrated variable, and another hyperparameter multiplies the same variables.

    Length scales and magnitudes of processes, and variables that the user named in `hyperparameters`, are excluded. So
    is a `pm.Flat` without a scale: it is at the maximum of the likelihood, as intended.

    Parameters
    ----------
    space : Hyperparameters
    theta : array (d,)
        The maximum, in unconstrained coordinates.
    at_maximum : collection of str
        Names of the hyperparameters that are at their maximum.
    """
    classifier = space.classifier
    sizes = Counter(owner for owner in space.owners if owner in set(at_maximum))
    behind = set(ancestors(list(classifier.prior.predictor), blockers=classifier.prior.sources))
    learned, effect = set(classifier.learned_parameters), _Effect(space, theta)
    factors = _factors(classifier)
    noise = set().union(*(each.axes.noise for each in classifier.each if each.axes is not None))
    found = []
    for rv in classifier.hyperparameters:
        size = sizes[str(rv.name)]
        if not size or rv.name in classifier.asked or rv in noise:
            continue
        has_scale = _has_scale(rv, classifier)
        part = has_scale or (size > 1 and not isinstance(rv.owner.op, FlatRV))
        if part and ((rv in behind and effect.moves_mean(rv)) or (rv in learned and effect.shifts(rv))):
            found.append(rv)
        elif size > 1:
            scaled = [v for v, own in factors.items() if rv in own]
            alone = all(factors[v] == {rv} for v in scaled)
            local = _count(scaled, classifier) <= prod(shape_of(rv)) and not alone
            if local or (has_scale and (scaled or rv in learned)):
                found.append(rv)
    return found


def _has_scale(rv: TensorVariable, classifier: GPClassifier) -> bool:
    """Return whether the prior of a hyperparameter, or the potentials of a `pm.Flat`, depend on another one."""
    graphs = list(rv.owner.inputs)
    if isinstance(rv.owner.op, FlatRV):
        graphs += [each for each in classifier.model.potentials if rv in ancestors([each])]
    return not (set(classifier.hyperparameters) - {rv}).isdisjoint(ancestors(graphs))


def _factors(classifier: GPClassifier) -> dict[Variable, set[Variable]]:
    """Return the hyperparameters that multiply each integrated variable, except in covariances of processes."""
    hyperparameters, sources = set(classifier.hyperparameters), classifier.prior.sources
    found: dict[Variable, set[Variable]] = {
        v: hyperparameters.intersection(ancestors(classifier.prior.recipes[v].scales))
        if v in classifier.prior.recipes
        else set()
        for v in sources
    }
    nothing: set[Variable] = set()
    # Integrated variables and hyperparameters that each variable of the graph depends on.
    own = {v: ({v}, nothing) for v in sources}
    for node in io_toposort(list(sources), list(classifier.prior.predictor)):
        given = [own.get(each, (nothing, nothing)) for each in node.inputs]
        made = nothing.union(*(each for each, _ in given)), nothing.union(*(each for _, each in given))
        if not _adds(node.op):
            factors = nothing.union(*(each for integrated, each in given if not integrated))
            for v in made[0]:
                found[v] |= factors
        own |= {v: (nothing, {v}) if v in hyperparameters else made for v in node.outputs}
    return found


def _count(variables: Iterable[Variable], classifier: GPClassifier) -> int:
    """Return the total number of entries of integrated variables."""
    return sum(
        classifier.prior.recipes[v].size if v in classifier.prior.recipes else classifier.n_points for v in variables
    )


def _adds(op: Op) -> bool:
    return isinstance(op, Join | MakeVector) or (isinstance(op, Elemwise) and isinstance(op.scalar_op, Add | Sub))


class _Effect:
    """Effect of a hyperparameter on prior means and on log densities of rows, near hyperparameters theta (d,)."""

    def __init__(self, space: Hyperparameters, theta: Array) -> None:
        self._space, self._theta = space, theta

    def moves_mean(self, rv: TensorVariable) -> bool:
        """Return whether the prior mean of a latent function depends on a hyperparameter."""
        (ahead, *_), (behind, *_) = self._around(rv)
        return not np.array_equal(ahead, behind, equal_nan=True)

    def shifts(self, rv: TensorVariable) -> bool:
        """Return whether a hyperparameter acts on log densities of rows as a shift of their latent values.

        Offsets and exposures act as shifts, and so do all cutpoints of a row together. A dispersion does not.
        """
        classifier = self._space.classifier
        if classifier.n_functions > 1:
            return False
        (mean, *more), (_, *less) = self._around(rv)
        if classifier.groups is not None:
            mean = mean[:, classifier.groups.of]
        f, half = mean + np.array(_AT)[:, None, None], 0.5 * _STEP_OF_SLOPES
        same, seen = True, False
        for part, y, one, other in zip(classifier.each, more[::2], more[1::2], less[1::2], strict=True):
            own = f[..., part.rows]
            labels = part.likelihood_model.check(y, 1, own.shape[-1])
            densities = [part.likelihood_model.given(each) for each in (one, other)]
            of_rv = densities[0].log_densities(own, labels) - densities[1].log_densities(own, labels)
            pairs = [[each.log_densities(own + step, labels) for step in (half, -half)] for each in densities]
            of_f = np.sum([ahead - behind for ahead, behind in pairs], axis=0)
            # For a shift, the ratio of the slope in the hyperparameter to the slope in f is the same for all f.
            apart = np.abs(of_rv * of_f[:1] - of_rv[:1] * of_f)
            size = np.abs(of_rv).max(axis=0) * np.abs(of_f).max(axis=0)
            same &= bool((apart <= _SLOPE_TOLERANCE * size).all())
            seen |= bool(of_rv.any())
        return same and seen

    def _around(self, rv: TensorVariable) -> list[list[Array]]:
        """Return mean, labels and parameters for a slightly larger and a slightly smaller hyperparameter."""
        space = self._space
        own = np.array([owner == rv.name for owner in space.owners])
        step = 0.5 * _STEP_OF_SLOPES * np.random.default_rng(0).uniform(0.5, 1.0, size=len(own)) * own
        found = []
        for theta in (self._theta + step, self._theta - step):
            found.append([np.asarray(each) for each in self._function(space.point(theta))])
        return found

    @cached_property
    def _function(self) -> AtPoint:
        classifier = self._space.classifier
        graphs = [
            classifier.prior.mean(),
            *(graph for part in classifier.each for graph in (part.labels, part.parameters)),
        ]
        return self._space.functions(graphs)
