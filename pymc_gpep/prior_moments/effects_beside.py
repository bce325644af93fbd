"""A sum of one Gaussian process and effects, for methods with inducing inputs.

The process is represented by inducing values. Effects are J z with standard normals z. A row of J is computed from the
graph of the likelihood's argument, with the data of that row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.graphs.affine import Affinity
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import ModelFunctions, initial_point
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import PriorAtNewRows
from pymc_gpep.prior_moments.proper_posteriors import check_columns
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.sums.effects_of_rows import EffectsOfRows
from pymc_gpep.sums.latent_sum import LatentSum, SumInForm
from pymc_gpep.sums.sum_values import SumVariables

# Standard deviation of the normal prior in place of a flat prior, for the product of a coefficient and the root mean
# square of its column.
_WIDE = 1024.0
_ALL_ROWS = 'Methods on all rows together, "ep", "laplace", "kl", "nested_ep" and similar methods,'


def by_inducing(classifier: GPClassifier) -> GPClassifier:
    """Return a classifier whose prior is a process plus effects; the classifier itself if its prior is not such a sum.

    Raises
    ------
    StructureError
        If the sum has several latent functions or processes, if rows select or multiply values of the process, or if
        responses are missing.
    """
    classifier.check_one()
    whole = classifier.prior
    if not isinstance(whole, LatentSum) or isinstance(whole, ProcessPlusEffects) or whole.alone or not whole.recipes:
        return classifier
    instead = f"{_ALL_ROWS} fit it."
    if not whole.processes:
        raise StructureError(
            "Inducing inputs need a Gaussian process, and the latent function is a sum of effects without a process. "
            f"{instead} They need no inducing inputs for up to a million rows."
        )
    if whole.n_functions > 1 or len(whole.processes) > 1:
        several = "latent functions" if whole.n_functions > 1 else "processes"
        names = listing(latent.f for latent in whole.processes)
        raise StructureError(
            f"Inducing inputs with effects need one latent function with one Gaussian process, and this model has "
            f"several {several}: {names}. {instead} Or write a process as pm.gp.HSGP, with its inputs as data: "
            "hsgp.prior('g', X=pm.Data('x', X))."
        )
    if whole.fitted is not None:
        raise StructureError(
            "Methods with inducing inputs need a response of each row. Leave out the rows without one, of all data: "
            f"keep = pd.notna(y). {_ALL_ROWS} do so themselves."
        )
    (latent,) = whole.processes
    if not all(term.whole for term in whole.terms) or whole.sizes != ((whole.n_points,),):
        raise StructureError(
            f"Inducing inputs need a term + {latent.f.name} with one value for each row, but rows select or multiply "
            f"values of {latent.f.name!r}. {instead} Or give .prior(X=...) the inputs of all rows, and multiply "
            "cov_func by the square of a constant factor."
        )
    whole = _with_wide_priors(classifier, whole)
    own = whole.owner[: whole.n_plain]
    return replace(classifier, prior=ProcessPlusEffects.made_of(whole, owner=own))


def _with_wide_priors(classifier: GPClassifier, whole: LatentSum) -> LatentSum:
    """Return a sum with normal priors in place of flat priors. Their standard deviation in a typical row is `_WIDE`.

    Raises
    ------
    StructureError
        If the posterior is improper under the flat priors.
    """
    if not whole.flat:
        return whole
    units = np.zeros((len(whole.flat), whole.n_plain))
    units[np.arange(len(units)), whole.flat] = 1.0
    slopes = whole.plain_map.graphs("argument", [pt.constant(units)])[1]
    columns = whole.shaped(slopes, whole.n_points, batched=True)
    values = ModelFunctions(classifier.model, classifier.hyperparameters)(
        [classifier.parameters, classifier.labels, columns]
    )(initial_point(classifier.model))
    likelihood = classifier.likelihood_model.given(np.asarray(values[0], np.float64))
    labels, found = likelihood.check(values[1], 1, whole.n_points), np.asarray(values[2], np.float64)
    check_columns(found, labels, likelihood, whole.recipes)
    # Deviations are powers of 2, so that products with them are exact.
    deviations = _WIDE * 2.0 ** -np.round(np.log2(np.sqrt((found[0] ** 2).mean(axis=0))))
    recipes, begin = {}, 0
    for variable, each in whole.recipes.items():
        end = begin + len(each.flat)
        recipes[variable] = each.widened(deviations[begin:end]) if each.flat else each
        begin = end
    return replace(whole, recipes=recipes)


@dataclass(frozen=True, eq=False)
class ProcessPlusEffects(SumInForm):
    """A sum of a process, represented by inducing values, and of effects, represented by standard normals."""

    @cached_property
    def latents(self) -> tuple[LatentGP, ...]:  # type: ignore[override]
        (latent,) = self.processes
        return self.without_effects(latent).latents

    @property
    def held(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`: empty, since draws do not contain values of the process at rows."""
        return ()

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.free for latent in self.processes)

    @property
    def n_normals(self) -> int:
        """See `LatentPrior`: the number of standard normals of the effects."""
        return self.n_plain

    def _process_by_normals(
        self, latent: LatentGP, shape: tuple[int, ...], z: TensorVariable
    ) -> tuple[TensorVariable, None]:
        """See `EffectSum`: the centred process is 0."""
        return pt.zeros(shape), None

    @property
    def arrays(self) -> Mapping[type[PriorForm], Callable[[], TensorVariable]]:
        return {DensePrior: self.covariances}

    def roots(self) -> None:
        """See `LatentPrior`: None, since the process has no coefficients."""

    def variables(self, data: Mapping[Variable, Variable]) -> SumVariables:
        """See `LatentPrior`: the effects, without the process."""
        return _EffectsAlone(self, data)

    def variables_at_new_rows(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> NoReturn:
        raise NotImplementedError(
            "A fit with inducing inputs cannot predict single effects at new inputs or data. Predict the latent "
            "function instead: fit.predict(Xnew, data={...})."
        )

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        return self.plain.at_new_rows(gps, data)

    def effect_rows(self, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> EffectsOfRows:
        return EffectsOfRows(self, inputs, data)


class _EffectsAlone(SumVariables):
    """Effects as affine functions of standard normals, without the process."""

    def _check(self, names: Sequence[str]) -> None:
        super()._check(names)
        affinity = Affinity(self._prior.sources)
        values = {latent.f for latent in self._prior.processes}
        for name in names:
            if not values.isdisjoint(affinity.behind(self._prior.model[name])):
                raise ValueError(
                    f"{name!r} depends on values of a Gaussian process at rows. A fit by inducing inputs has no joint "
                    "posterior of these values. fit.predict(Xnew, data={...}) returns the whole latent function."
                )
