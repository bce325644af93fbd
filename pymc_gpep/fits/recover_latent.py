"""Draws of the original model, with latent values, from draws of the marginal model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.marginal_model import MarginalModel
from pymc_gpep.fits.datasets import plain_dims
from pymc_gpep.gaussians.whitening import draw_normals
from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.log_posteriors.hyperparameters import unconstrain
from pymc_gpep.prior_moments.prior_functions import frozen_data, prior_roots, prior_type_of
from pymc_gpep.progress import progress_bar
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.team import one_blas_thread


@one_blas_thread()
def recover_latent(
    idata: xr.DataTree, marginal: pm.Model, *, random_seed: Any = None, progressbar: bool = True
) -> xr.DataTree:
    """Draw latent values for each draw of the hyperparameters from a marginal model.

    Latent values are drawn from the Gaussian approximation at these hyperparameters. The result has the form of draws
    of the original model, with the current data of the model. Latent values and Deterministics that depend on them have
    the names, dims and coords of the model. `pm.sample_posterior_predictive` and `pm.compute_log_likelihood` accept the
    result with the original model.

    Parameters
    ----------
    idata : DataTree
        Draws of `pm.sample(model=marginal)`; they may be thinned or concatenated.
    marginal : MarginalModel
        Model returned by `marginalize`.
    random_seed : int, Generator or None
    progressbar : bool

    Returns
    -------
    DataTree
        DataTree with all groups of `idata`. The groups `posterior`, `observed_data` and `constant_data` belong to the
        original model; draws of the warm-up are unchanged.

    Raises
    ------
    TypeError
        If `marginal` was not made by `marginalize`.
    ValueError
        If `idata` has no draws of a hyperparameter, or the approximation or a Cholesky factorisation of the prior
        covariance fails for a draw.

    Examples
    --------
    >>> marginal = gpep.marginalize(model)
    >>> idata = pm.sample(10, tune=10, step=pm.DEMetropolisZ(model=marginal), model=marginal)
    >>> gpep.recover_latent(idata, marginal)["posterior"]["f"]
    """
    if not isinstance(marginal, MarginalModel):
        raise TypeError(
            f"marginal must be the model that gpep.marginalize returned, not a {type(marginal).__name__}. A copy by "
            "PyMC has lost the original model."
        )
    classifier = marginal.classifier
    posterior = idata["posterior"].to_dataset() if "posterior" in idata.children else xr.Dataset()
    names = [rv.name for rv in classifier.hyperparameters]
    if missing := [name for name in names if name not in posterior]:
        raise ValueError(f"idata has no draws of {', '.join(map(repr, missing))}. Use pm.sample(model=marginal).")
    sampled = [posterior[name].transpose("chain", "draw", ...).values for name in names]
    latent_values = _LatentValues(
        classifier, marginal.approximator, marginal.dependent, np.random.default_rng(random_seed)
    )
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    values: dict[str, Array] = {}
    with progress_bar(progressbar) as progress:
        indices = progress.track(np.ndindex(shape), total=shape[0] * shape[1], description="Recovering latent values")
        for index in indices:
            try:
                drawn = latent_values.draw([value[index] for value in sampled])
            except ValueError as error:
                raise ValueError(f"At chain {index[0]}, draw {index[1]} of idata, {error}") from error
            for name, value in drawn.items():
                values.setdefault(name, np.empty((*shape, *value.shape), np.asarray(value).dtype))[index] = value
    return _completed(idata, posterior, values, classifier.model)


class _LatentValues:
    """Draws of latent values and dependent variables, at given hyperparameters on their natural scale.

    Each solve starts from the previous solution.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        approximator: Approximator,
        dependent: Sequence[TensorVariable],
        rng: np.random.Generator,
    ) -> None:
        self.classifier = classifier
        self.approximator = approximator
        self.rng = rng
        model = classifier.model
        hyperparameters = list(classifier.hyperparameters)
        # Latent values are inputs of the graph. Otherwise each draw would factorise the prior covariance.
        latents = [*classifier.prior.held, *classifier.prior.integrated]
        given = {variable: variable.type(variable.name) for variable in [*hyperparameters, *latents]}
        replacements = given | {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}

        def function(inputs: list[Variable], outputs: list[Variable], **kwargs: Any) -> Any:
            replaced = graph_replace(outputs, replacements, strict=False)
            return graph_function(model, [given[v] for v in inputs], replaced, **kwargs)

        self._type = prior_type_of(classifier, approximator)
        labels, parameters, self._likelihood = classifier.at_points
        self._prior = function(
            hyperparameters, [classifier.prior.arrays[self._type](), classifier.prior.mean(), labels, parameters]
        )
        data = frozen_data(model)
        self._variables, self._roots = classifier.prior.variables(data), prior_roots(classifier, data, self._type)
        self._names, self._unconstrain = [v.name for v in hyperparameters], unconstrain(classifier.prior)
        self._drawn = [v.name for v in latents]
        others = [*classifier.unobserved, *(v for v in dependent if v not in given)]
        self._others = [v.name for v in others]
        # A Deterministic may contain random draws, as in PyMC's sampling.
        self._compute = function(
            [*hyperparameters, *latents], others, draws=True, random_seed=int(rng.spawn(1)[0].integers(2**30))
        )
        self._start: Array | None = None

    def _solve(self, hyperparameters: list[Any]) -> Solution:
        k, mean, labels, parameters = self._prior(*hyperparameters)
        likelihood = self._likelihood.given(parameters)
        solution = self.approximator.solve_near(
            k, mean, labels, self._start, likelihood=likelihood, prior_type=self._type
        )
        if not solution.convergence.converged:
            raise ValueError(f"{self.approximator.name} {solution.convergence}. Check the model of the draws.")
        self._start = solution.start
        return solution

    def draw(self, hyperparameters: list[Any]) -> dict[str, Array]:
        """Return a draw of each variable, by name."""
        posterior = self._solve(hyperparameters).posterior
        point = self._unconstrain(dict(zip(self._names, hyperparameters, strict=True)))
        if self._roots is None:
            z = posterior.draw_whitened(self.rng, 1)
        else:
            posterior = posterior.rooted(self._roots(point))
            z = draw_normals(posterior, self.rng, 1)
        drawn = self._variables.draws(point, posterior.prior.latent(z), z)
        values = {name: drawn[name][0] for name in self._drawn}
        return values | dict(zip(self._others, self._compute(*hyperparameters, *values.values()), strict=True))


def _completed(idata: xr.DataTree, posterior: xr.Dataset, values: dict[str, Array], model: pm.Model) -> xr.DataTree:
    """Return `idata` with draws `values` in the group `posterior`, and with the data of the model in PyMC's groups."""
    dims = plain_dims(model, {name: value.shape[2:] for name, value in values.items()}, model.coords)
    converted = pm.to_inference_data(posterior_predictive=values, model=model, dims=dims)
    drawn = (
        converted["posterior_predictive"].to_dataset().assign_coords(chain=posterior["chain"], draw=posterior["draw"])
    )
    merged = posterior.drop_vars(list(values), errors="ignore").assign(drawn.data_vars)
    ordered = [v.name for v in model.unobserved_RVs if v.name in merged]
    merged = merged[[*ordered, *(name for name in merged.data_vars if name not in ordered)]]
    groups = {name: group.to_dataset() for name, group in idata.children.items()}
    groups.pop("constant_data", None)
    groups |= {name: group.to_dataset() for name, group in converted.children.items() if name != "posterior_predictive"}
    return xr.DataTree.from_dict(groups | {"posterior": merged})
