"""Detection of a second mode of the posterior, with masses by sums over a grid."""

import re

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

from pymc_gpep.approximations import EP
from pymc_gpep.checks.converged_fits import other_mode
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.reading import read_classifier

TWO_AND_TWO = np.array([1.0, 1.1, 3.0, 3.1])
NU, SIGMA, LEVEL = 4.0, 0.2, 2.0


def model_of(y, slope=None):
    """Model of rows `level * slope`. By default slopes differ by 1e-9, so that each row is a separate factor."""
    slope = 1.0 + 1e-9 * np.arange(len(y)) if slope is None else slope
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, LEVEL)
        pm.StudentT("y", nu=NU, mu=level * slope, sigma=SIGMA, observed=y)
    return model


def masses_of(y):
    """Log masses of the two modes."""
    level, step = np.linspace(-6.0, 8.0, 4001, retstep=True)
    log_p = stats.t.logpdf((y[:, None] - level) / SIGMA, NU).sum(axis=0) - len(y) * np.log(SIGMA)
    log_p += stats.norm.logpdf(level, 0.0, LEVEL) + np.log(step)
    return [logsumexp(log_p[side]) for side in (level < 2.05, level >= 2.05)]


@pytest.fixture(scope="module")
def likelihood():
    found = read_classifier(model_of(np.ones(5)))
    (parameters,) = evaluate([found.parameters])
    return found.likelihood_model.given(parameters)


def test_warning_names_both_modes_with_their_masses():
    masses = masses_of(TWO_AND_TWO)
    message = r"several modes, .* outliers \(2, 3\).* pm.sample"
    with model_of(TWO_AND_TWO), pytest.warns(UserWarning, match=message) as caught:
        fit = pm.fit(method="ep", progressbar=False)
    assert len(caught) == 1
    found = [float(each) for each in re.findall(r"-\d+\.\d\d", str(caught[0].message))]
    assert found == pytest.approx(masses, abs=0.06)
    assert found[0] == pytest.approx(fit.log_evidence, abs=0.01)


def test_evidence_of_grouped_rows_is_the_mass_of_both_modes():
    with model_of(TWO_AND_TWO, np.ones(4)):
        fit = pm.fit(method="ep", progressbar=False)
    assert fit.log_evidence == pytest.approx(logsumexp(masses_of(TWO_AND_TWO)), abs=1e-4)


@pytest.mark.variation(but=["y0"])
@pytest.mark.parametrize(
    "y",
    [
        [1.0, 1.1, 0.9, 3.0, 3.1],  # the other mode has a mass of some thousandths
        [1.0, 1.0, 2.0, 2.0],  # the Gaussian covers both modes
    ],
)
def test_dominant_mode_does_not_cause_a_warning(likelihood, y):
    n, method = len(y), EP(tolerance=1e-4)
    k, own = np.full((n, n), LEVEL**2), likelihood.at(np.arange(n))
    solution = method.solve(k, np.zeros((1, n)), np.array(y), likelihood=own)
    assert solution.converged
    assert not other_mode(method, solution)
