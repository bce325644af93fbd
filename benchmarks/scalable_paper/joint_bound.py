"""The paper's VI: q, hyperparameters and inducing inputs at once, by L-BFGS, from the prior.

The bound of equation (14) is a PyTensor graph with automatic derivatives. Inducing values are those of the process
without its noise. Parameters include the mean and the Cholesky factor of their Gaussian, in their own or in whitened
coordinates.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.scalable_paper.models import AMPLITUDE, NOISE, typical_distance
from benchmarks.scalable_paper.scoring import EPSILON, with_label_noise
from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.likelihoods.log_probabilities import log_ndtr

Array = np.ndarray

JITTER = 1e-6
"""Added to the covariance of the inducing values, relative to its diagonal, as in `pm.fit`."""
GPFLOW = {"log_ls": 0.0, "log_amplitude": 0.0, "log_noise": 0.0}
"""GPflow's initial values for a squared exponential and a white kernel: length scales and variances are 1."""
_NODES = 40
_HOPELESS = 1e10  # objective where a matrix has no Cholesky factor: the line search shortens its step


class JointBound:
    """The bound for given data, and its derivatives, as functions of one vector.

    Parameters
    ----------
    X : array (n, d)
    y : array of int (n,)
    inducing : array (c, M, d)
        Where inducing inputs begin.
    whitened : bool
        Whether `mean` and the factor of q are those of whitened inducing values.
    begin : mapping, optional
        First values of hyperparameters, by name, in place of the first values of `pm.fit`.

    Attributes
    ----------
    first : array
        Parameters to begin with: those of `pm.fit`, and the prior as q.
    shapes : dict
        Shapes of the parts of this vector, in their order.
    """

    def __init__(
        self,
        X: Array,
        y: NDArray[np.int64],
        inducing: Array,
        whitened: bool = False,
        begin: Mapping[str, float] | None = None,
    ) -> None:
        self._whitened = whitened
        c, m, d = inducing.shape
        distance = typical_distance(X)
        self._lower = np.tril_indices(m, -1)
        first = {
            "log_ls": np.full((c, d), np.log(distance)),
            "log_amplitude": np.full(c, np.log(AMPLITUDE)),
            "log_noise": np.full(c, np.log(NOISE)),
            "inducing": inducing,
            "mean": np.zeros((c, m)),
        }
        first |= {name: np.full_like(first[name], value) for name, value in (begin or {}).items()}
        factor = np.broadcast_to(np.eye(m), (c, m, m)) if whitened else _prior_factor(first).eval(mode=INTERPRETED)
        first["log_diagonal"] = np.log(factor.diagonal(axis1=1, axis2=2))
        first["below"] = factor[:, *self._lower]
        self.shapes = {name: value.shape for name, value in first.items()}
        self.first = np.concatenate([value.ravel() for value in first.values()])
        vector, others = pt.dvector("parameters"), pt.dmatrix("Xnew")
        value = self._graph(vector, X, y)
        slopes = pytensor.grad(value, vector)
        self._value = pytensor.function([vector], [value, slopes], mode=INTERPRETED)
        mean, variance, *_ = self._moments(self._parts(vector), others)
        self._predict = pytensor.function([vector, others], [mean, variance], mode=INTERPRETED)

    def __call__(self, at: Array) -> tuple[float, Array]:
        """The bound and its derivatives, or −1e10 and zero slopes where a matrix has no Cholesky factor."""
        try:
            with np.errstate(all="ignore"):
                value, slopes = self._value(at)
        except np.linalg.LinAlgError:
            value, slopes = np.nan, np.empty(0)
        if not (np.isfinite(value) and np.isfinite(slopes).all()):
            return -_HOPELESS, np.zeros_like(at)
        return float(value), slopes

    def probabilities(self, at: Array, Xnew: Array) -> Array:
        """Probabilities (m, c) of the classes, without label noise."""
        mean, variance = (pt.as_tensor(each) for each in self._predict(at, Xnew))
        of_classes = [_largest(mean, variance, np.full(len(Xnew), k)) for k in range(self.shapes["mean"][0])]
        p = pt.stack(of_classes, axis=1).eval(mode=INTERPRETED)
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def _parts(self, vector: Any) -> dict[str, Any]:
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes.values())])
        return {
            name: vector[start:end].reshape(self.shapes[name])
            for name, start, end in zip(self.shapes, ends[:-1], ends[1:], strict=True)
        }

    def _graph(self, vector: Any, X: Array, y: NDArray[np.int64]) -> Any:
        mean, variance, q_mean, q_factor, q_log_diagonal = self._moments(self._parts(vector), pt.as_tensor(X))
        right, c = _largest(mean, variance, y), self.shapes["mean"][0]
        average = pt.sum(right * np.log(1.0 - EPSILON + EPSILON / c) + (1.0 - right) * np.log(EPSILON / c))
        squares = pt.sum(q_mean**2) + pt.sum(q_factor**2) - np.prod(self.shapes["mean"])
        divergence = 0.5 * squares - pt.sum(q_log_diagonal)
        return average - divergence

    def _moments(self, parts: Mapping[str, Any], X: Any) -> tuple[Any, ...]:
        """Means and variances (c, n) of latent values with noise; whitened mean of q, factor, log of its diagonal."""
        m = self.shapes["mean"][1]
        prior = _prior_factor(parts)
        factor = pt.zeros((*self.shapes["mean"], m))
        factor = factor[:, *self._lower].set(parts["below"])
        on = np.arange(m)
        factor = factor[:, on, on].set(pt.exp(parts["log_diagonal"]))
        mean, log_diagonal = parts["mean"], parts["log_diagonal"]
        if not self._whitened:
            both = pt.linalg.solve_triangular(
                prior, pt.concatenate([factor, mean[:, :, None]], axis=2), lower=True, b_ndim=2
            )
            factor, mean = both[:, :, :m], both[:, :, m]
            log_diagonal -= pt.log(pt.diagonal(prior, axis1=1, axis2=2))
        features = pt.linalg.solve_triangular(prior, _covariance(parts, X[None]), lower=True, b_ndim=2)
        of_q = pt.matmul(factor.mT, features)
        total = (pt.exp(parts["log_amplitude"]) + pt.exp(parts["log_noise"]))[:, None]
        variance = total - (features**2).sum(axis=1) + (of_q**2).sum(axis=1)
        return (features * mean[:, :, None]).sum(axis=1), variance, mean, factor, log_diagonal


