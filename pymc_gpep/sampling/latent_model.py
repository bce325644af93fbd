"""A model as samplers see it, a function of the point that PyMC hands from step to step.

A point is a dict: name of a value variable → its value, unconstrained. Latent values are in it either as they are or
rotated (`reparameterize=True`); samplers see an array f (c, n) in both cases.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.structure import LatentGP, StructureError
from pymc_gpep.structure.backends import check_installed
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.latent_prior import LatentPrior
from pymc_gpep.structure.memory import check_memory

__all__ = ["LatentModel"]


class LatentModel:
    """The three factors of the joint density: hyperparameters, latent values given them, all else given both.

    Parameters
    ----------
    processes : LatentPrior
    compile_kwargs : dict, optional
        For PyTensor's compilation. Without a `mode` graphs are interpreted.

    Attributes
    ----------
    value_vars : list of TensorVariable
        Of the hyperparameters, in the order of the model.
    k : TensorVariable, shape (1 or c, n, n)
        Prior covariance of the latent values; like all expressions here, one of value variables.
    mean : TensorVariable, shape (c, n)
        Prior mean.
    log_prior : TensorVariable
        Log density of all that does not depend on latent values: priors of hyperparameters with the Jacobians of their
        transforms, and any other terms of the model.

    Raises
    ------
    StructureError
        If a free variable depends on latent values, or a term on what rotates them.
    ModuleNotFoundError
        If a mode compiles with what is not installed.
    """

    def __init__(self, processes: LatentPrior, compile_kwargs: dict[str, Any] | None = None) -> None:
        check_memory(processes, "The prior of all latent values")
        self.processes = processes
        self._compile_kwargs = compile_kwargs or {}
        check_installed(self._compile_kwargs)
        model = processes.model
        self.value_vars = [model.rvs_to_values[rv] for rv in processes.hyperparameters]
        self.k, self.mean = model.replace_rvs_by_values([processes.covariances(), processes.mean().astype("float64")])
        free = {latent.free for latent in processes.latents}
        terms = [*(rv for rv in model.basic_RVs if rv not in free), *model.potentials]
        self._dependent = [term for term in terms if not free.isdisjoint(ancestors([term]))]
        if hierarchical := [term.name for term in self._dependent if term in model.free_RVs]:
            raise StructureError(
                f"The free variables {', '.join(map(repr, hierarchical))} depend on latent values. Only observed "
                "variables and potentials may."
            )
        independent = [term for term in terms if term not in set(self._dependent)]
        self.log_prior = model.logp(vars=independent) if independent else pt.constant(0.0)

    def log_likelihood(self, f: TensorVariable) -> TensorVariable:
        """Log density of what depends on latent values (c, n), as an expression of them and of value variables."""
        model = self.processes.model
        by_term = [
            _log_probability(term, model.rvs_to_values[term]).sum() if term in model.basic_RVs else term.sum()
            for term in self._dependent
        ]
        given = {latent.f: f[latent.rows] for latent in self.processes.latents}
        expression = graph_replace(pt.add(*by_term) if len(by_term) > 1 else by_term[0], given, strict=False)
        for latent in self.processes.latents:
            if latent.rotated and latent.free in ancestors([expression]):
                raise StructureError(
                    f"{latent.free.name!r} is used besides {latent.f.name!r}. Use the latent values themselves."
                )
        (expression,) = model.replace_rvs_by_values([expression])
        return expression

    def function(self, outputs: Sequence[TensorVariable], *inputs: TensorVariable) -> Callable[..., list[Any]]:
        """Compile expressions into a function of a point and of the values of further inputs."""
        names = [v.name for v in self.value_vars]
        compiled = graph_function(
            self.processes.model,
            [*self.value_vars, *inputs],
            list(outputs),
            trust_input=True,
            **self._compile_kwargs,
        )
        return _AtPoint(compiled, names)

    def theta(self, point: PointType) -> Array:
        """All hyperparameters of a point, flat and unconstrained."""
        return np.concatenate([np.zeros(0), *(np.ravel(point[v.name]) for v in self.value_vars)])

    def with_theta(self, point: PointType, theta: Array) -> PointType:
        """The point with other hyperparameters."""
        values, begin = {}, 0
        for v in self.value_vars:
            size = np.size(point[v.name])
            values[v.name] = theta[begin : begin + size].reshape(np.shape(point[v.name]))
            begin += size
        return {**point, **values}

    def latent_values(self, point: PointType, prior: DensePrior) -> Array:
        """Latent values f (c, n) that a point stands for, given their prior there."""
        mean, roots = prior.mean, prior.roots
        f = np.empty_like(mean)
        for latent in self.processes.latents:
            value = point[self._name(latent)].reshape(len(latent.classes), -1)
            for k, own in zip(latent.classes, value, strict=True):
                f[k] = mean[k] + roots[k % len(roots)] @ own if latent.rotated else own
        return f

    def point_values(self, f: Array, prior: DensePrior) -> PointType:
        """The inverse of `latent_values`: what to put into a point, by name."""
        values: dict[str, Array] = {}
        white = prior.whitened(f) if any(latent.rotated for latent in self.processes.latents) else f
        for latent in self.processes.latents:
            value = (white if latent.rotated else f)[list(latent.classes)]
            values[self._name(latent)] = value if latent.f.ndim == 2 else value[0]
        return values

    def latent_value_vars(self) -> list[TensorVariable]:
        """Value variables of the latent values."""
        return [self.processes.model.rvs_to_values[latent.free] for latent in self.processes.latents]

    def _name(self, latent: LatentGP) -> str:
        return str(self.processes.model.rvs_to_values[latent.free].name)


def _log_probability(variable: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Log probability of a random variable: by the likelihood that reads it where that has a better one than PyMC."""
    for likelihood in LIKELIHOODS:
        reading = likelihood.read(variable)
        if reading is not None and (stable := likelihood.log_probability(value, reading)) is not None:
            return stable
    return pm.logp(variable, value)


class _AtPoint:
    """A compiled function whose first arguments are taken from a point by name; a class, so that it can be pickled."""

    def __init__(self, compiled: Callable[..., list[Any]], names: list[str]) -> None:
        self._compiled = compiled
        self._names = names

    def __call__(self, point: PointType, *values: Array) -> list[Any]:
        return self._compiled(*(np.asarray(point[name]) for name in self._names), *values)
