"""Gibbs sampling of a probit. NUTS moves hyperparameters while latent values or utilities are fixed.

Hyperparameters θ move under a conditional density. There are three choices, which differ in the fixed quantity, and so
in the distance that θ moves in a draw. Latent values f have prior means m and covariances K = L Lᵀ, functions of θ.

- Centred: f is fixed. The density is p(θ) N(f; m, K) p(y | f, θ) for labels y.

- Whitened: z = L⁻¹ (f − m) is fixed. The density is p(θ) p(y | f = m + L z, θ).

- Collapsed: utilities v = f + ε with ε ~ N(0, I) are fixed. The density is p(θ) N(v; m, K + I), without f.
Given utilities, θ does not depend on labels (Girolami and Rogers 2006, appendix D).
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType, StatsDict
from pymc.model.core import ValueGradFunction
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.hmc.nuts import NUTS, NUTSState
from pymc.step_methods.state import dataclass_state
from pytensor.gradient import disconnected_grad
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg import cho_solve, cholesky, solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import check_name, check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.gaussians.whitening import GivenUtilities, Sampled, given_utilities
from pymc_gpep.graphs.interpreted import initial_point
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import Utilities
from pymc_gpep.reading import read_classifier
from pymc_gpep.samplers.step import LatentStep, sampled_model

_GIVEN = "<held fixed>"  # Name of the fixed array among the values of a point. It should differ from all variables.


class ConditionalDensity(NamedTuple):
    """Density of hyperparameters given a fixed array of latent values, whitened values or utilities."""

    log_density: TensorVariable
    """Log density up to a constant, a PyTensor graph of value variables and of `given`."""
    given: TensorVariable
    """Symbol for the fixed array."""
    shape: tuple[int, int]
    """Shape of the fixed array."""


def centred(latent_model: LatentModel) -> ConditionalDensity:
    """Return the density of hyperparameters given latent values f."""
    f = pt.matrix(_GIVEN)
    log_density = latent_model.log_prior + _log_normal(f, latent_model.mean, latent_model.k)
    likelihood = latent_model.log_likelihood(f)
    if not set(latent_model.value_vars).isdisjoint(ancestors([likelihood])):
        log_density += likelihood
    return ConditionalDensity(log_density, f, latent_model.values.shape)


def whitened(latent_model: LatentModel) -> ConditionalDensity:
    """Return the density of hyperparameters given whitened latent values, or given standard normals of effects."""
    z = pt.matrix(_GIVEN)
    return ConditionalDensity(
        latent_model.log_prior + latent_model.log_likelihood_of_white(z), z, latent_model.values.shape
    )


def collapsed(latent_model: LatentModel) -> ConditionalDensity:
    """Return the density of hyperparameters given utilities v ~ N(f, I), which determine the labels."""
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
    """Return a NUTS step that moves hyperparameters under a conditional density.

    Parameters
    ----------
    latent_model : LatentModel
    vars : list of TensorVariable
        Value variables of the hyperparameters to move. All other hyperparameters are fixed.
    density : ConditionalDensity
    rng : int, Generator or None
    compile_kwargs : dict, optional
        Arguments of PyTensor's compilation.

    Returns
    -------
    NUTS
        Step for `move_hyperparameters`. Its points include the fixed array.
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
    """Return the point with new hyperparameters, and the statistics of NUTS."""
    moved, (stats,) = nuts.step({**point, _GIVEN: given})
    del moved[_GIVEN]
    return moved, stats


