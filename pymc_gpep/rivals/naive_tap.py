"""Naive TAP (Thouless, Anderson and Palmer): EP with prior variances in place of cavity variances."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.laplace import NewtonApproximation, fixed_cavity
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem


@dataclass(frozen=True)
class NaiveTAP(NewtonApproximation):
    """Sites that match moments of tilted distributions, with prior variances as variances of the cavities.

    The method is EP with each cavity variance replaced by its upper limit, the prior variance K_ii. It is the naive
    mean field theory of Opper and Winther (2000), in section 4.3 of Nickisch and Rasmussen (2008). It is exact for
    points that are independent under the prior. The evidence is EP's formula.
    """

    name: ClassVar[str] = "tap_naive"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    algebra: ClassVar[Algebra] = Algebra.VARIANCES

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether site precisions are bounded. Prior variances in place of cavity variances require this."""
        return super().approximates(likelihood) and bool(np.isfinite(likelihood.largest_precision))

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        average = likelihood.computation(GaussianAverage).terms
        return fixed_cavity(problem, start, history, average=average, wide=True, **self.settings)
