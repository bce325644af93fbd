"""Multinomial probit as a likelihood: class probabilities, and a variant with unequal noise."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import Discrete
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable
from scipy.special import ndtr
from scipy.stats import qmc

from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array
from pymc_gpep.kernels.compile import kernel, source_key
from pymc_gpep.kernels.likelihoods.multinomial_probit import (
    bound_terms,
    curvature,
    curvature_slope,
    log_likelihood,
)
from pymc_gpep.kernels.methods.energy_descent import site_energies
from pymc_gpep.kernels.methods.factors import (
    pair_derivatives,
    point_derivatives,
    tabulated_derivatives,
    utility_average,
)
from pymc_gpep.kernels.moments.inner_ep import (
    inner_ep_update,
    noisy_inner_ep_update,
    noisy_site_parameters,
    tilted_log_normaliser,
    tilted_moments,
)
from pymc_gpep.kernels.sampling import draw_in_cone
from pymc_gpep.kernels.scalar import probit
from pymc_gpep.kernels.special.largest_of_independent import FINE, probabilities_of_independent
from pymc_gpep.kernels.special.orthant import (
    BITS,
    LAST_LEVEL,
    SEQUENCES,
    largest_of_four,
    largest_of_three,
    largest_probabilities,
)
from pymc_gpep.likelihoods.factor_averages import UtilityNoise, over_factors
from pymc_gpep.likelihoods.likelihood import gaussian_moments, independent_classes
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    DifferenceFactors,
    LargestUtility,
    NoisyDifferenceFactors,
    PairFactors,
    PointAverage,
    PointFactor,
    TabulatedFactor,
    Utilities,
    UtilityBound,
)
from pymc_gpep.likelihoods.multinomial_probit_distribution import (
    LabelAverages,
    MultinomialProbitRV,
    flat_points,
    largest_label,
    log_probabilities_and_gradients,
)
from pymc_gpep.likelihoods.observed import shape_text
from pymc_gpep.likelihoods.one_function import OneFunctionPerClass

# Largest number of sweeps over the sites of a point, and largest change of a site that counts as converged.
INNER_SWEEPS, INNER_TOLERANCE = 200, 1e-10


@kernel
def _with_slopes(
    mean: np.ndarray,
    variance: np.ndarray,
    y: np.ndarray,
    log_z: np.ndarray,
    of_mean: np.ndarray,
    of_variance: np.ndarray,
) -> None:
    """Write log Z and its derivatives at n points; −∞ and zeros for a label outside the classes."""
    n, c = mean.shape
    parameters = np.empty((0, n))
    for i in range(n):
        if 0 <= y[i] < c:
            one = slice(i, i + 1)
            point_derivatives(mean[one], variance[one], y[one], parameters, log_z[one], of_mean[one], of_variance[one])
            for k in range(c):
                of_variance[i, k] = 0.5 * (of_mean[i, k] * of_mean[i, k] - of_variance[i, k])
        else:
            log_z[i] = -np.inf
            of_mean[i] = 0.0
            of_variance[i] = 0.0


def log_averages_and_gradients(
    y: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log ∫ p(y | f) ∏ N(f_k | mean_k, variance_k) df of many points, and its derivatives.

    Parameters
    ----------
    y : (...) array of int
        Labels, 0 ... c−1.
    mean, variance : (..., c) array
        Moments of the latent values; the batch dimensions broadcast against `y`.

    Returns
    -------
    log_average : (...) array
    of_mean, of_variance : (..., c) array
    """
    batch, (labels, means, variances) = flat_points(y, (mean, variance), (1, 1))
    log_z, slopes = np.empty(labels.size), np.empty((2, *means.shape))
    _with_slopes(means, variances, labels, log_z, *slopes)
    return log_z.reshape(batch), *slopes.reshape(2, *batch, means.shape[1])


