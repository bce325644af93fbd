"""Expectation propagation for a softmax, with sites that couple the classes (Seeger and Jordan 2004)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.methods.softmax_qep import softmax_sites
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import CoupledQuadrature
from pymc_gpep.likelihoods.softmax import Nodes, class_nodes
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.block_ep import derivatives, relative_posterior, site_posterior_space
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem


def softmax_qep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    nodes: Nodes,
    **options: Any,
) -> Found:
    """EP by quadrature, its sites those that `pymc_gpep.kernels.methods.softmax_qep` describes.

    `start`, which is overwritten, is π and ν (2, n, c), zeros for a cold start. `update` is the kernel of
    `pymc_gpep.likelihoods.local_computations.CoupledQuadrature`; the other options are those of `ep_ladder`.
    """
    c, n = problem.mean.shape
    space = site_posterior_space(problem)
    pi = np.empty((c, n))

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        softmax_sites(sites, space.pi, space.nu)
        pi[:] = space.pi
        ok, gaussian = relative_posterior(problem, space)
        if not ok:
            return False, np.nan, np.nan
        gaussian += 0.5 * float(np.log(pi.sum(0)).sum())
        terms, residual = update(*nodes, space.mean, space.cov, problem.labels, pi, sites, target, scale)
        return True, gaussian + terms, residual

    evidence, status, rung = ep_ladder(sweep, start.reshape(2, n, c), history, largest_precision=np.inf, **options)
    return Found(evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(space), rung)


_FEW, _ENOUGH = 3, 600  # nodes of all of three classes, with errors of 1e-5 under prior standard deviations of 5


@dataclass(frozen=True)
class QEPSoftmax(AcceleratedEP):
    """EP for a softmax with the sites that Laplace's method has, diag(π) − ππᵀ / 1ᵀπ with any π, at Laplace's cost.

    Tilted moments are integrals over c − 2 dimensions, the rest being in closed form. Sites match the tilted means, and
    the tilted covariances by constrained projection (Seeger and Jordan 2004, section 4.3). With two and three classes
    the match is whole, since any coupling is of this form unless its sign is wrong. With more classes it is as near as
    such sites can come. The derivatives that are reported take sites as constants. With two and three classes they are
    those of the evidence; from four on they miss these by what the projection leaves out. From eight on they also miss
    the error of the quadrature, a percent or two with 2000 nodes and half a percent with 20 000.

    Parameters
    ----------
    nodes : int
        Most nodes of the quadrature, for each point and sweep. Three classes need no more than 161, or 600 for votes.
    """

    nodes: int = field(default=2000, metadata=at_least(1))

    name: ClassVar[str] = "qep"
    site_form: ClassVar[SiteForm] = SiteForm.COUPLED
    needs: ClassVar[tuple[type, ...]] = (CoupledQuadrature,)
    matches_moments: ClassVar[bool] = True
    whole_factors: ClassVar[str] = "for a softmax"
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        settings = self.settings
        update, conditioned = likelihood.computation(CoupledQuadrature)
        classes = len(problem.mean) - conditioned
        most = min(settings["nodes"], _ENOUGH) if classes <= _FEW and not conditioned else settings["nodes"]
        settings["nodes"] = class_nodes(classes, most)
        return softmax_qep(problem, start, history, update=update, **settings)
