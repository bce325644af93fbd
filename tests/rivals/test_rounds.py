"""End of the rounds of selecting rows, for a parabolic log posterior that does not depend on the rows."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.rivals.active_log_posterior import climb_in_rounds

AT_MOST = 6


@dataclass
class Parabola:
    """Log posterior with a given list of row selections. The last selection is repeated."""

    rows: list[list[int]]
    choices: int = 0
    name: str = "ivm"
    asked: list[float] = field(default_factory=list)

    def choose(self, theta):
        rows = self.rows[min(self.choices, len(self.rows) - 1)]
        self.choices += 1
        self.asked.append(float(theta[0]))
        return SimpleNamespace(selection=SimpleNamespace(rows=np.array(rows)))

    def holding(self, solution):
        return self

    def loosely(self):
        return self

    def roughly(self):
        return self

    def point(self, theta):
        return {"theta": theta}

    def check_moments(self, theta):
        pass

    def __call__(self, theta, start=None):
        value = -0.5 * float((theta - 1.0) @ (theta - 1.0))
        return Evaluation(theta.copy(), value, 1.0 - theta, value, 1, CONVERGED, np.empty(0))


@pytest.mark.parametrize(
    ("rows", "choices"),
    [
        # The second round does not move the hyperparameters. If the rows also stay, the search ends. Otherwise it makes
        # another round.
        ([[1, 2]], 3),
        ([[1, 2], [2, 1]], 3),
        ([[1, 2], [2, 3], [3, 4], [4, 5]], 4),
    ],
)
def test_rounds_end_if_hyperparameters_and_active_rows_do_not_change(rows, choices):
    whole = Parabola(rows)
    optimum, _ = climb_in_rounds(whole, np.zeros(1), 100, AT_MOST, lambda history, held: None)
    assert whole.choices == choices
    assert optimum.converged
    assert "Further rounds do not change" in optimum.message
    np.testing.assert_allclose(whole.asked[1:], 1.0, atol=1e-3)


@pytest.mark.parametrize(("n", "rounds", "message"), [(100, 1, "limit of 1 rounds"), (1, 5, "n=1 iterations")])
def test_message_names_the_limit_on_rounds(n, rounds, message):
    whole = Parabola([[1, 2]])
    optimum, _ = climb_in_rounds(whole, np.zeros(1), n, rounds, lambda history, held: None)
    assert whole.choices == 2
    assert not optimum.converged
    assert message in optimum.message
