"""EP of active rows where each latent function has chosen rows of its own (Seeger and Jordan 2004, section 6).

The rows are the union of those of all functions. The site of a row has precision zero for a function that did not
choose it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.kernels.gaussians.independent import factorise_function, function_variance, function_weights
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.class_independent_ep import QIEP
from pymc_gpep.rivals.computations import IndependentQuadrature
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.dense_form import DenseForm
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix, run


def _separate_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[bool, float, float]],
    there: NDArray[np.bool_],
    **options: Any,
) -> Found:
    """EP with those scalar sites that are `there` (c, n); others stay zero.

    `start`, which is overwritten, is π and ν (2, n, c). `update` and options are those of `independent_ep` in
    `pymc_gpep.solvers`. No common shift is solved for, as there: functions that see different points do not agree on
    one. The normaliser of a point depends on all functions, also on those without a site there, whose moments do not
    match. So EP's energy is not stationary at its fixed point, and has no derivatives.
    """
    k, prior_mean = problem.k, problem.mean
    c, n = prior_mean.shape
    sites = start.reshape(2, n, c)
    pi, nu, b, mean, variance = np.empty((5, c, n))
    inverses = np.empty((c, n, n))

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        pi[:], nu[:] = sites[0].T, sites[1].T
        total = 0.0
        for a in range(c):
            own = own_matrix(k, a)
            ok, log_det = factorise_function(own, pi[a], inverses[a])
            if not ok:
                return False, np.nan, np.nan
            function_weights(inverses[a], pi[a], nu[a], prior_mean[a], b[a])
            function_variance(own, pi[a], inverses[a], variance[a])
            away = own @ b[a]
            mean[a] = prior_mean[a] + away
            # Relative to the prior mean the location is ν − π m, and the sites have a value at m.
            location = nu[a] - pi[a] * prior_mean[a]
            total += 0.5 * float(prior_mean[a] @ (nu[a] + location) + location @ away - log_det)
        ok, terms, _ = update(mean, variance, pi, nu, problem.labels, sites, target, scale)
        target *= there.T
        moved = np.abs(target - sites)
        return ok, total + terms, float(max((moved[0] * scale).max(), (moved[1] * np.sqrt(scale)).max()))

    def derivatives() -> Derivatives:
        return Derivatives(np.full_like(k, np.nan), np.full_like(prior_mean, np.nan))

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, b, mean, variance.T[:, :, None] * np.eye(c), pi, derivatives, rung)


def iterate_separately(
    method: QIEP, prior: DensePrior, labels: NDArray[np.int64], likelihood: Likelihood, there: NDArray[np.bool_]
) -> tuple[DensePosterior, Convergence]:
    """Iterate sites to the fixed point of class-independent EP in which some functions of a row have none.

    Parameters
    ----------
    method : QIEP
    prior : DensePrior
        Prior of the n rows of the union.
    labels : array (n,)
    likelihood : Likelihood
        Likelihood of these rows.
    there : array (c, n) of bool
        Which sites there are.

    Returns
    -------
    tuple
        The posterior, and how the iteration ended.
    """
    solver = partial(
        _separate_ep, update=likelihood.computation(IndependentQuadrature).update, there=there,
        largest_precision=likelihood.largest_precision, **method.settings,
    )  # fmt: skip
    outcome = run(
        solver, prior.k, prior.mean, labels, np.zeros(2 * there.size), method.max_iterations, relative=True,
        form=DenseForm, parameters=likelihood.parameters,
    )  # fmt: skip
    posterior = make_posterior(prior, method.site_form, outcome.precision, outcome.weights, outcome.mean)
    return posterior, method.convergence(outcome)
