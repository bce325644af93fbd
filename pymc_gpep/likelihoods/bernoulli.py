"""Likelihoods of two classes with one latent function: probit, logistic and complementary log-log."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable
from scipy.special import expit, ndtr

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.sampling import draw_by_sign
from pymc_gpep.kernels.scalar import logit, powers, probit
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    LogisticResponse,
    NormalResponse,
    PowersAverage,
    QuadraticBound,
    ScalarDensity,
    Utilities,
)
from pymc_gpep.likelihoods.log_probabilities import log_ndtr
from pymc_gpep.likelihoods.observed import known_shape, observed_classes, refuse_others
from pymc_gpep.likelihoods.one_function import TwoClasses
from pymc_gpep.likelihoods.standard_density import LOG_RATE, StandardForm, standard_computations


class ProbitRV(RandomVariable):
    """Random variable y = 1 if f + ε > 0, else 0, with ε ~ N(0, 1)."""

    name = "probit"
    signature = "()->()"
    dtype = "int64"
    _print_name = ("Probit", "\\operatorname{Probit}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, f: np.ndarray, size: tuple[int, ...] | None) -> np.ndarray:
        """Draw labels of shape `size`, or of the shape of `f`."""
        return np.asarray(f + rng.standard_normal(np.shape(f) if size is None else size) > 0.0, np.int64)


@numba_core_rv_funcify.register(ProbitRV)
def _numba_probit(op: ProbitRV, node: Apply) -> Callable[..., Any]:
    @numba_njit
    def random(rng: np.random.Generator, f: float) -> int:
        return 1 if f + rng.standard_normal() > 0.0 else 0

    return random


probit_rv = ProbitRV()


class Probit(Discrete):
    r"""Class label 0 or 1 of a probit model: the label is 1 if the latent value plus unit normal noise is positive.

    .. math:: p(y = 1 \mid f) = \Phi(f)

    ========  ======================
    Support   :math:`y \in \{0, 1\}`
    ========  ======================

    Parameters
    ----------
    f : tensor_like
        Latent values, one for each label, such as the result of ``pm.gp.Latent(...).prior(...)``.

    Raises
    ------
    TypeError
        If an argument is unknown to this distribution and to PyMC, such as `epsilon`.
    ValueError
        If `observed` labels are all missing, not 0 or 1 (or bool), or of a shape that does not fit `f`. Labels in
        ``pm.Data`` are checked by their present values. For labels in other symbolic expressions (``pm.Minibatch``)
        only the shape is checked. The model is unchanged after an error.

    Notes
    -----
    ``pm.Bernoulli(p=pm.math.invprobit(f))`` is the same model. For the label 0 its log probability is −∞ if f ≥ 8.3,
    with NaN derivatives. ``Probit`` is accurate far into both tails.

    Examples
    --------
    >>> with pm.Model():
    ...     gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
    ...     f = gp.prior("f", X=X)
    ...     gpep.Probit("y", f, observed=y == 2)
    """

    rv_op = probit_rv

    def __new__(cls, name: str, f: Any, *args: Any, observed: Any = None, **kwargs: Any) -> TensorVariable:
        """Check the labels, then add the variable to the model on the context stack."""
        f = pt.as_tensor_variable(f)
        if observed is not None:
            observed = observed_classes(
                observed,
                known_shape(f),
                2,
                name,
                given="one latent value",
                coding="Code the classes as 0 and 1",
                more="more than two need gpep.MultinomialProbit, or pm.Categorical(logit_p=...)",
                shaping="Labels are one number for each point.",
            )
        return super().__new__(cls, name, f, *args, observed=observed, **kwargs)

    @classmethod
    def dist(cls, f: Any, **kwargs: Any) -> TensorVariable:
        """Return a random variable that belongs to no model; arguments as for the class."""
        noisy = 'Label noise is for two functions: gpep.MultinomialProbit("y", f.T, epsilon=...), f of shape (2, n).'
        refuse_others(kwargs, "gpep.Probit", noisy if "epsilon" in kwargs else "")
        return super().dist([pt.as_tensor_variable(f).astype("float64")], **kwargs)

    def support_point(rv: TensorVariable, size: Variable | None, f: TensorVariable) -> TensorVariable:
        """Return the more probable label, the initial value of a sampler."""
        likely = pt.cast(f > 0.0, "int64")
        return likely if rv_size_is_none(size) else pt.full(size, likely)

    def logp(value: TensorVariable, f: TensorVariable) -> TensorVariable:
        """Return log Φ(f) for the label 1, log Φ(−f) for 0, −∞ for other labels."""
        legal = pt.or_(pt.eq(value, 0), pt.eq(value, 1))
        return pt.switch(legal, log_ndtr((2.0 * value - 1.0) * f), -np.inf)


@dataclass(frozen=True)
class ProbitLikelihood(TwoClasses):
    """Probit likelihood, p(y = 1 | f) = Φ(f): the label is 1 if f plus standard normal noise is positive."""

    name: ClassVar[str] = "probit"
    written: ClassVar[str] = "gpep.Probit"
    distributions: ClassVar[tuple[type[Op], ...]] = (ProbitRV, BernoulliRV)
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        ScalarDensity(probit.derivatives),
        GaussianAverage(probit.average),
        AverageLogDensity(probit.average_log),
        QuadraticBound(probit.bound),
        Utilities(draw_by_sign),
        NormalResponse(),
        PowersAverage(powers.probit),
    )

    def log_probability(self, value: TensorVariable, reading: Reading) -> TensorVariable:
        # PyMC's log density with p=pm.math.invprobit(f) is −∞ for f ≥ 8.3.
        return cast(TensorVariable, Probit.logp(value, reading.argument))

    def averaged(self, name: str, mean: TensorVariable, variance: TensorVariable, **kwargs: Any) -> Variable:
        return Probit(name, mean / pt.sqrt(1.0 + variance), **kwargs)

    def link(self, f: Array) -> Array:
        return np.asarray(ndtr(f))

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Return f of `gpep.Probit`, or of `pm.Bernoulli` if its probability is Φ(f) in any notation; else None."""
        op = variable.owner.op
        if isinstance(op, ProbitRV):
            (latent,) = op.dist_params(variable.owner)
            return Reading(cast(TensorVariable, latent))
        return super().read(variable, latents)


