"""A model with inducing values in place of latent values, for any sampler of PyMC."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.evidence.marginal_model import add_others
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.latent.gp_latent import LatentGP, as_gps
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.reading import GPClassifier, read_classifier
from pymc_gpep.rows.in_memory import InMemory

_DIM = "inducing"


class InducingModel(pm.Model):
    """Model with inducing values in place of latent values. `inducing_model` returns it.

    Parameters
    ----------
    classifier : GPClassifier
        Prior, likelihood and observations of the original model.
    functions : list of (LatentGP, ProcessFunctions)
        Processes of the classifier, with covariance and mean functions.
    inducing : array (1 or c, M, d)
        Inducing inputs.
    name : str
        Name of the inducing values.
    jitter : float
        Jitter on the diagonal of the covariance of the inducing values, relative to the diagonal's mean.

    Attributes
    ----------
    classifier : GPClassifier
    inducing_inputs : array (1 or c, M, d)

    Examples
    --------
    >>> sparse = gpep.inducing_model(model, inducing=5)
    >>> sparse.inducing_inputs.shape
    """

    made_from_a_classifier = (
        "This model is a result of gpep.inducing_model, with inducing values in place of latent values. Fit it by "
        'pm.sample or pm.fit(method="advi"). Methods that approximate latent functions need the '
        "original model: classifier.model of this model."
    )
    """Message for functions that need the original model."""

    def __init__(
        self,
        classifier: GPClassifier,
        functions: list[tuple[LatentGP, ProcessFunctions]],
        inducing: Array,
        name: str,
        jitter: float,
    ) -> None:
        model = classifier.model
        super().__init__(check_bounds=model.check_bounds, model=None)
        self.classifier = classifier
        self.inducing_inputs = inducing
        gone = {*classifier.observed, *(latent.free for latent in classifier.latents)}
        add_others(self, model, gone.union(v for v in model.deterministics if not gone.isdisjoint(ancestors([v]))))
        self._add_coord(_DIM, tuple(range(inducing.shape[1])))
        places = self._places()
        shape_of = (*classifier.function_dims, _DIM)
        with self:
            v = pm.Normal(f"{name}_rotated_", 0.0, 1.0, dims=shape_of)
            of_functions = [v[place] for place in places] if classifier.function_dims else [v]
            features = list(_features(functions, inducing, jitter))
            values, mean, rest = [], [], []
            for k, own in enumerate(of_functions):
                maker, output, z, factor, w, residual = features[k if len(features) > 1 else 0]
                if len(features) == 1:
                    maker, output = _of_function(functions, k)
                values.append(_of_output(maker.mean(z), output) + factor @ own)
                mean.append(_of_output(maker.mean(maker.inputs), output) + own @ w)
                rest.append(residual)
            in_place = [values[places.index(place)] for place in range(len(values))]
            pm.Deterministic(name, pt.stack(in_place) if classifier.function_dims else values[0], dims=shape_of)
            self._observe(pt.stack(mean), pt.stack(rest), name)

    def _add_coord(self, dim: str, values: Sequence[Any]) -> None:
        if dim not in self.coords:
            self.add_coord(dim, values)
        elif self.coords[dim] is None or len(self.coords[dim]) != len(values):
            raise ValueError(f"The model already has a dim {dim!r}, which gpep.inducing_model uses. Rename that dim.")

    def _places(self) -> list[int]:
        """Return the index of each function along the model's axis of functions."""
        count = self.classifier.n_functions
        if not self.classifier.function_dims:
            return [0]
        (dim,) = self.classifier.function_dims
        self._add_coord(dim, self.classifier.class_names)
        names = self.classifier.class_labels
        return list(range(count)) if names is None else [list(self.coords[dim]).index(each) for each in names]

    def _observe(self, mean: TensorVariable, rest: TensorVariable, name: str) -> None:
        """Add the likelihood. Latent values given inducing values are normal, with these means and variances (c, n)."""
        classifier = self.classifier
        (y,), axis = classifier.observed, classifier.likelihood_model.function_axis
        labels = classifier.labels.data if isinstance(classifier.labels, Constant) else classifier.labels
        dims = classifier.model.named_vars_to_dims.get(y.name)
        given = (mean.T, rest.T) if axis else (mean[0], rest[0])
        if classifier.likelihood_model.averaged(y.name, *given, observed=labels, dims=dims) is not None:
            return
        shape = classifier.n_functions, classifier.n_points
        f = mean + pt.sqrt(rest) * pm.Normal(f"{name}_residual_", 0.0, 1.0, shape=shape)
        (observed,) = graph_replace([y], {each.f: f[each.rows] for each in classifier.latents}, strict=False)
        self.register_rv(observed, y.name, observed=labels, dims=dims)


