"""Hyperparameters moved by PyMC's NUTS given something held fixed: latent values, utilities, or whitened values.

Each of three densities holds another part of the latent values fixed while hyperparameters θ move. They differ in how
far these can go at a time.

- Centred: p(θ) N(f; m_θ, K_θ) p(y | f, θ), given the latent values f themselves.

- Whitened: p(θ) p(y | f = m_θ + L_θ z, θ), given z of f = m + L z, where L is the Cholesky factor of K.

- Collapsed: p(θ) N(v; m_θ, K_θ + I), given utilities v = f + noise of variance 1, the latent values integrated out.
  These utilities say all that the labels say (Girolami and Rogers 2006, appendix D).
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.blocking import PointType, StatsDict
from pymc.model.core import ValueGradFunction
from pymc.step_methods.hmc.nuts import NUTS
from pytensor.gradient import disconnected_grad
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg import cho_solve, cholesky, solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.graphs.interpreted import initial_point

_GIVEN = "<held fixed>"  # no name of a variable that a user would choose


class ConditionalDensity(NamedTuple):
    """A density of hyperparameters."""

    log_density: TensorVariable
    """Its logarithm up to a constant, an expression of value variables and of `given`."""
    given: TensorVariable
    """The array that is held fixed."""
    shape: tuple[int, int]
    """Its shape."""


def centred(latent_model: LatentModel) -> ConditionalDensity:
    """Hyperparameters given latent values f."""
    f = pt.matrix(_GIVEN)
    log_density = latent_model.log_prior + _log_normal(f, latent_model.mean, latent_model.k)
    likelihood = latent_model.log_likelihood(f)
    if not set(latent_model.value_vars).isdisjoint(ancestors([likelihood])):
        log_density += likelihood
    return ConditionalDensity(log_density, f, latent_model.values.shape)


def whitened(latent_model: LatentModel) -> ConditionalDensity:
    """Hyperparameters given z = L⁻¹ (f − m), or the standard normals that latent functions are made of."""
    z = pt.matrix(_GIVEN)
    return ConditionalDensity(
        latent_model.log_prior + latent_model.log_likelihood_of_white(z), z, latent_model.values.shape
    )


def collapsed(latent_model: LatentModel) -> ConditionalDensity:
    """Hyperparameters given utilities v ~ N(f, I), on which the labels depend and nothing else does."""
    v = pt.matrix(_GIVEN)
    noisy = latent_model.k + pt.eye(latent_model.k.shape[-1])
    shape = latent_model.processes.n_functions, latent_model.processes.n_points
    return ConditionalDensity(latent_model.log_prior + _log_normal(v, latent_model.mean, noisy), v, shape)


def conditional_nuts(
    latent_model: LatentModel,
    vars: list[TensorVariable],
    density: ConditionalDensity,
    rng: Any = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> NUTS:
    """NUTS for a conditional density of hyperparameters.

    Parameters
    ----------
    latent_model : LatentModel
    vars : list of TensorVariable
        Value variables of the hyperparameters to move; the others are held fixed too.
    density : ConditionalDensity
    rng : int, Generator or None
    compile_kwargs : dict, optional
        For PyTensor's compilation.

    Returns
    -------
    NUTS
        For `move_hyperparameters`; its `step` wants a point that has what is held fixed.
    """
    model = latent_model.processes.model
    start = initial_point(model)
    given = {density.given: np.zeros(density.shape)}
    extra = {v: start[v.name] for v in latent_model.value_vars if v not in vars} | given
    function = ValueGradFunction(
        [density.log_density],
        vars,
        extra,
        model=model,
        initial_point=start,
        ravel_inputs=True,
        **(compile_kwargs or {}),
    )
    return NUTS(vars, model=model, logp_dlogp_func=function, initial_point=start, rng=rng)


def move_hyperparameters(nuts: NUTS, point: PointType, given: Array) -> tuple[PointType, StatsDict]:
    """The point after one draw of hyperparameters, and NUTS' statistics; nothing else in the point changes."""
    moved, (stats,) = nuts.step({**point, _GIVEN: given})
    del moved[_GIVEN]
    return moved, stats


def _by_covariance(k: TensorVariable, x: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Matrices (n, n) and columns (n, c) if all classes share one, else (c, n, n) and (c, n, 1)."""
    return (k[0], x.T) if k.type.shape[0] == 1 else (k, x[..., None])


def _log_normal(x: TensorVariable, mean: TensorVariable, k: TensorVariable) -> TensorVariable:
    """Return Σ_k log N(x_k; m_k, K_k) of x, m (c, n) and K (1 or c, n, n), NaN where K is not positive definite.

    Its derivatives are spelled out: ½ (a aᵀ − K⁻¹) with respect to K, and a = K⁻¹ (x − m) with respect to m. They take
    a fraction of the time that going back through a Cholesky factor does.
    """
    k, residual = _by_covariance(k, x - mean)
    root = cholesky(k)
    white = solve_triangular(root, residual, lower=True, b_ndim=2)
    times = residual.shape[-1]  # that each matrix is used
    value = -0.5 * (white**2).sum() - times * pt.log(pt.diagonal(root, axis1=-2, axis2=-1)).sum()
    value -= 0.5 * np.log(2.0 * np.pi) * x.size
    a = cho_solve((root, True), residual, b_ndim=2)
    inverse = cho_solve((root, True), pt.broadcast_to(pt.eye(k.shape[-1]), k.shape), b_ndim=2)
    slope = 0.5 * (a @ a.swapaxes(-2, -1) - times * inverse)
    # Its value does not matter, only its derivatives.
    linear = (disconnected_grad(slope) * k).sum() - (disconnected_grad(a) * residual).sum()
    return disconnected_grad(value - linear) + linear
