"""The fit that `pm.fit` returns, and its posterior in the unconstrained space as a `Group` of PyMC."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.pytensorf import floatX
from pymc.variational.opvi import Group

from pymc_gpep.array_types import Array
from pymc_gpep.fits import cross_validation, effects, marginals, prediction, sample, saving, summary
from pymc_gpep.fits import sample as exactness
from pymc_gpep.fits import summary as sensitivity
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.marginals import conditionals, finite_moments, without_moments
from pymc_gpep.fits.mixture import total_covariance, total_variance
from pymc_gpep.gaussians.prior_form import covariance_root
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.solvers.team import one_blas_thread


@Group.register
class GPGroup(Group):
    """Weighted nodes of the hyperparameters with Gaussian latent values, in the unconstrained space of the model.

    Mean and standard deviation are stored at their first use. The covariance can be large, so it is computed at each
    use.

    Attributes
    ----------
    hyper : HyperPosterior
        Mixture over hyperparameters, set by `Fit`.
    """

    hyper: HyperPosterior

    __param_spec__: ClassVar[dict[str, tuple[str, ...]]] = {"gp_mean": ("d",), "gp_std": ("d",)}
    short_name = "gaussian_process"
    alias_names = frozenset(["gp"])
    has_logq = False  # A single point of the hyperparameters has no density.

    def __init_group__(self, group: Sequence[Any]) -> None:
        super().__init_group__(group)
        if not self._check_user_params():
            start = floatX(self._prepare_start(None))
            self.shared_params = {
                "gp_mean": pytensor.shared(start, "gp_mean"),
                "gp_std": pytensor.shared(np.zeros_like(start), "gp_std"),
            }
        self._coords = dict(self.model.coords)  # A copy, since coordinates of the model may change later.
        self._finalize_init()

    @cached_property
    def _settled(self) -> dict[str, Any]:
        """Parameters of the group. Mean and standard deviation are computed at the first use."""
        for key, values in zip(("gp_mean", "gp_std"), _moments(self.hyper), strict=True):
            flat = np.concatenate([np.ravel(values[name]) for name in self.ordering])
            self.params_dict[key].set_value(floatX(flat))
        return self.params_dict

    @property
    def mean(self) -> pt.TensorVariable:
        """Posterior means of the free variables, (d,)."""
        return self._settled["gp_mean"]

    @property
    def std(self) -> pt.TensorVariable:
        """Posterior standard deviations of the free variables, (d,); 0 for hyperparameters at their maximum."""
        return self._settled["gp_std"]

    @property
    def cov(self) -> pt.TensorVariable:
        """Posterior covariance of the free variables as a dense matrix, (d, d)."""
        return pt.as_tensor_variable(self._covariance())

    @one_blas_thread()
    def _covariance(self) -> Array:
        places = {name: part for name, (_, part, *_) in self.ordering.items()}
        return _covariance(self.hyper, places, self.ddim)

    def var_to_data(self, shared: pt.TensorVariable) -> xr.Dataset:
        """Return the values of a flat vector by name of value variable.

        PyMC's method uses the same names for unnamed axes of all variables, and fails if lengths of these axes differ.
        """
        flat, coords = shared.eval(), self._coords
        found = {}
        for name, place, shape, dtype in self.ordering.values():
            dims = self.model.named_vars_to_dims.get(name) or [f"{name}_dim_{i}" for i in range(len(shape))]
            own = {dim: np.array(coords[dim]) for dim in dims if coords.get(dim) is not None}
            found[name] = xr.DataArray(flat[place].reshape(shape).astype(dtype), coords=own, dims=dims, name=name)
        return xr.Dataset(found)

    @property
    def symbolic_random(self) -> pt.TensorVariable:
        """Graph of draws with mean `mean` and covariance `cov`, linear in the standard normals `symbolic_initial`."""
        return self.mean + self.symbolic_initial @ covariance_root(self._covariance()).T


def _moments(hyper: HyperPosterior) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return means and standard deviations by name of value variable."""
    means, variances = zip(*(conditional.moments() for conditional in conditionals(hyper)), strict=True)
    mean, std = {}, {}
    for name in means[0]:
        parts = (np.array([part[name] for part in of]) for of in (means, variances))
        mean[name], variance = total_variance(hyper.weights, *parts)
        std[name] = np.sqrt(variance)
    for name, unknown in without_moments(hyper, hyper.log_posterior.classifier.effects_by_factors).items():
        mean[name], std[name] = (np.where(unknown.reshape(np.shape(of)), np.nan, of) for of in (mean[name], std[name]))
    for name, count in finite_moments(hyper, list(mean), lambda each: each.moments()[1]).items():
        for lowest, moments in enumerate((mean, std), start=1):
            moments[name] = np.where(count.reshape(np.shape(moments[name])) < lowest, np.nan, moments[name])
    return mean, std