def _features(
    functions: list[tuple[LatentGP, ProcessFunctions]], inducing: Array, jitter: float
) -> Iterator[tuple[ProcessFunctions, int, TensorVariable, TensorVariable, TensorVariable, TensorVariable]]:
    """Yield for each function: process, output, inducing inputs Z, factor L, L⁻¹ k(Z, X), residual variances."""
    count = sum(len(latent.classes) for latent, _ in functions)
    for k in range(1 if len(functions) == len(inducing) == 1 else count):
        maker, output = _of_function(functions, k)
        z = pt.constant(inducing[k if len(inducing) > 1 else 0])
        k_zz = maker.covariance(z, z)
        factor = pt.linalg.cholesky(k_zz + jitter * pt.trace(k_zz) / k_zz.shape[0] * pt.eye(k_zz.shape[0]))
        w = pt.linalg.solve_triangular(factor, maker.covariance(z, maker.inputs), lower=True)
        yield maker, output, z, factor, w, pt.maximum(maker.variance(maker.inputs) - (w**2).sum(axis=0), 0.0)


def _of_function(functions: list[tuple[LatentGP, ProcessFunctions]], k: int) -> tuple[ProcessFunctions, int]:
    """Return the process of function k, and the index of this function among the outputs of the process."""
    return next((maker, latent.classes.index(k)) for latent, maker in functions if k in latent.classes)


def _of_output(mean: TensorVariable, output: int) -> TensorVariable:
    return mean[output] if mean.type.ndim == 2 else mean


def inducing_model(
    model: pm.Model,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
    inducing: Any = 50,
    *,
    shared_inducing: bool = False,
    name: str = "u",
    jitter: float = 1e-6,
    likelihood: str | None = None,
    random_seed: int = 0,
) -> InducingModel:
    """Return a model with inducing values in place of latent values (Snelson and Ghahramani 2006).

    The result is the PyMC model that `pm.fit(method="sparse_ep")` approximates. Fit it by NUTS or by variational
    inference, for example for comparisons. A latent function has M inducing values u = m(Z) + L v at inducing inputs Z,
    where L is the Cholesky factor of k(Z, Z). Here m is the mean function, k the covariance function, and v standard
    normal. The function is f(x) = m(x) + wᵀv + e with w = L⁻¹ k(Z, x). The residuals e ~ N(0, k(x, x) − wᵀw) are
    independent (FITC). The covariance matrix of all points is never computed.

    Free variables are the hyperparameters and v, named `u_rotated_`. The inducing values `u` are a Deterministic. For a
    multinomial probit and for a probit of one function the residuals are integrated out exactly. For other likelihoods
    residuals e / sd(e) are free variables, `u_residual_` (functions, points). Deterministics that depend on the latent
    values are omitted. Other variables, data, dims and coords are shared with `model`.

    Parameters
    ----------
    model : pm.Model
        Model with `pm.gp.Latent` priors.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values. By default the covariance is read from the graph of the model.
    inducing : int or array (M, d) or (c, M, d)
        Number of inducing inputs of each function, or the inducing inputs. For a number, distant rows of the data are
        selected (k-means++).
    shared_inducing : bool
        Whether all functions have the same inducing inputs.
    name : str
        Name of the inducing values.
    jitter : float
        Jitter added to the diagonal of the covariance of inducing values, relative to the mean of the diagonal.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    random_seed : int
        Seed of the choice of inducing inputs.

    Returns
    -------
    InducingModel
        Model with the attribute `inducing_inputs` (1 or c, M, d).

    Raises
    ------
    StructureError
        If the model cannot be read, or a variable other than the response depends on latent values. If `gp` is missing,
        and the prior at new inputs cannot be read from the graph of the model.
    ValueError
        If `inducing` does not match the inputs of the model, or if the model has a variable `name`.
    TypeError
        If `gp` is not a process.

    Examples
    --------
    >>> sparse = gpep.inducing_model(model, inducing=20)
    >>> idata = pm.sample(model=sparse)
    """
    classifier = read_classifier(model, likelihood)
    functions = functions_of(classifier.prior, as_gps(gp))
    if taken := [each for each in (name, f"{name}_rotated_", f"{name}_residual_") if each in model.named_vars]:
        raise ValueError(f"The model has a variable {taken[0]!r} already. Give inducing values another name=...")
    inputs, labels = evaluate([functions[0][1].inputs, classifier.labels])
    z = initial_inducing(inducing, InMemory(inputs, labels), classifier.n_functions, shared_inducing, random_seed)
    return InducingModel(classifier, functions, np.asarray(z), name, jitter)
