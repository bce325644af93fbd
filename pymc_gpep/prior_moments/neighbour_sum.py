"""A sum of a nearest-neighbour Gaussian process and effects, in coordinates with a sparse precision.

Coordinates of the process are its values at distinct inputs, called places. Places have an order. The prior of a value
is its regression on values at neighbours, which are earlier places (Vecchia 1988). Rows at the same place have the same
value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.precision_prior import NeighbourPrior, NeighbourStructure
from pymc_gpep.gaussians.prior_form import BoundForm, PriorForm, TakesForms
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.latent.gp_latent import LatentGP, jitter_of
from pymc_gpep.latent.latent_prior import PriorAtNewRows, RowsOfNormals
from pymc_gpep.prior_moments.inducing_sum import (
    OneProcessInForm,
    equal_inputs,
    process_functions_of,
    process_inputs,
)
from pymc_gpep.prior_moments.precision_sum import PrecisionAtNewRows, PrecisionSum, SparseSlopes
from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.processes.neighbours import NeighbourChoice, NeighbourRegressions
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.neighbour_precision import NeighbourSets, continued
from pymc_gpep.sums.affine_map import AffineMap, every_entry
from pymc_gpep.sums.latent_sum import EffectsAtNewRows, LatentSum
from pymc_gpep.sums.new_data import NewData, RowsOfData
from pymc_gpep.sums.sum_at_new_rows import ARGUMENT


@dataclass(frozen=True, eq=False)
class NeighbourSum(OneProcessInForm, PrecisionSum):
    """A sum of effects and of a nearest-neighbour process.

    Values of the centred process at its places, in order, follow the coordinates of effects.

    Attributes
    ----------
    neighbours : int
        Number of neighbours of a place.
    point_places : array (points,)
        Index of the place of each point of the process, in the order of places.
    ordered : array (p, d)
        Inputs of the places, in order, minus the centre.
    centre : array (d,)
        Offset that is subtracted from inputs, see `NeighbourChoice.centre`.
    sets : NeighbourSets
        Neighbours of each place.
    choice : NeighbourChoice
        Object that chooses neighbours at a point of the hyperparameters.
    """

    neighbours: int = 0
    point_places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    ordered: Array = field(default_factory=lambda: np.empty((0, 0)))
    centre: Array = field(default_factory=lambda: np.empty(0))
    sets: NeighbourSets | None = None
    choice: NeighbourChoice | None = None

    @classmethod
    def by_sets(
        cls, plain: LatentSum, neighbours: int, point: PointType, data: Mapping[Variable, Variable]
    ) -> "NeighbourSum":
        """Return the sum with neighbours chosen at a point of the hyperparameters.

        Raises
        ------
        StructureError
            If rows have many coefficients of effects, so that the precision is not sparse. If inputs depend on random
            variables.
        """
        (latent,) = plain.processes
        stop = set(plain.model.basic_RVs)
        if behind := stop.intersection(ancestors([process_functions_of(plain).inputs], blockers=stop)):
            raise StructureError(
                f"Inputs of the process depend on {listing(behind)}, but neighbours= needs inputs from data. Leave "
                "neighbours out."
            )
        inputs = process_inputs(plain, data)
        places = equal_inputs(plain, data)
        first = np.unique(places, return_index=True)[1]
        choice = NeighbourChoice(plain.without_effects(latent), inputs.shape[1], data)
        centre = choice.centre(point, inputs[first])
        order, sets = choice.sets(point, inputs[first] - centre, neighbours)
        made = cls._with({v: each.as_field for v, each in plain.recipes.items()}, plain)
        assert isinstance(made, NeighbourSum)
        ordered, point_places = inputs[first[order]] - centre, np.argsort(order)[places]
        own: dict[str, Any] = {"point_places": point_places, "ordered": ordered, "centre": centre}
        part = replace(made, neighbours=neighbours, sets=sets, choice=choice, **own)
        rows = part._rows(data)
        if rows.entries is None:
            raise StructureError(
                "With neighbours a row must depend on few effects, but rows depend on many effects. Leave neighbours "
                "out for an exact prior, or take inducing=200."
            )
        values = None
        if plain.recipes:
            values = SparseSlopes(part, {str(v.name): v for v in plain.recipes}, part.blocks, data)
        together = values if values is not None and values.entries is not None else None
        return replace(part, slopes=rows, structure=part.structured(rows, together))

    def keeps(self, point: PointType) -> bool:
        """Return whether the same neighbours are chosen at another point of the hyperparameters."""
        assert self.sets is not None
        assert self.choice is not None
        order, sets = self.choice.sets(point, self.ordered, self.neighbours)
        return np.array_equal(order, np.arange(len(order))) and np.array_equal(self.sets.cells, sets.cells)

    # Coordinates.

    @property
    def _latent(self) -> LatentGP:
        return self.processes[0]

    @property
    def n_normals(self) -> int:
        return self.n_plain + len(self.ordered)

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        return [*super().blocks, (len(self.ordered),)]

    def _process_by_normals(
        self, latent: LatentGP, shape: tuple[int, ...], z: TensorVariable
    ) -> tuple[TensorVariable, None]:
        values = z[self.n_plain :][pt.constant(self.point_places)]
        return values if len(shape) == 1 else values[None], None

    # The prior.

    def structured(self, rows: SparseSlopes, values: SparseSlopes | None) -> NeighbourStructure:
        assert self.sets is not None
        own = super().structured(rows, values)
        first, second = (np.r_[one, self.n_plain + other] for one, other in
                         ((own.first, self.sets.first), (own.second, self.sets.second)))  # fmt: skip
        return NeighbourStructure(
            own.cells,
            first,
            second,
            own.columns,
            own.widths,
            own.together,
            own.flat,
            sets=self.sets,
            inputs=self.ordered,
        )

    @cached_property
    def _regressions(self) -> TensorVariable:
        assert self.sets is not None
        functions = process_functions_of(self)
        op = NeighbourRegressions(self.model, functions, jitter_of(self._latent), self.ordered, self.sets)
        found: TensorVariable = op(*op.leaves)
        return found

    def array(self) -> TensorVariable:
        found: TensorVariable = pt.concatenate([super().array().ravel(), self._regressions])[None, None]
        return found

    @property
    def arrays(self) -> Mapping[type[PriorForm], Callable[[], TensorVariable]]:
        return {NeighbourPrior: self.array}

    def bound(self, prior_type: type[PriorForm], data: Mapping[Variable, Variable]) -> tuple[Any, TensorVariable]:
        assert self.structure is not None
        return BoundForm(NeighbourPrior, self.structure), self.array()

    def roots(self) -> None:
        """See `LatentPrior`: None, since the form of the prior contains the coefficients."""

    # New data.

    def regressions(self, point: PointType, x: Array) -> tuple[Array, Array, NDArray[np.int64]]:
        """Return coefficients (s, m), residual variances (s,) and neighbours (s, m) of a process at inputs (s, d)."""
        assert self.choice is not None
        assert self.sets is not None
        assert self.structure is not None
        places, p = np.concatenate([self.ordered, x - self.centre]), len(self.ordered)
        m, pattern = self.sets.cells.shape[1] + 1, self.structure.posterior
        near, counts = self.choice.cliques(point, places[p:], self.ordered, m, pattern)
        return *self.choice.regressions(point, places, jitter_of(self._latent), near, counts), self.n_plain + near

    def drawn(self, point: PointType, x: Array, values: Array, rng: np.random.Generator) -> Array:
        """Return draws (count, s) of the process at new inputs (s, d), given draws (count, p) of its values at places.

        The value at a new place is drawn from its regression on the nearest places of the data and earlier new places.
        """
        assert self.choice is not None
        p, jitter = len(self.ordered), jitter_of(self._latent)
        moved = x - self.centre
        order = self.choice.order(point, moved)
        places = np.concatenate([self.ordered, moved[order]])
        m = min(self.neighbours, p)
        near = self.choice.earlier(point, places[p:], places, m, np.arange(p, len(places)))
        b, d = self.choice.regressions(point, places, jitter, near, np.full(len(x), m))
        found = np.empty((len(values), len(x)))
        for some in row_blocks(len(values), len(places)):
            noise = np.sqrt(d) * rng.standard_normal(found[some].shape)
            found[some, order] = continued(values[some], noise, near, b)
        return found

    def variables_at_new_rows(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> "NeighbourEffects":
        return NeighbourEffects(self, names, data, x, new)

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        return NeighboursAtNewRows(self, self.blocks, np.r_[self._independent, np.zeros(len(self.ordered), bool)], data)


class NeighbourEffects(EffectsAtNewRows):
    """Variables at new data, with the process at new inputs by its neighbours among the places of the fit."""

    _prior: NeighbourSum

    @property
    def _units(self) -> Array | None:
        """See `EffectsAtNewRows`: unit vectors of effects, if the process is at new inputs."""
        return np.eye(self._prior.n_plain, self._prior.n_normals) if self._moved else None

    def _process_at(self, i: int, point: PointType, x: Array) -> tuple[Array, Array, NDArray[np.int64]]:
        b, d, near = self._prior.regressions(point, x)
        begin = self._prior.n_plain
        ahead = np.zeros((len(x), len(self._prior.ordered)))
        np.add.at(ahead, (np.arange(len(x))[:, None], near - begin), b)
        return ahead, d, np.arange(begin, self._prior.n_normals)[None]


class NeighboursAtNewRows(PrecisionAtNewRows):
    """Coefficients of coordinates at new rows, with the process at new inputs by its neighbours."""

    _prior: NeighbourSum

    def _process_at(self, point: PointType, x: NewData | RowsOfData) -> tuple[Array, Array, NDArray[np.int64]] | None:
        """Return coefficients (m,), new places (s, d), and places of rows (m,); None if no process is at new inputs."""
        if isinstance(x, RowsOfData) or not self._moved(x.names):
            return None
        x = self._resolved(point, x)
        extra = self.behind.free_length(m := len(x))
        there = self._evaluated(self._whole(point, x), point, x.values(extra), extra, [extra])
        ((own,),), (inputs,) = there.taken, there.inputs
        places, of = np.unique(inputs[own.cells[0, :m]], axis=0, return_inverse=True)
        return own.coefficients[0, :m], places, of.ravel()

    def draws(
        self, point: PointType, x: Any, prior: PriorForm, rng: np.random.Generator, f: Array, z: Array
    ) -> Iterator[tuple[slice, Array]]:
        """See `PriorAtNewRows`. Values of the process at all new places are drawn in one block."""
        if (process := self._process_at(point, x)) is None:
            yield from super().draws(point, x, prior, rng, f, z)
            return
        coefficient, places, of = process
        values = self._prior.drawn(point, places, z[:, 0, self._prior.n_plain :], rng)
        found = prior.draw_at(rng, f, z, *super().by_normals(point, x))
        found += coefficient * values[:, None, of]
        yield slice(0, len(x)), found

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """See `PriorAtNewRows`."""
        found = super().by_normals(point, x)
        if (process := self._process_at(point, x)) is None:
            return found
        coefficient, places, cells = process
        b, d, near = self._prior.regressions(point, places)
        assert isinstance(found.rows, Entries)
        rows = Entries(
            np.concatenate([found.rows.cells, near[cells]], axis=1),
            np.concatenate([found.rows.values, coefficient[:, None] * b[cells]], axis=1),
            found.rows.q,
        )
        return RowsOfNormals(rows, found.residual_covariance + (coefficient**2 * d[cells])[:, None, None], found.mean)

    def _rows_at(self, point: PointType, affine: AffineMap, values: Sequence[Any], m: int) -> tuple[Array, Entries]:
        prior = self._prior
        spread = partial(prior.by_function, n_points=m, batched=True)
        centre, linear = affine.along(point, ARGUMENT, values, spread, [m] * len(affine.moved))
        return prior.by_function(centre, m), every_entry(linear, self._blocks)


def takes_neighbours(approximator: TakesForms) -> bool:
    """Return whether an approximation supports nearest-neighbour processes."""
    return approximator.takes(NeighbourPrior)


def by_neighbours(classifier: GPClassifier, neighbours: int, point: PointType) -> GPClassifier:
    """Return a classifier whose prior represents its process by neighbours, which are chosen at a point."""
    prior = classifier.prior
    assert isinstance(prior, LatentSum)
    if isinstance(prior, NeighbourSum):
        return classifier
    key = "neighbours", neighbours, *(np.asarray(value).tobytes() for value in point.values())
    if prior.made.get("neighbours", (None,))[0] != key:
        prior.made["neighbours"] = key, NeighbourSum.by_sets(prior, neighbours, point, frozen_data(prior.model))
    return replace(classifier, prior=prior.made["neighbours"][1])