def _covariance(hyper: HyperPosterior, places: Mapping[str, slice], size: int) -> Array:
    """Return the covariance (size, size) of a flat vector, given the slice `places` of each value variable."""

    def parts() -> Iterator[tuple[Array, Array]]:
        for conditional in conditionals(hyper):
            flat = np.zeros(size)
            for name, mean in conditional.moments()[0].items():
                flat[places[name]] = np.ravel(mean)
            yield flat, conditional.covariance(places, size)

    return total_covariance(hyper.weights, parts())[1]


class Fit(Fitted):
    """Approximate posterior of a model, as `pm.fit` returns it for every method of this package.

    The latent functions are Gaussian given the hyperparameters. The hyperparameters are integrated over weighted nodes,
    or stay at the maximum of their posterior. `print(fit)` states the evidence, the convergence and the treatment of
    the hyperparameters.

    Users call `predict`, `summary`, `effects`, `contrast`, `sample`, `loo`, `importance`, `corrected_evidence`,
    `sensitivity`, `refine` and `save`. A fit is immutable: neither its methods nor later changes of the model change
    it. Results are computed when they are first requested.

    PyMC's attributes of an `Approximation` work as well: `mean`, `std`, `cov`, `mean_data`, `state` and `sample_node`.
    They need matrices of the size of all latent values.

    Attributes
    ----------
    seconds : float
        Seconds that the fit took, without compilation.
    compile_seconds : float
        Seconds of compiling the log posterior and the kernels. NaN if unknown.

    Examples
    --------
    >>> with model:
    ...     ep = pm.fit(method="nested_ep")
    >>> ep.predict(gp, Xnew)["p"]  # class probabilities at new inputs
    >>> ep.log_evidence, ep.hyperparameters
    >>> ep.sample(100)  # draws, as from pm.sample
    """

    _group_class = GPGroup

    predict = prediction.predict
    loo = cross_validation.loo
    importance = exactness.importance
    corrected_evidence = exactness.corrected_evidence
    contrast = effects.contrast
    effects = effects.effects
    summary = summary.summary
    sensitivity = sensitivity.sensitivity
    draw = sample.draw
    draw_at_maximum = sample.draw_at_maximum
    sample = sample.sample
    _marginals_of_draws = cached_property(marginals.marginals_of_draws)
    to_datatree = saving.to_datatree
    save = saving.save

    # Interface of PyMC's approximations.

    @property
    def sample_dict_fn(self) -> Any:
        """Function of (draws, random_seed) that returns draws of the value variables of the model."""

        def sample(draws: int = 100, *, random_seed: Any = None) -> dict[str, Array]:
            values = self.draw(draws, np.random.default_rng(random_seed))
            return {name: values[name] for name in self.groups[0].ordering}

        return sample

    @cached_property
    def groups(self) -> list[GPGroup]:
        """The group of all free variables, made at its first use."""
        group = GPGroup(None, model=self.model, random_seed=self.seed)
        group.__init_group__(self._free)
        group.include_transformed = self.include_transformed
        group.hyper = self.hyper_posterior
        return [group]

    @cached_property
    def _scale_cost_to_minibatch(self) -> Any:
        return pytensor.shared(np.int8(1))

    if not TYPE_CHECKING:  # A type checker would accept any attribute.

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the PyMC group. Python calls this method for attributes that the fit lacks."""
            if hasattr(type(self), name):  # A property of the class raised an AttributeError: raise it again.
                return object.__getattribute__(self, name)
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            try:
                return getattr(self.groups[0], name)
            except AttributeError:
                absent = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(absent, name=name, obj=self) from None