def _by_covariance(k: TensorVariable, x: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Reshape K and x for `cho_solve`: to (n, n) and (n, c) for one K, or to (c, n, n) and (c, n, 1)."""
    return (k[0], x.T) if k.type.shape[0] == 1 else (k, x[..., None])


def _log_normal(x: TensorVariable, mean: TensorVariable, k: TensorVariable) -> TensorVariable:
    """Return the sum over classes of normal log densities of x (c, n), with means (c, n) and K (1 or c, n, n).

    It is NaN if K is not positive definite. With a = K⁻¹ (x − mean), the graph contains the derivatives ½ (a aᵀ − K⁻¹)
    in K and a in the mean. They are faster than backpropagation through a Cholesky factor.
    """
    k, residual = _by_covariance(k, x - mean)
    root = cholesky(k)
    white = solve_triangular(root, residual, lower=True, b_ndim=2)
    times = residual.shape[-1]  # Number of classes with the same K.
    value = -0.5 * (white**2).sum() - times * pt.log(pt.diagonal(root, axis1=-2, axis2=-1)).sum()
    value -= 0.5 * np.log(2.0 * np.pi) * x.size
    a = cho_solve((root, True), residual, b_ndim=2)
    inverse = cho_solve((root, True), pt.broadcast_to(pt.eye(k.shape[-1]), k.shape), b_ndim=2)
    slope = 0.5 * (a @ a.swapaxes(-2, -1) - times * inverse)
    # `linear` has the required derivatives. Its own value is subtracted, so that the result is `value`.
    linear = (disconnected_grad(slope) * k).sum() - (disconnected_grad(a) * residual).sum()
    return disconnected_grad(value - linear) + linear


_DENSITIES = {"centred": centred, "collapsed": collapsed, "whitened": whitened}
_OF_THE_MODEL = {"model_logp", "energy"}  # These statistics of NUTS belong to the conditional density.


@dataclass_state
class ProbitGibbsState(StepMethodState):
    """State from which a chain continues. Utilities are not part of it, since each step draws new utilities."""

    tune: bool
    nuts: NUTSState | None


class ProbitGibbs(LatentStep):
    r"""Gibbs sampling of models with a multinomial probit, or a probit of one function.

    Latent functions are Gaussian processes, or sums of effects. For sums the sampler draws standard normals of effects.

    The label of a point is the class of the largest of its utilities :math:`v_k = f_k + \epsilon_k`, or for one
    function the sign of the utility (Albert and Chib 1993). A sweep draws all utilities given latent values, and all
    latent values given utilities, without tuning (Girolami and Rogers 2006, appendix D). With label noise, the noisy
    labels are drawn before the utilities. The mean over classes of the utilities of a point does not affect the label.
    This mean is drawn with the latent values integrated out. PyMC's NUTS moves hyperparameters after the sweeps. The
    sampler is exact.

    Parameters
    ----------
    vars : sequence of TensorVariable, optional
        All latent values of the model, and the hyperparameters to move. The default is all hyperparameters. `pm.sample`
        assigns the rest to other steps, such as NUTS.
    hyper : {"whitened", "collapsed", "centred"}
        Quantity that is fixed while hyperparameters move. With "whitened" it is latent values whitened by the Cholesky
        factor of the prior. With "collapsed" it is utilities, with latent values integrated out. With "centred" it is
        latent values of processes. The sampler is exact with each quantity.
    sweeps : int
        Number of sweeps of utilities and latent values in each draw.
    likelihood : str, optional
        Name of the likelihood, needed if the model has several.
    model : pm.Model, optional
        Model; by default the model of the context.
    rng : int, Generator or None
    compile_kwargs : dict, optional
        Arguments of PyTensor's compilation.
    blocked : bool
        PyMC's argument of step methods. Latent values are always moved together.

    Raises
    ------
    StructureError
        If latent functions are neither Gaussian processes nor sums of effects.
    TypeError
        If `sweeps` is not an integer.
    ValueError
        If the likelihood is not a multinomial probit or a probit of one function, or an option or `vars` has an invalid
        value.

    Notes
    -----
    Sampler statistics are the statistics of NUTS, and `draw_time`, the seconds of a draw.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=gpep.samplers.ProbitGibbs())
    """

    name = "probit_gibbs"
    stats_dtypes_shapes: dict[str, Any] = {  # noqa: RUF012  # Instances may differ.
        **{name: kind for name, kind in NUTS.stats_dtypes_shapes.items() if name not in _OF_THE_MODEL},
        "draw_time": (np.float64, []),
    }
    _state_class = ProbitGibbsState

    def __init__(
        self,
        vars: Sequence[TensorVariable] | TensorVariable | None = None,
        *,
        hyper: str = "whitened",
        sweeps: int = 30,
        likelihood: str | None = None,
        model: Any = None,
        rng: Any = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        check_name("hyper", hyper, sorted(_DENSITIES))
        check_whole("sweeps", sweeps, 1)
        classifier = read_classifier(sampled_model(model), likelihood)
        if not classifier.likelihood_model.offers(Utilities):
            fitting = ", ".join(each.written for each in LIKELIHOODS if each.offers(Utilities))
            raise ValueError(
                f"The likelihood {classifier.response!r} is a {classifier.kind}, and ProbitGibbs is for {fitting} "
                "only. Use NUTS for this model, or change its likelihood."
            )
        if hyper == "centred" and not classifier.prior.samples_values:
            raise ValueError(
                "hyper='centred' uses the prior density of the latent values, which a sum of effects does not have. "
                "Use 'whitened' or 'collapsed'."
            )
        super().__init__(vars, classifier, rng, compile_kwargs)
        parameters = classifier.model.replace_rvs_by_values([classifier.parameters])
        if hyper == "collapsed" and not set(self.latent_model.value_vars).isdisjoint(ancestors(parameters)):
            raise ValueError(
                "hyper='collapsed' fixes the utilities, which do not determine the label noise. Use 'whitened' or "
                "'centred', or make epsilon a number."
            )
        self._likelihood = classifier.likelihood_model
        self.hyper = hyper
        self.sweeps = int(sweeps)
        self.blocked = blocked
        self._observed = self.latent_model.function([classifier.labels.astype("int64"), *parameters])
        self._given: GivenUtilities | None = None
        self.nuts: NUTS | None = None
        if self.hyperparameters:
            density = _DENSITIES[hyper](self.latent_model)
            own = self.rng.spawn(1)[0]
            self.nuts = conditional_nuts(self.latent_model, self.hyperparameters, density, own, compile_kwargs)
        else:
            self.stats_dtypes_shapes = {"draw_time": (np.float64, [])}
            self.stats_dtypes = [{"draw_time": np.float64}]

    def advance(self, point: PointType) -> tuple[PointType, StatsDict]:
        begun = perf_counter()
        labels, parameters = self._observed(point)
        likelihood = self._likelihood.given(parameters)
        prior, f = self.current(point)
        for _ in range(self.sweeps):
            f = self._draw_latent_values(prior, self._utilities(likelihood, labels, prior.functions(f)))
        stats: StatsDict = {}
        # Hyperparameters move after the sweeps: given the initial latent values, they could become extreme.
        if self.nuts is not None:
            self.nuts.tune = self.tune
            point, prior, f, stats = self._move_hyperparameters(self.nuts, point, likelihood, labels, prior, f)
        stats["draw_time"] = perf_counter() - begun
        return self.moved(point, f, prior), stats

    def _move_hyperparameters(
        self,
        nuts: NUTS,
        point: PointType,
        likelihood: Likelihood,
        labels: NDArray[np.int64],
        prior: Sampled,
        f: Array,
    ) -> tuple[PointType, Sampled, Array, StatsDict]:
        """Move hyperparameters, and the latent values that depend on them.

        If the prior covariance at the new hyperparameters is not positive definite, nothing changes.
        """
        match self.hyper:
            case "centred":
                given = f
            case "whitened":
                given = prior.whitened(f)
            case _:
                given = self._utilities(likelihood, labels, prior.functions(f))
        moved, all_stats = move_hyperparameters(nuts, point, given)
        stats = {name: value for name, value in all_stats.items() if name in self.stats_dtypes_shapes}
        new = self.prior(moved)
        if new is None:
            return point, prior, f, stats
        match self.hyper:
            case "whitened":
                f = new.latent(given)
            case "collapsed":
                f = self._draw_latent_values(new, given)
        return moved, new, f, stats

    def _utilities(self, likelihood: Likelihood, labels: NDArray[np.int64], f: Array) -> Array:
        """Return utilities (c, n) drawn given latent values and labels. A noisy label does not restrict utilities."""
        v = np.empty_like(f)
        likelihood.computation(Utilities).draw(self.rng, f, labels, v)
        if (noise := likelihood.draw_noise(self.rng, f, labels)).any():
            v[:, noise] = f[:, noise] + self.rng.standard_normal((len(f), int(noise.sum())))
        return v

    def _draw_latent_values(self, prior: Sampled, v: Array) -> Array:
        """Draw latent values, or standard normals of effects, given utilities v (c, n), and return them."""
        if self._given is None or self._given.prior is not prior:
            self._given = given_utilities(prior, not self._likelihood.sees_common)
        return self._given.draw(self.rng, v)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self._given = None
        if self.nuts is not None:
            self.nuts.setup_chain(self.rng.spawn(1)[0], tune, draws)

    def _progressbar_config(self, n_chains: int = 1) -> Any:
        return super()._progressbar_config(n_chains) if self.nuts is None else self.nuts._progressbar_config(n_chains)

    def _make_progressbar_update_functions(self) -> Any:
        return (
            super()._make_progressbar_update_functions()
            if self.nuts is None
            else self.nuts._make_progressbar_update_functions()
        )