@dataclass(frozen=True)
class LogitLikelihood(TwoClasses):
    """Logistic likelihood, p(y = 1 | f) = σ(f) = 1 / (1 + e⁻ᶠ)."""

    name: ClassVar[str] = "logit"
    written: ClassVar[str] = "pm.Bernoulli(logit_p=...)"
    largest_precision: ClassVar[float] = 0.25
    local: ClassVar[tuple[object, ...]] = (
        ScalarDensity(logit.derivatives),
        GaussianAverage(logit.average, logit.rough_average),
        AverageLogDensity(logit.average_log),
        QuadraticBound(logit.bound),
        LogisticResponse(),
        PowersAverage(powers.logit),
    )

    def link(self, f: Array) -> Array:
        return np.asarray(expit(f))


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    shapes = np.stack([np.zeros(len(y)), (y == 1).astype(np.float64)])
    return StandardForm(np.ones(len(y)), np.zeros(len(y)), shapes, np.where((y == 0) | (y == 1), 0.0, np.nan))


@dataclass(frozen=True)
class ComplementaryLogLogLikelihood(TwoClasses):
    """Likelihood with the complementary log-log link, p(y = 1 | f) = 1 − exp(−eᶠ)."""

    name: ClassVar[str] = "complementary_log_log"
    written: ClassVar[str] = "pm.Bernoulli(p=1 - pm.math.exp(-pm.math.exp(f)))"
    largest_precision: ClassVar[float] = np.inf
    local: ClassVar[tuple[object, ...]] = (
        *standard_computations(LOG_RATE, _form),
        PowersAverage(powers.complementary_log_log),
    )

    def link(self, f: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(-np.expm1(-np.exp(f)))
