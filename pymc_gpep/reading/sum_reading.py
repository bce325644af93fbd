"""Reading of the prior of latent functions that are sums of effects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import in_double_precision
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import EVALUATION_TOLERANCE, SEED, evaluate, initial_point
from pymc_gpep.processes.processes import with_functions
from pymc_gpep.reading.integrated import Gaussians, quoted, why_improper
from pymc_gpep.recipes import unprojected
from pymc_gpep.sums.affine_map import AffineMap, probes
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.row_parts import ProcessTerm

_SHOWN = 5  # rows that a message names
_NUMBERS = 4_000_000  # coefficients that are held at a time, 32 MB


def read_sum(
    model: pm.Model,
    gaussians: Gaussians,
    argument: TensorVariable,
    observed: Sequence[TensorVariable],
    by_class: bool,
    sees_common: bool = True,
) -> LatentSum:
    """Read the prior of latent functions that are affine in Gaussian variables.

    Parameters
    ----------
    model : pm.Model
    gaussians : Gaussians
        Gaussian variables that the argument is affine in.
    argument : TensorVariable
        The argument of the likelihood.
    observed : sequence of TensorVariable
        The observed variables, whose rows stand one after another.
    by_class : bool
        Whether the argument has an axis for functions.
    sees_common : bool
        Whether the likelihood sees what is added to all functions of a point.

    Raises
    ------
    StructureError
        If the number of functions or that of points does not fit.
    """
    stop = [*model.basic_RVs, *gaussians.processes]
    labels = [model.rvs_to_values[each] for each in observed]
    if any(each.ndim == 0 for each in labels):
        raise StructureError(f"{quoted(observed)} must be observed with an axis for points, but has none.")
    (argument,) = in_double_precision([argument.astype("float64")], stop)
    latents = tuple(gaussians.processes.values())
    shapes = evaluate(get_symbolic_rv_shapes([latent.free for latent in latents])) if latents else []
    sizes = tuple(tuple(map(int, shape)) for shape in shapes)
    outputs = [tuple(range(shape[0])) if len(shape) > 1 else (0,) for shape in sizes]
    processes = tuple(with_functions(*each, model, stop) for each in zip(latents, outputs, strict=True))
    n = sum(int(each) for each in evaluate([each.shape[0] for each in labels]))
    if n == 0:
        raise StructureError(f"{quoted(observed)} has no points. Declare the model with one row at least.")
    part = LatentSum(
        model, n, 1, argument, by_class, dict(gaussians.recipes), processes, sizes, dict(gaussians.kept),
        np.zeros(0, np.int64),
    )  # fmt: skip
    found = _Numbers(part, quoted(observed))
    if shared := found.shared():
        own = {v: unprojected(v, part.recipes[v]) for v in shared if v in part.recipes and not sees_common}
        apart = {v: each for v, each in own.items() if each is not None}
        again = _Numbers(replace(part, seen=apart), quoted(observed)) if len(apart) == len(shared) else found
        if not again.shared() and again.differs_by_common(found):
            found = again
    return found.completed()


class _Numbers:
    """Coefficients of a sum near the initial point of a model, which show its functions and their normals.

    Parameters
    ----------
    part : LatentSum
        Not yet complete.
    name : str
        Quoted name of what is observed.
    """

    def __init__(self, part: LatentSum, name: str) -> None:
        self.part, self._name = part, name
        by_class = part.by_class
        if not by_class:  # fields need no roots of matrices, and are as many numbers
            part = replace(part, recipes={v: each.by_field() for v, each in part.recipes.items()})

        def by(z: TensorVariable, g: Mapping[TensorVariable, TensorVariable]) -> list[TensorVariable]:
            return part.by_parts([part.argument], z, list(g.values()), seen=True)

        self._affine = AffineMap(part, {"argument": part.argument}, {}, part.processes, by=by, size=part.n_plain)
        start = initial_point(part.model)
        self._nothing = [np.zeros(shape) for shape in part.sizes]
        rng = np.random.default_rng(SEED)
        self._noise = rng.standard_normal(part.n_plain)
        begun = [self._affine.at(start, normals, self._nothing) for normals in (np.zeros(part.n_plain), self._noise)]
        # A coefficient that begins at 0 is not there yet.
        self._point = self._affine.functions.nearby(rng)
        (self._centre,) = self._affine.at(self._point, np.zeros(part.n_plain), self._nothing)
        columns = np.shape(self._centre)[-1] if np.ndim(self._centre) else 1
        self._shape = (part.n_points, columns)[: 1 + by_class]
        self.c = columns if by_class else 1
        self._check_finite([argument for argument, *_ in begun])

    def slopes(self) -> Iterator[Array]:
        """Return coefficients (s, c, n) of some normals at a time, in their order; all would take q times as much."""
        q, step = self.part.n_plain, max(1, _NUMBERS // (self.c * self.part.n_points))
        for start in range(0, q, step):
            units = np.zeros((min(step, q - start), q))
            units[range(len(units)), range(start, start + len(units))] = 1.0
            found = self.part.plain_map(self._point, units=units).slopes["argument"]
            yield np.array([self._by_function(each) for each in found])

    def _by_function(self, found: Array) -> Array:
        """(c, n) of what broadcasts to the shape of the argument."""
        try:
            spread = np.broadcast_to(found, self._shape)
        except ValueError:
            raise StructureError(
                f"The argument of {self._name} has the shape {np.shape(found)}, but there are {self.part.n_points} "
                "observations. Give it a value for each."
            ) from None
        return spread.T if self.part.by_class else spread[None]

    def _check_finite(self, arguments: Sequence[Array]) -> None:
        """Refuse an argument that is not finite where the model begins."""
        n = self.part.n_points
        finite = np.all([np.isfinite(self._by_function(each)).all(axis=0) for each in arguments], axis=0)
        wrong = np.flatnonzero(~finite).tolist()
        if len(wrong) == n:
            why = why_improper(self.part, initial_point(self.part.model))
            raise StructureError(
                f"The argument of {self._name} is not finite at the initial point of the model. "
                f"{why or 'Give hyperparameters other initial values, initval=....'}"
            )
        if wrong:
            raise StructureError(
                f"The argument of {self._name} is not finite at {len(wrong)} of {n} rows (position "
                f"{'; '.join(map(str, wrong[:_SHOWN]))}{'; ...' * (len(wrong) > _SHOWN)}). Look for missing values in "
                "the data that it is computed from, and in the parameters of its Gaussian variables."
            )

    def _change(self, i: int, values: Array) -> Array:
        """Return the change of the latent functions by values of a process, (c, n)."""
        given = [*self._nothing[:i], values, *self._nothing[i + 1 :]]
        (moved,) = self._affine.at(self._point, np.zeros(self.part.n_plain), given)
        return self._by_function(moved) - self._by_function(self._centre)

    @cached_property
    def _outputs(self) -> list[NDArray[np.bool_]]:
        """Whether each output of a process has a part in each function, (outputs, c) for each process."""
        found = []
        for i, shape in enumerate(self.part.sizes):
            noise = probes(shape)[2]
            count = shape[0] if len(shape) > 1 else 1
            masked = [noise * (np.arange(count) == o)[:, None] if len(shape) > 1 else noise for o in range(count)]
            found.append(np.array([self._change(i, each).any(axis=1) for each in masked]))
        return found

    @cached_property
    def _taken(self) -> NDArray[np.bool_]:
        """Whether each normal has a part in each function, (q, c)."""
        of_processes = [
            np.repeat(own, shape[-1], axis=0) for own, shape in zip(self._outputs, self.part.sizes, strict=True)
        ]
        if self.part.by_class:
            plain = [np.zeros((0, self.c), bool), *(each.any(axis=2) for each in self.slopes())]
        else:
            plain = [np.ones((self.part.n_plain, 1), bool)]
        return np.concatenate([*plain, *of_processes])

    def shared(self) -> list[TensorVariable]:
        """Return the variables that several functions depend on by the same normals."""
        several = self._taken.sum(axis=1) > 1
        return [variable for variable, own in self.part.places.items() if several[own].any()]

    def differs_by_common(self, other: "_Numbers") -> bool:
        """Tell whether functions differ from those of other recipes by what all functions of a point share."""
        largest = unequal = 0.0
        for ours, theirs in zip(self.slopes(), other.slopes(), strict=True):
            apart = ours - theirs
            unequal = max(unequal, float(np.abs(apart - apart[:, :1]).max()))
            largest = max(largest, float(np.abs(ours).max()))
        return unequal <= EVALUATION_TOLERANCE * (1.0 + largest)

    def completed(self) -> LatentSum:
        """Return the sum with its functions, and the terms that processes are."""
        owner = np.asarray(self._taken.argmax(axis=1), dtype=np.int64)
        whole = replace(self.part, n_functions=self.c, owner=owner, shared=bool(self.shared()))
        if whole.shared:
            self._check()
            return whole
        given = [[self._change(i, probe) for probe in probes(shape)] for i, shape in enumerate(self.part.sizes)]
        terms = [_term(whole, i, *each) for i, each in enumerate(zip(given, self._outputs, strict=True))]
        self._check()
        return replace(whole, terms=tuple(terms))

    def _check(self) -> None:
        """Check that twice the normals change the argument twice as much."""
        arguments = [self._affine.at(self._point, t * self._noise, self._nothing)[0] for t in (1.0, 2.0)]
        once, twice = (self._by_function(each) - self._by_function(self._centre) for each in arguments)
        size = 1.0 + np.abs(self._by_function(self._centre)).max() + np.abs(twice).max()
        if not np.allclose(2.0 * once, twice, rtol=0.0, atol=EVALUATION_TOLERANCE * size):
            raise StructureError(
                f"The argument of {self._name} was read as affine in Gaussian variables, and is not. Please report "
                "this model."
            )


def _term(prior: LatentSum, i: int, given: list[Array], taken: NDArray[np.bool_]) -> ProcessTerm:
    return ProcessTerm.read(prior.processes[i], prior.sizes[i], partial(prior.of_process, i), given, taken.T)
