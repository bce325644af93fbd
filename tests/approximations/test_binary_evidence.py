"""The evidences of binary classifiers: known figures, exact cases, and what must lie below what."""

import numpy as np
import pytest

from tests.approximations.binary import KINDS, METHODS, regimes

kinds = pytest.mark.parametrize("kind", KINDS, ids=str)

# By dense versions of the methods, for nine regimes; "exact" is a bivariate orthant or a trapezoid rule of 1501².
COLUMNS = ("exact", "laplace", "ep", "kl", "vb", "jensen_vb", "fv")
FIGURES = {
    "probit": """
        −1.397464 −1.694999 −1.397464 −1.567759 −3.285514 −2.517912 −1.397490
        −1.854826 −2.085767 −1.853917 −1.979201 −3.266794 −2.591908 −1.874520
        −2.795476 −2.833288 −2.791910 −2.804639 −3.196373 −2.896391 −3.053076
        −1.392142 −1.407197 −1.392142 −1.395136 −1.685662 −1.438211 −1.392219
        −1.594506 −1.605630 −1.594351 −1.596279 −1.823620 −1.625836 −1.696022
        −1.777268 −1.782842 −1.776629 −1.777413 −1.927623 −1.797614 −2.875896
        −1.386848 −1.386916 −1.386848 −1.386848 −1.404701 −1.387009 −1.387005
        −1.404024 −1.404090 −1.404024 −1.404024 −1.421424 −1.404225 −1.600579
        −1.416135 −1.416198 −1.416134 −1.416135 −1.432973 −1.416410 −2.860808
    """,
    "logit": """
        −1.396419 −1.528028 −1.396419 −1.449324 −1.869887 −1.514859 −1.396452
        −1.795093 −1.944161 −1.794534 −1.826005 −2.096814 −1.864709 −1.828808
        −2.407155 −2.518835 −2.409010 −2.412486 −2.479790 −2.420704 −2.955775
        −1.389427 −1.404487 −1.389427 −1.389582 −1.403281 −1.389840 −1.389542
        −1.491547 −1.506300 −1.491551 −1.491644 −1.501703 −1.491827 −1.641658
        −1.571123 −1.583508 −1.571176 −1.571234 −1.578906 −1.571412 −2.866336
        −1.386517 −1.386591 −1.386517 −1.386517 −1.386567 −1.386517 −1.386681
        −1.393388 −1.393462 −1.393388 −1.393388 −1.393437 −1.393388 −1.596046
        −1.398189 −1.398262 −1.398189 −1.398189 −1.398237 −1.398189 −2.860311
    """,
}


def figures(name):
    """The table (9, 7) of a likelihood, regime by regime."""
    return np.array([float(word.replace("−", "-")) for word in FIGURES[name].split()]).reshape(9, len(COLUMNS))


@kinds
@pytest.mark.parametrize("method", ["laplace", "ep", "kl", "vb", "fv"])
def test_nine_regimes(kind, method):
    expected = figures(str(kind))[:, COLUMNS.index(method)]
    for problem, figure in zip(regimes(), expected, strict=True):
        solution = METHODS[method]().solve(*problem, likelihood=kind.likelihood)
        assert solution.convergence.converged
        assert solution.evidence == pytest.approx(figure, abs=1e-6)


@pytest.mark.parametrize(("regime", "figure"), list(enumerate([-2.883028, -2.812429, -2.893893])))
def test_label_regression_of_unit_noise(regime, figure):
    problem = list(regimes())[regime]
    solution = METHODS["lr"](least=1.0, most=1.0).solve(*problem, likelihood=KINDS[0].likelihood)
    assert solution.evidence == pytest.approx(figure, abs=1e-6)
