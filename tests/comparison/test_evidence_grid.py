"""Evidence and scores on grids of hyperparameters."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.comparison.evidence_grid import serpentine
from pymc_gpep.fits.prediction import predict_at
from tests import models
from tests.reference.data import iris

LS, ETA = np.array([0.5, 1.0, 3.0]), np.array([1.0, 4.0])


@pytest.fixture(scope="module")
def held_out():
    X, y = iris()
    chosen = np.arange(2, 150, 10)
    return X[chosen][:, 2:], y[chosen]


@pytest.fixture(scope="module")
def grid(shared, held_out):
    X, y = held_out
    return gpep.diagnostics.evidence_grid(
        shared.model, {"ls": LS, "eta": ETA}, gp=shared.gp, Xnew=X, ynew=y, progressbar=False
    )  # fmt: skip


def test_each_value_on_the_grid_equals_a_separate_solve(shared, grid):
    """The reference computes the prior covariance with NumPy and starts cold."""
    solver = NestedEP()
    squares = ((shared.X[:, None] - shared.X) ** 2).sum(axis=-1)
    assert grid["evidence"].dims == ("ls", "eta")
    assert_allclose(grid["ls"], LS)
    for i, ls in enumerate(LS):
        for j, eta in enumerate(ETA):
            k = eta**2 * np.exp(-squares / ls**2 / 2) + 1e-6 * np.eye(30)
            solution = solver.solve(k, np.zeros((3, 30)), shared.y)
            assert grid["evidence"][i, j] == pytest.approx(solution.evidence, abs=1e-6)
    assert grid["converged"].all()
    assert grid.attrs["approximation"] == "nested_ep"


def test_scores_match_a_fit_at_each_grid_point(shared, grid, held_out):
    """The fit is moved to a point of the grid, and its predictions are scored."""
    X, y = held_out
    theta = shared.fit.log_posterior.space.initial_point({"ls": [3.0, 3.0], "eta": 4.0})
    functions = shared.fit.log_posterior.latent(theta, shared.fit.log_posterior.solve(theta), (shared.gp,))
    p = predict_at(functions, X, likelihood=shared.fit.classifier.likelihood_model).p
    assert grid["mlpd"].sel(ls=3, eta=4).item() == pytest.approx(np.log(p[np.arange(15), y]).mean(), abs=1e-6)
    assert grid["accuracy"].sel(ls=3, eta=4).item() == (p.argmax(axis=1) == y).mean()
    share = np.bincount(shared.y) / shared.y.size
    information = (np.log2(p[np.arange(15), y]) - np.log2(share[y])).mean()
    assert grid["information"].sel(ls=3, eta=4).item() == pytest.approx(information, abs=1e-6)


def test_warm_starts_save_iterations(shared):
    fine = np.geomspace(1.0, 1.2, 6)
    grid = gpep.diagnostics.evidence_grid(shared.model, {"ls": fine, "eta": [4.0]}, progressbar=False)
    assert (grid["iterations"][1:] < grid["iterations"][0]).all()
    assert "mlpd" not in grid


def test_hyperparameters_that_are_not_on_the_grid_have_their_fixed_values(shared):
    at = shared.fit.hyperparameters
    eta = at["eta"].item()
    grid = gpep.diagnostics.evidence_grid(shared.model, {"eta": [eta]}, at=at, method="nested_ep", progressbar=False)
    assert grid["evidence"].item() == pytest.approx(shared.fit.log_evidence, abs=1e-6)


def test_options_are_passed_to_the_approximation(shared):
    grid = gpep.diagnostics.evidence_grid(
        shared.model, {"ls": [0.3], "eta": [20.0]}, max_iterations=2, progressbar=False
    )
    assert not grid["converged"].item()
    assert grid["iterations"].item() == 2


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (1, 1)])
def test_serpentine_path_visits_each_grid_cell_once_by_neighbours(shape):
    path = np.array(list(serpentine(shape)))
    assert len({tuple(index) for index in path}) == len(path) == np.prod(shape)
    assert (np.abs(np.diff(path, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ({}, {}, "values is empty"),
        ({"scale": [1.0]}, {}, "values names 'scale', but the hyperparameters of the model are: 'ls', 'eta'"),
        ({"ls": [1.0]}, {}, "'eta' have no value"),
        ({"ls": [1.0]}, {"at": {"eta": 1.0, "tau": 2.0}}, "values names 'tau', but the hyperparameters"),
        ({"ls": [], "eta": [1.0]}, {}, r"values\['ls'\] must be a vector"),
        ({"ls": [[1.0]], "eta": [1.0]}, {}, r"values\['ls'\] must be a vector"),
        ({"ls": [1.0], "eta": [1.0]}, {"ynew": [1]}, "need the new inputs Xnew"),
        ({"ls": [1.0], "eta": [1.0]}, {"method": "ep"}, "'ep' supports these likelihoods: probit, logit"),
    ],
)
def test_invalid_arguments_raise_errors(shared, values, options, message):
    with pytest.raises(ValueError, match=message):
        gpep.diagnostics.evidence_grid(shared.model, values, progressbar=False, **options)


def test_invalid_labels_raise_value_error(shared):
    new = {"gp": shared.gp, "Xnew": models.data()[0][:2], "progressbar": False}
    with pytest.raises(ValueError, match=r"ynew must be \(2,\), one for each point"):
        gpep.diagnostics.evidence_grid(shared.model, {"ls": [1.0], "eta": [1.0]}, ynew=[0], **new)
    with pytest.raises(ValueError, match="ynew must be integers 0…2"):
        gpep.diagnostics.evidence_grid(shared.model, {"ls": [1.0], "eta": [1.0]}, ynew=[0, 3], **new)
