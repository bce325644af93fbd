"""Log posteriors that are plain functions, for tests of integrals over hyperparameters."""

from types import SimpleNamespace

import numpy as np
from scipy.optimize import minimize

from pymc_gpep.hyper import hyper_method
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.log_posteriors.evaluation import Evaluation


class Given:
    """Log posterior computed by a given function of the hyperparameters (d,).

    The approximation fails if it returns NaN.

    Parameters
    ----------
    function : callable
    names : sequence of str
    log_prior : callable, optional
        Log prior density, if cells are to cover the region that it allows.
    """

    entries, kept, approximator = 1, 1, SimpleNamespace(matches_moments=False)

    def __init__(self, function, names, log_prior=None):
        self._function, self.count, self.joint = function, 0, log_prior is not None
        classifier = SimpleNamespace(
            model=SimpleNamespace(rvs_to_transforms={}),
            hyperparameters=[],
            prior=SimpleNamespace(effects=False),
            likelihood_model=SimpleNamespace(offers=lambda kind: False, log_concave=True),
            n_functions=1,
            n_points=1,
        )
        self.classifier = classifier
        self.space = SimpleNamespace(
            size=len(names),
            parameters=names,
            owners=names,
            classifier=classifier,
            log_prior=log_prior,
        )

    def loosely(self, gradients=True):
        return self

    weighing = roughly = loosely

    def each(self, function, items):
        return [function(item) for item in items]

    def __call__(self, theta, start=None):
        self.count += 1
        steps = 1e-5 * np.eye(len(theta))
        value = float(self._function(theta))
        slope = np.array([(self._function(theta + e) - self._function(theta - e)) / 2e-5 for e in steps])
        status = OUT_OF_ITERATIONS if np.isnan(value) else CONVERGED
        return Evaluation(np.array(theta), value, slope, value, 1, status, np.zeros(1))

    def integrated(self, at=None, random_seed=1, method="adaptive", **options):
        first = np.zeros(self.space.size) if at is None else np.asarray(at, float)
        best = minimize(lambda x: -self._function(x), first, method="BFGS").x
        optimum = Optimum(self(best if at is None else first), True, "", ())
        self.count = 0
        return hyper_method(method, options).integrate(self, optimum, random_seed=random_seed)
