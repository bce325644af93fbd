"""Latent functions that are sums of effects, by numbers x with a sparse precision in place of standard normals.

A variable is its mean and numbers that its distribution has a sparse precision of (`Field`), or standard normals. All
that is known of sums holds of these numbers as well: coefficients, moments, draws and new rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.gaussians.precision_prior import PrecisionPrior
from pymc_gpep.gaussians.prior import BoundPrior, DensePrior
from pymc_gpep.solvers.factor_pattern import pairs_of_rows
from pymc_gpep.solvers.precision_structure import PrecisionStructure
from pymc_gpep.solvers.prior_form import TakesForms
from pymc_gpep.structure.classifier import GPClassifier
from pymc_gpep.structure.latent_prior import Elsewhere
from pymc_gpep.structure.latent_sum import LatentSum
from pymc_gpep.structure.precision_elsewhere import PrecisionElsewhere
from pymc_gpep.structure.precision_variables import PrecisionVariables
from pymc_gpep.structure.prior_functions import frozen_data
from pymc_gpep.structure.recipes.recipe import shape_of
from pymc_gpep.structure.sparse_slopes import SparseSlopes
from pymc_gpep.structure.sum_values import SumValues

_MANY = 500  # standard normals, below which matrices of them cost next to nothing
_PAIRS = 40_000_000  # of entries of rows, at most: 160 MB of their places
_DEARER = 50.0  # times that a product of a sparse factorisation takes as long as one of dense matrices


@dataclass(frozen=True, eq=False)
class PrecisionSum(LatentSum):
    """A sum of effects by numbers with a sparse precision.

    Attributes
    ----------
    plain : LatentSum
        The same by standard normals.
    slopes : SparseSlopes
        The latent function by x.
    structure : PrecisionStructure
        Where coefficients and precision have entries, with the data of the model that it was made with.
    """

    plain: LatentSum | None = None
    slopes: SparseSlopes | None = None
    structure: PrecisionStructure | None = None

    @classmethod
    def of(cls, plain: LatentSum, data: Mapping[Variable, Variable]) -> "PrecisionSum | None":
        """Return a sum by numbers with a sparse precision; None where matrices of standard normals are cheaper."""
        n, q = plain.n_points, plain.n_normals
        if plain.n_functions > 1 or plain.processes or q < _MANY or plain.seen:
            return None
        made = {v: each.by_field() for v, each in plain.recipes.items()}
        own = {each.name: getattr(plain, each.name) for each in fields(LatentSum)}
        part = cls(**{**own, "recipes": made}, plain=plain)
        rows = SparseSlopes(part, [part.shaped(part.argument, n)[0]], part.blocks, data)
        if rows.entries is None or n * rows.entries.cells.shape[1] ** 2 > _PAIRS:
            return None
        values = SparseSlopes(part, list(plain.recipes), part.blocks, data)
        if values.entries is None:
            return None
        structure = part.structured(rows, values)
        dense = q if n >= 2 * q else n
        if _DEARER * structure.posterior.flops > float(dense) ** 3:
            return None
        return replace(part, slopes=rows, structure=structure)

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """Shapes of the numbers of each variable."""
        found: list[tuple[int, ...]] = []
        for variable, recipe in self.recipes.items():
            shape = shape_of(variable)
            own = shape if int(np.prod(shape)) == recipe.size else (recipe.size,)
            found += recipe.as_field.blocks or (own,)
        return found

    def structured(self, rows: SparseSlopes, values: SparseSlopes) -> PrecisionStructure:
        """Return where rows and precision have entries; covariances of the entries of a variable are wanted, too."""
        assert rows.entries is not None
        assert values.entries is not None
        given = [each.as_field for each in self._plain.recipes.values()]
        begins = [own.start for own in self.places.values()]
        columns = np.zeros((sum(len(each.widths) for each in given), self.n_normals))
        ends = accumulate(len(each.widths) for each in given)
        for each, begin, end in zip(given, begins, ends, strict=True):
            columns[end - len(each.widths) : end, begin : begin + each.columns.shape[1]] = each.columns
        return PrecisionStructure(
            rows.entries.cells,
            np.concatenate([each.first + begin for each, begin in zip(given, begins, strict=True)]),
            np.concatenate([each.second + begin for each, begin in zip(given, begins, strict=True)]),
            columns,
            np.concatenate([each.widths for each in given]),
            [pairs_of_rows(values.entries.cells)],
        )

    @property
    def _plain(self) -> LatentSum:
        assert self.plain is not None
        return self.plain

    def array(self) -> TensorVariable:
        """Return coefficients of rows and entries of the precision, (1, 1, nk + m)."""
        assert self.slopes is not None
        entries = [each.as_field.entries(each.scales).astype("float64") for each in self._plain.recipes.values()]
        found: TensorVariable = pt.concatenate([self.slopes.graph().ravel(), *entries])[None, None]
        return found

    @property
    def arrays(self) -> Mapping[type[DensePrior], Callable[[], TensorVariable]]:
        return {PrecisionPrior: self.array}

    def bound(self, prior_type: type[DensePrior], data: Mapping[Variable, Variable]) -> tuple[Any, TensorVariable]:
        assert self.structure is not None
        return BoundPrior(PrecisionPrior, self.structure), self.array()

    def covariances(self) -> TensorVariable:
        return self._plain.covariances()

    def roots(self) -> TensorVariable:
        return self._plain.roots()

    def sampled(self, data: Mapping[Variable, Variable]) -> SumValues:
        return self._plain.sampled(data)

    def variables(self, data: Mapping[Variable, Variable]) -> PrecisionVariables:
        return PrecisionVariables(self, self.blocks, data)

    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> Elsewhere:
        independent = [each.field is None for each in self._plain.recipes.values() for _ in range(each.size)]
        return PrecisionElsewhere(self, self.blocks, np.array(independent), data)


def suited(classifier: GPClassifier, approximator: TakesForms) -> GPClassifier:
    """Return a classifier whose prior suits an approximation and the size of the model best.

    Sums of many effects are given by a sparse precision to approximations that take one.
    """
    prior = classifier.prior
    plain = prior.plain if isinstance(prior, PrecisionSum) else prior
    if not isinstance(plain, LatentSum):
        return classifier
    if not approximator.takes(PrecisionPrior.form):
        return classifier if plain is prior else replace(classifier, prior=plain)
    if plain is not prior:
        return classifier
    if "by precision" not in plain.made:
        plain.made["by precision"] = PrecisionSum.of(plain, frozen_data(plain.model))
    found = plain.made["by precision"]
    return classifier if found is None else replace(classifier, prior=found)
