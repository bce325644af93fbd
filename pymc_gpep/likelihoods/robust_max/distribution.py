"""The step likelihood with label noise as a PyMC distribution."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.keywords import refuse_others
from pymc_gpep.likelihoods.label_noise.epsilon import as_epsilon, with_random_labels
from pymc_gpep.likelihoods.multinomial_probit.distribution import as_labels, as_latent
from pymc_gpep.likelihoods.multinomial_probit.noisy_distribution import largest_label


class RobustMaxRV(RandomVariable):
    """y = argmax_k f_k with probability 1 − ε, else any class."""

    name = "robust_max"
    signature = "(c),()->()"
    dtype = "int64"
    _print_name = ("RobustMax", "\\operatorname{RobustMax}")

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray, size: tuple[int, ...] | None
    ) -> np.ndarray:
        """Draw labels of shape `size`, or the batch shape of `f` (..., c)."""
        batch = np.broadcast_shapes(f.shape[:-1], np.shape(epsilon)) if size is None else tuple(size)
        return with_random_labels(rng, np.broadcast_to(np.argmax(f, axis=-1), batch), epsilon, f.shape[-1])


@numba_core_rv_funcify.register(RobustMaxRV)
def _numba_robust_max(op: RobustMaxRV, node: Apply) -> Callable[..., Any]:
    @numba_njit
    def random(rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray) -> int:
        if rng.random() < epsilon.item():
            return int(rng.integers(0, f.shape[0]))
        return int(np.argmax(f))

    return random


robust_max = RobustMaxRV()


class RobustMax(Discrete):
    r"""Class labels of the largest of c latent values, but for a part ε of them, which are drawn from all classes.

    .. math:: p(y \mid f) = (1 - \varepsilon) \, [y = \arg\max_k f_k] + \varepsilon / c

    ========  ===================================
    Support   :math:`y \in \{0, 1, \ldots, c-1\}`
    ========  ===================================

    Parameters
    ----------
    f : tensor_like, (..., c)
        Latent values. The class axis is the last, as in :class:`pymc.Categorical`: latent values from
        ``pm.gp.Latent(...).prior(..., n_outputs=c)`` are (c, n), so pass ``f.T``.
    epsilon : float or variable of the model
        Part of the labels that have nothing to do with `f`, from 0 to below 1. The class of the largest value has the
        probability 1 − ε + ε/c, each other one ε/c. With a prior, such as ``pm.Beta("epsilon", 1, 19)``, it is learned
        by ``"nested_ep"`` and ``"qiep"``.

    Raises
    ------
    ValueError
        If `f` has no class axis or fewer than two classes, if `epsilon` is not from 0 to below 1. Also if `observed`
        labels are all missing, not whole numbers, not among 0 ... c−1, or of a shape that does not fit `f`. Nothing has
        been added to the model then.
    TypeError
        If `epsilon` is neither a number nor a variable.

    Notes
    -----
    The likelihood of Hernández-Lobato, Hernández-Lobato and Dupont (2011), and of Villacampa-Calvo and
    Hernández-Lobato (2017), equation 13. Others write 1 − ε for the largest and ε/(c − 1) for each other class: that ε
    is (c − 1)/c times this one.

    Nothing changes with `f` but by jumps: the derivative of the log probability is zero wherever there is one. Samplers
    that go by gradients (NUTS) thus learn nothing from labels. The fits ``pm.fit(method="nested_ep" | "qiep")`` average
    over `f`, and so do those with inducing inputs. :class:`EllipticalSlice` needs no gradients.

    Noise of the utilities belongs into the covariance, ``+ pm.gp.cov.WhiteNoise(1.0)``: with a unit variance the model
    is that of :class:`MultinomialProbit` with the same `epsilon`.

    Examples
    --------
    >>> with pm.Model():
    ...     gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0) + pm.gp.cov.WhiteNoise(0.1))
    ...     f = gp.prior("f", X=X, n_outputs=3)
    ...     gpep.RobustMax("y", f.T, epsilon=1e-3, observed=y)
    """

    rv_op = robust_max

    def __new__(
        cls, name: str, f: Any, epsilon: Any, *args: Any, observed: Any = None, **kwargs: Any
    ) -> TensorVariable:
        """Check `f`, `epsilon` and the labels, then add the variable to the model on the context stack."""
        f, epsilon = as_latent(f, name), as_epsilon(epsilon, name)
        if observed is not None:
            observed = as_labels(observed, f, name)
        return super().__new__(cls, name, f, epsilon, *args, observed=observed, **kwargs)

    @classmethod
    def dist(cls, f: Any, epsilon: Any, **kwargs: Any) -> TensorVariable:
        """A random variable outside any model; arguments as for the class."""
        refuse_others(kwargs, "gpep.RobustMax", "Label noise is epsilon.")
        return super().dist([as_latent(f, "RobustMax"), as_epsilon(epsilon, "RobustMax")], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, f: TensorVariable, epsilon: TensorVariable) -> TensorVariable:
        """log p(value | f)."""
        c = f.shape[-1]
        label = pt.as_tensor_variable(value).astype("int64")
        of_largest, of_others = pt.log1p(-epsilon * (1.0 - 1.0 / c)), pt.log(epsilon / c)
        log_p = pt.switch(pt.eq(label, pt.argmax(f, axis=-1)), of_largest, of_others)
        return pt.switch(pt.and_(pt.ge(label, 0), pt.lt(label, c)), log_p, -np.inf)
