"""Scores of held-out counts and of ordered classes."""

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from tests.likelihoods.with_parameters import CASES, X, model_of

NEW = X[:5] + 0.1
HELD_OUT = {
    "poisson": {"ynew": [0, 3, 1, 2, 0], "data": {"place": NEW[:, 0], "hours": [0.5, 5.0, 1.0, 2.0, 1.0]}},
    "ordered_probit": {"ynew": [0, 0, 1, 2, 2]},
}


@pytest.fixture(scope="module")
def fitted():
    made = {}

    def of(name):
        if name not in made:
            model, gp = model_of(CASES[name].observe)
            with model:
                fits = {method: pm.fit(method=method, progressbar=False) for method in ("ep", "laplace")}
            draws = fits["ep"].sample(400, chains=2, random_seed=1)
            held_out = {"gp": gp, "Xnew": NEW} | HELD_OUT[name]
            results = fits | {"draws": draws}
            made[name] = model, fits, held_out, gpep.compare_methods(results, "ep", random_seed=1, **held_out)
        return made[name]

    return of


@pytest.mark.variation
def test_counts_are_scored_by_log_density_and_squared_error_of_the_mean(fitted):
    _, fits, held_out, table = fitted("poisson")
    gp, x, y, data = held_out.values()
    for name, fit in fits.items():
        found = fit.predict(gp, x, data=data, observed=y)
        assert table.loc[name, "mlpd"] == pytest.approx(found["log_density"].mean().item())
        assert table.loc[name, "squared_error"] == pytest.approx(((found["y_mean"] - y) ** 2).mean().item())
    assert table.loc["laplace", "outcome_difference"] == pytest.approx(
        np.abs(fits["laplace"].predict(gp, x, data=data)["y_mean"] - fits["ep"].predict(gp, x, data=data)["y_mean"])
        .mean()
        .item()
    )
    assert table.loc["draws", "mlpd"] == pytest.approx(table.loc["ep", "mlpd"], abs=0.02)
    assert table.loc["draws", "squared_error"] == pytest.approx(table.loc["ep", "squared_error"], rel=0.1)
    assert not {"accuracy", "information", "probability_difference"} & set(table)


@pytest.mark.variation
def test_ordered_classes_have_a_score_for_their_order(fitted):
    _, fits, held_out, table = fitted("ordered_probit")
    gp, x, y = held_out.values()
    for method, fit in fits.items():
        p = fit.predict(gp, x)["p"].values
        assert table.loc[method, "mlpd"] == pytest.approx(np.log(p[range(5), y]).mean())
        assert table.loc[method, "accuracy"] == (p.argmax(axis=1) == y).mean()
        ranked = [sum((p[i, : k + 1].sum() - (y[i] <= k)) ** 2 for k in range(3)) for i in range(5)]
        assert table.loc[method, "ranked_probability"] == pytest.approx(np.mean(ranked))
        assert np.isfinite(table.loc[method, "information"])
    assert table.loc["draws", "ranked_probability"] == pytest.approx(table.loc["ep", "ranked_probability"], abs=0.03)


@pytest.mark.parametrize("name", HELD_OUT)
def test_scores_of_a_grid_equal_scores_of_fits(name, fitted):
    model, fits, held_out, table = fitted(name)
    at = fits["ep"].hyperparameters
    grid = gpep.diagnostics.evidence_grid(
        model, {"eta": [at["eta"].item(), 3.0]}, at=at.drop_vars("eta"), progressbar=False, **held_out
    ).isel(eta=0)
    scores = (
        {"mlpd", "squared_error"} if name == "poisson" else {"mlpd", "accuracy", "ranked_probability", "information"}
    )
    assert set(grid.data_vars) == scores | {"evidence", "converged", "iterations"}
    for score in scores:
        assert grid[score].item() == pytest.approx(table.loc["ep", score], abs=1e-5)


def test_unlikely_observations_have_finite_scores(fitted):
    _, fits, held_out, _ = fitted("poisson")
    found = fits["ep"].predict(held_out["gp"], NEW, data=held_out["data"], observed=[500] * 5)
    assert ((found["log_density"] > -1000) & (found["log_density"] < -50)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, r"differ between points.*data=\{'place'"),
        ({"ynew": [0, 1, 2, 3, -1]}, "must be counts"),
        (
            {"probabilities": {"ep": np.ones((5, 2))}},
            "'y' does not observe classes. Leave probabilities out, and pass Xnew",
        ),
    ],
)
def test_invalid_scores_of_counts_raise_value_error(change, message, fitted):
    _, fits, held_out, _ = fitted("poisson")
    with pytest.raises(ValueError, match=message):
        gpep.compare_methods(fits, "ep", **held_out | change)