def _covariance(parts: Mapping[str, Any], other: Any) -> Any:
    """Covariances (c, M, n) of inducing values with values at other inputs (1 or c, n, d)."""
    ls, amplitude = pt.exp(parts["log_ls"])[:, None], pt.exp(parts["log_amplitude"])[:, None, None]
    z, x = parts["inducing"] / ls, other / ls
    squared = (z**2).sum(axis=-1)[:, :, None] + (x**2).sum(axis=-1)[:, None] - 2.0 * pt.matmul(z, x.mT)
    return amplitude * pt.exp(-0.5 * pt.maximum(squared, 0.0))


def _prior_factor(parts: Mapping[str, Any]) -> Any:
    """Cholesky factors (c, M, M) of the prior of the inducing values."""
    jitter = JITTER * pt.exp(parts["log_amplitude"])[:, None, None] * pt.eye(parts["inducing"].shape[1])
    return pt.linalg.cholesky(_covariance(parts, parts["inducing"]) + jitter)


def _largest(mean: Any, variance: Any, y: NDArray[np.int64]) -> Any:
    """Probabilities (n,) that the latent values of these classes are the largest, from means and variances (c, n)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    rows = np.arange(len(y))
    at = mean[y, rows][:, None] + pt.sqrt(variance[y, rows])[:, None] * nodes
    log_below = log_ndtr((at[None] - mean[:, :, None]) / pt.sqrt(variance)[:, :, None])
    others = log_below.sum(axis=0) - log_below[y, rows]
    return pt.exp(others) @ (weights / weights.sum())


class JointFit(NamedTuple):
    """Parameters at the end of L-BFGS, with the interface of a fit that scores need."""

    bound: JointBound
    at: Array
    hist: Array
    message: str

    def predict(self, Xnew: Array, covariances: bool = False) -> xr.Dataset:
        """Class probabilities with label noise, as from `Fit.predict`."""
        p = with_label_noise(self.bound.probabilities(self.at, Xnew))
        return xr.Dataset({"p": (("point", "class"), p)})

    def __str__(self) -> str:
        return f"L-BFGS of all parameters: {self.message}"


def joint_fit(
    data: tuple[Array, NDArray[np.int64]],
    n: int,
    *,
    inducing: Array,
    whitened: bool = False,
    begin: Mapping[str, float] | None = None,
    callbacks: Sequence[Callable[..., None]] = (),
) -> JointFit:
    """Maximise the bound of `data`, (n, d) and (n,), by at most `n` iterations. Callbacks are as in `pm.fit`."""
    bound = JointBound(*data, inducing, whitened, begin)
    losses: list[float] = []

    def loss(at: Array) -> tuple[float, Array]:
        value, slopes = bound(at)
        return -value, -slopes

    def after(intermediate_result: Any) -> None:
        losses.append(float(intermediate_result.fun))
        now = JointFit(bound, intermediate_result.x, np.array(losses), "going on")
        for each in callbacks:
            each(now, now.hist, len(losses))

    options = {"maxiter": n, "maxfun": 20 * n}
    found = minimize(loss, bound.first, jac=True, method="L-BFGS-B", callback=after, options=options)
    if not found.success and found.nit < n:
        warnings.warn(f"L-BFGS ended after {found.nit} iterations: {found.message}", stacklevel=2)
    return JointFit(bound, found.x, np.array(losses), str(found.message))