@kernel
def _inner_ep_over_points(
    y: np.ndarray, mean: np.ndarray, cov: np.ndarray, log_z: np.ndarray, means: np.ndarray, covs: np.ndarray
) -> None:
    """Run inner EP. Write log Z (n,), tilted moments into `means[0]`, `covs[0]`, slopes into `means[1]`, `covs[1]`."""
    for i in range(len(y)):
        log_z[i] = tilted_moments(
            mean[i], cov[i], y[i], INNER_SWEEPS, INNER_TOLERANCE, means[0, i], covs[0, i], means[1, i], covs[1, i]
        )


def inner_ep_moments(y: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return log ∫ p(y | f) N(f | mean, cov) df of many points by inner EP, tilted moments, and derivatives.

    Parameters
    ----------
    y : (...) array of int
        Labels, 0 ... c−1.
    mean, cov : (..., c) and (..., c, c) array
        Moments of the latent values; the batch dimensions broadcast against `y`.

    Returns
    -------
    log_z : (...) array
        Log normalisers.
    new_mean, new_cov : (..., c) and (..., c, c) array
        Moments of the normalised p(y | f) N(f | mean, cov).
    of_mean, of_cov : (..., c) and (..., c, c) array
        Derivatives of the log normaliser.
    """
    batch, (labels, means, covs) = flat_points(y, (mean, cov), (1, 2))
    log_z, of_means, of_covs = np.empty(labels.size), np.empty((2, *means.shape)), np.empty((2, *covs.shape))
    _inner_ep_over_points(labels, means, covs, log_z, of_means, of_covs)
    pairs = (each.reshape(2, *batch, *each.shape[2:]) for each in (of_means, of_covs))
    (new_mean, of_mean), (new_cov, of_cov) = pairs
    return log_z.reshape(batch), new_mean, new_cov, of_mean, of_cov


class LogAverage(LabelAverages):
    """Log average of the likelihood of one point, and its derivatives in mean and variance."""

    gufunc_signature = "(),(c),(c)->(),(c),(c)"
    gufunc_spec = (f"{__name__}.log_averages_and_gradients", 3, 3)
    compute = staticmethod(log_averages_and_gradients)
    others = "second derivatives of the multinomial probit with unequal noise"


class TiltedMoments(LabelAverages):
    """Log normalisers and moments of the tilted distributions of n points, and derivatives of the log normalisers.

    The axis of points is an axis of this Op, since PyTensor fails to rewrite an indexed output of `Blockwise`.
    """

    gufunc_signature = "(n),(n,c),(n,c,c)->(n),(n,c),(n,c,c),(n,c),(n,c,c)"
    gufunc_spec = (f"{__name__}.inner_ep_moments", 3, 5)
    compute = staticmethod(inner_ep_moments)
    others = "second derivatives of gpep.inner_ep, and derivatives of its moments,"


@register_funcify_default_op_cache_key(LogAverage)
def _numba_log_average(op: LogAverage, node: Apply, **kwargs: Any) -> tuple[Callable[..., Any], int]:
    @numba_njit
    def log_average(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        c = mean.shape[0]
        label, value = np.empty(1, np.int64), np.empty(1)
        label[0] = y.item()
        of_mean, of_variance = np.empty((1, c)), np.empty((1, c))
        means, variances = np.empty((1, c)), np.empty((1, c))
        means[0], variances[0] = mean, variance
        _with_slopes(means, variances, label, value, of_mean, of_variance)
        return np.asarray(value[0]), of_mean[0], of_variance[0]

    return log_average, source_key(__file__)


@register_funcify_default_op_cache_key(TiltedMoments)
def _numba_inner_ep(op: TiltedMoments, node: Apply, **kwargs: Any) -> tuple[Callable[..., Any], int]:
    @numba_njit
    def inner_ep(y: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, ...]:
        n, c = mean.shape
        if y.shape[0] != n or cov.shape != (n, c, c):
            raise ValueError("inner_ep: labels, means and covariances differ in the numbers of points or classes.")
        log_z, means, covs = np.empty(n), np.empty((2, n, c)), np.empty((2, n, c, c))
        labels, flat, blocks = np.ascontiguousarray(y), np.ascontiguousarray(mean), np.ascontiguousarray(cov)
        _inner_ep_over_points(labels, flat, blocks, log_z, means, covs)
        return log_z, means[0], covs[0], means[1], covs[1]

    return inner_ep, source_key(__file__)


_inner_ep = TiltedMoments()


def inner_ep(y: Any, mean: Any, cov: Any) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    r"""Approximate the log probability of labels under normal latent values, by expectation propagation.

    .. math:: Z = \int p(y \mid f) \, N(f \mid m, \Sigma) \, df

    Here p(y | f) is the multinomial probit of :class:`MultinomialProbit`: the label is the largest of utilities with
    mean m and covariance Σ + I. So this is the likelihood of a multinomial probit with correlated utilities. It can
    be added to a model as a potential, and NUTS can sample its parameters.

    Parameters
    ----------
    y : tensor_like of int, (...)
        Labels, 0 ... c−1. Other labels have the log probability −∞.
    mean : tensor_like, (..., c)
        Means m of the latent values.
    cov : tensor_like, (..., c, c)
        Covariances Σ, symmetric and positive semi-definite. Batch dimensions of the arguments broadcast.

    Returns
    -------
    log_z : TensorVariable, (...)
        Approximate log Z, with first derivatives in `mean` and `cov`. It is exact for two classes. It is NaN if `mean`
        or `cov` is not finite, or if squares overflow.
    new_mean : TensorVariable, (..., c)
        Mean of the tilted distribution p(y | f) N(f | m, Σ) / Z. The moments have no derivatives.
    new_cov : TensorVariable, (..., c, c)
        Covariance of the tilted distribution.

    Raises
    ------
    TypeError
        If `y` is not of integers.
    ValueError
        If `mean` or `cov` has too few axes, or less than two classes. If their numbers of classes differ, or batch
        dimensions do not broadcast.

    Notes
    -----
    This is the inner EP of Riihimäki, Jylänki and Vehtari (2013), appendix A, for one point at a time. Derivatives are
    exact derivatives of the approximate log Z, since it is stationary in the sites. Graphs compiled by numba call the
    compiled iteration directly. JAX calls it through a host callback.

    The error of a probability is 1e-3 to 2e-3 on average with three and four classes, and at most 0.013 to 0.04. It is
    larger for larger variances of latent values. ``fit.predict`` computes probabilities without this error.

    Examples
    --------
    Utilities with a learned covariance of their noise, as in models of choice:

    >>> with pm.Model() as model:
    ...     slope = pm.Normal("slope", 0, 1, shape=(2, 3))
    ...     root, *_ = pm.LKJCholeskyCov("root", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=3))
    ...     log_z, _, _ = gpep.inner_ep(y, X @ slope, root @ root.T)
    ...     pm.Potential("y", log_z.sum())
    """
    y, mean, cov = (pt.as_tensor_variable(each) for each in (y, mean, cov))
    if y.dtype not in integer_dtypes:
        raise TypeError(f"inner_ep: y must be integers, but its dtype is {y.dtype}. Write y.astype(int).")
    if mean.ndim < 1 or cov.ndim < 2:
        raise ValueError(
            f"inner_ep: mean needs 1 class axis and cov 2 class axes, but they have {mean.ndim} and {cov.ndim} axes."
        )
    counts = {size for size in (*mean.type.shape[-1:], *cov.type.shape[-2:]) if size is not None}
    if len(counts) > 1 or 1 in counts:
        raise ValueError(
            "inner_ep: the last axis of mean and the last two axes of cov need one entry for each of 2 or more classes,"
            f" but the shapes are {shape_text(mean.type.shape)} and {shape_text(cov.type.shape)}."
        )
    given = y.astype("int64"), mean.astype("float64"), cov.astype("float64")
    static = [x.type.shape[: x.ndim - k] for k, x in enumerate(given)]
    try:
        batch: Any = np.broadcast_shapes(*static)
    except ValueError:
        shapes = ", ".join(
            f"{name} {shape_text(shape)}" for name, shape in zip(("y", "mean", "cov"), static, strict=True)
        )
        raise ValueError(f"inner_ep: the batch dimensions do not broadcast: {shapes}.") from None
    except TypeError:  # Some lengths are symbolic until evaluation.
        batch = pt.broadcast_shape(*(x[(..., *(0,) * k)] for k, x in enumerate(given)))
    c = mean.shape[-1] if mean.type.shape[-1] is None else mean.type.shape[-1]
    ends = [(c,) * k for k in range(3)]
    flat = []
    for x, end, own in zip(given, ends, static, strict=True):
        whole = x if own == batch else pt.broadcast_to(x, (*batch, *end))
        flat.append(whole if len(batch) == 1 else whole.reshape((-1, *end)))
    outputs = _inner_ep(*flat)[:3]
    if len(batch) != 1:
        outputs = [x.reshape((*batch, *end)) for x, end in zip(outputs, ends, strict=True)]
    log_z, new_mean, new_cov = outputs
    return log_z, new_mean, new_cov


_log_average = Blockwise(LogAverage())


class UnequalNoiseProbitRV(RandomVariable):
    """Random variable y = argmax_k (m_k + e_k) with independent e_k ~ N(0, 1 + s_k)."""

    name = "unequal_noise_probit"
    signature = "(c),(c)->()"
    dtype = "int64"
    _print_name = ("UnequalNoiseProbit", "\\operatorname{UnequalNoiseProbit}")

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, mean: np.ndarray, variance: np.ndarray, size: tuple[int, ...] | None
    ) -> np.ndarray:
        """Draw labels of shape `size`, or the batch shape of the parameters (..., c)."""
        batch = np.broadcast_shapes(mean.shape, variance.shape)[:-1] if size is None else tuple(size)
        noise = rng.standard_normal((*batch, mean.shape[-1]))
        return np.argmax(mean + np.sqrt(1.0 + variance) * noise, axis=-1)


@numba_core_rv_funcify.register(UnequalNoiseProbitRV)
def _numba_unequal_noise_probit(op: UnequalNoiseProbitRV, node: Apply) -> Callable[..., Any]:
    @numba_njit
    def random(rng: np.random.Generator, mean: np.ndarray, variance: np.ndarray) -> int:
        return int(np.argmax(mean + np.sqrt(1.0 + variance) * rng.standard_normal(mean.shape[0])))

    return random


unequal_noise_probit = UnequalNoiseProbitRV()


class UnequalNoiseProbit(Discrete):
    r"""Class labels of a multinomial probit with independent normal latent values that are integrated out.

    .. math:: p(y \mid m, s) = \int p(y \mid f) \prod_k N(f_k \mid m_k, s_k) \, df

    The label is the class of the largest of c utilities with means m and noise of variance 1 + s. With s = 0 this is
    the multinomial probit.

    Parameters
    ----------
    mean : tensor_like (..., c)
        Means of the latent values.
    variance : tensor_like (..., c)
        Variances of the latent values.

    Notes
    -----
    The integral is computed as in class-independent EP by quadrature, to about 14 digits, with first derivatives.
    """

    rv_op = unequal_noise_probit

    @classmethod
    def dist(cls, mean: Any, variance: Any, **kwargs: Any) -> TensorVariable:
        """Return a random variable outside any model; arguments as for the class."""
        return super().dist([pt.as_tensor_variable(each).astype("float64") for each in (mean, variance)], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, mean: TensorVariable, variance: TensorVariable) -> TensorVariable:
        """Return log p(value | mean, variance)."""
        return _log_average(pt.as_tensor_variable(value).astype("int64"), mean, variance)[0]


_SEED = 20_130_107  # Fixed seed of the points, so that equal input has equal results.
_NOISE = UtilityNoise(common=1.0, weights=np.ones(1), means=np.zeros(1), variances=np.zeros(1), error=4e-6)
_WIDEST = 1e100  # Larger variances are scaled down, so that their squares do not overflow.


def class_probabilities(
    mean: np.ndarray, cov: np.ndarray, *, method: str = "orthant", tolerance: float = 5e-5
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability of each class at m points, with latent values integrated out.

    The probability of class k is P(v_k is the largest entry of v) for utilities v ~ N(mean, cov + I).

    Parameters
    ----------
    mean : (m, c) array
        Posterior means of the latent values.
    cov : (m, c, c) array
        Posterior covariances of the latent values. They may be singular.
    method : {"orthant", "inner_ep"}
        "orthant" computes the c orthant probabilities of dimension c − 1. For up to three classes the error is
        rounding. For four classes it is about 1e-10, unless latent values vary a thousand times more than the noise.
        With a diagonal covariance there is one integral for any number of classes, with an error of about 1e-10. For
        five classes or more the error is about `tolerance`, by randomised rules over common factors of the classes. If
        these rules fail, quasi-Monte Carlo integration is used. The random numbers are fixed. "inner_ep" is the
        approximation of the nested EP paper: inner EP computes the normalisers of the tilted distributions (appendix
        A). It is fast for many classes, with an error that does not depend on `tolerance`.
    tolerance : float
        Target absolute error of each probability by "orthant". The work is bounded, so check the returned errors.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN if mean or covariance is NaN.
    errors : (m,) array
        Estimated error of the least certain probability of each point. With five classes or more, "orthant" returns
        half a confidence interval of 99 per cent. With one integral or a closed form, it returns the distance of the
        sum of probabilities from 1 before normalisation. "inner_ep" always returns this distance. It is not a bound
        on the error.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, if `tolerance` is not positive, or if
        `method` is unknown.
    """
    mean, cov = gaussian_moments(mean, cov, tolerance)
    # At this width the unit noise is negligible, so all variances may be scaled down.
    wider = np.maximum(np.abs(cov).max(axis=(1, 2), initial=0.0) / _WIDEST, 1.0)
    mean, cov = mean / np.sqrt(wider)[:, None], cov / wider[:, None, None]
    if method == "inner_ep":
        unnormalised = np.exp(tilted_log_normaliser(mean, cov, INNER_SWEEPS, INNER_TOLERANCE))
        total = unnormalised.sum(axis=1, keepdims=True)
        return unnormalised / total, np.abs(total[:, 0] - 1.0)
    check_name("method", method, ("orthant", "inner_ep"))
    c = mean.shape[1]
    if c <= 3:
        return _normalised(_FEW_CLASSES[c](mean, cov))
    probabilities, errors = np.full(mean.shape, np.nan), np.full(len(mean), np.nan)
    alone = independent_classes(cov)
    probabilities[alone], errors[alone] = _independent(mean[alone], cov[alone])
    together = np.flatnonzero(~alone)
    if c == 4:
        probabilities[together], errors[together] = _normalised(_FEW_CLASSES[c](mean[together], cov[together]))
        return probabilities, errors
    probabilities[together], errors[together] = over_factors(mean[together], cov[together], _NOISE, tolerance)
    together = together[~(errors[together] <= tolerance)]
    p, error = _orthants(mean[together], cov[together], tolerance)
    better = ~(error > errors[together])
    probabilities[together[better]], errors[together[better]] = p[better], error[better]
    return probabilities, errors


def _normalised(probabilities: Array) -> tuple[Array, Array]:
    """Return probabilities divided by their sum, and the distance of this sum from 1."""
    total = probabilities.sum(axis=1)
    return probabilities / total[:, None], np.abs(total - 1.0)


def _independent(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return class probabilities and errors for independent latent values, by one quadrature at each point."""
    (nodes, weights), reach, width = FINE
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    variance = 1.0 + np.ascontiguousarray(cov.diagonal(axis1=1, axis2=2))
    probabilities_of_independent(mean, variance, nodes, weights, reach, width, probabilities, errors)
    return probabilities, errors


def _orthants(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    """Return probabilities and errors of five classes or more, each computed as an orthant probability."""
    points, shifts = _quasi_random_numbers(mean.shape[1])
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    largest_probabilities(mean, cov, points, shifts, tolerance, probabilities, errors)
    return probabilities, errors


def _two_classes(mean: Array, cov: Array) -> Array:
    """Return probabilities (m, 2), each computed independently."""
    difference = mean[:, 0] - mean[:, 1]
    variance = 2.0 + cov[:, 0, 0] + cov[:, 1, 1] - cov[:, 0, 1] - cov[:, 1, 0]
    return ndtr(difference[:, None] * np.array([1.0, -1.0]) / np.sqrt(variance)[:, None])


def _by_kernel(kernel: Callable[[Array, Array, Array], None]) -> Callable[[Array, Array], Array]:
    """Return a function of mean and covariance that computes class probabilities (m, c), one by one, with a kernel."""

    def probabilities(mean: Array, cov: Array) -> Array:
        found = np.empty(mean.shape)
        kernel(mean, cov, found)
        return found

    return probabilities


_FEW_CLASSES = {2: _two_classes, 3: _by_kernel(largest_of_three), 4: _by_kernel(largest_of_four)}


@lru_cache(maxsize=4)
def _quasi_random_numbers(c: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scrambled Sobol sequences for c classes, and a digital shift of each sequence for each class."""
    rng = np.random.default_rng(_SEED)
    each = [qmc.Sobol(c - 2, bits=BITS, rng=rng).random_base2(LAST_LEVEL) for _ in range(SEQUENCES)]
    points = np.ldexp(np.stack(each, axis=-1), BITS).astype(np.int64)
    return points, rng.integers(1 << BITS, size=(c, c - 2, SEQUENCES))


@dataclass(frozen=True)
class MultinomialProbitLikelihood(OneFunctionPerClass):
    """Multinomial probit: the class with the largest utility. It is a latent value plus standard normal noise."""

    name: ClassVar[str] = "multinomial_probit"
    written: ClassVar[str] = "gpep.MultinomialProbit"
    distributions: ClassVar[tuple[type[Op], ...]] = (MultinomialProbitRV,)
    method: ClassVar[str] = "nested_ep"
    guide: ClassVar[str] = "nested_ep"
    ways: ClassVar[tuple[str, ...]] = ("orthant", "inner_ep")
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        DifferenceFactors(inner_ep_update, site_energies, probit.average),
        NoisyDifferenceFactors(noisy_inner_ep_update, noisy_site_parameters),
        PointFactor(point_derivatives),
        TabulatedFactor(tabulated_derivatives),
        PairFactors(pair_derivatives),
        PointAverage(utility_average),
        BlockCurvature(log_likelihood, curvature, curvature_slope),
        UtilityBound(bound_terms),
        Utilities(draw_in_cone),
        LargestUtility(1.0),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        (latent,) = variable.owner.op.dist_params(variable.owner)
        return Reading(cast(TensorVariable, latent))

    def averaged(self, name: str, mean: TensorVariable, variance: TensorVariable, **kwargs: Any) -> Variable:
        return UnequalNoiseProbit(name, mean, variance, **kwargs)

    def log_densities(self, f: Array, observed: NDArray[np.int64]) -> Array:
        return log_probabilities_and_gradients(observed, f.swapaxes(-1, -2))[0]

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        return class_probabilities(mean, cov, method=self.check_way(how), tolerance=tolerance)

    def log_tail(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        # For two classes there is one factor, so inner EP is exact.
        return inner_ep_moments(observed, mean, cov)[0]
