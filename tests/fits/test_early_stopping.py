"""Held-out rows: scores during a fit, the fit with the best score, and early stopping."""

import re
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from tests import models
from tests.reference.data import iris

X, Y = (each[2::10] for each in iris())
X = X[:, 2:]

SPARSE = {"method": "sparse_ep", "sites": "pairwise", "inducing": 5, "learn_inducing": True, "random_seed": 1}
WAYS = {
    "all latent values": {"method": "qiep"},
    "inducing inputs": SPARSE,
    "inner updates": SPARSE | {"update": "inner"},
    "active rows": {"method": "ivm", "active": 12, "random_seed": 1},
    "batches": SPARSE | {"batch_size": 10, "warmup": 0, "obj_optimizer": pm.adam(learning_rate=0.1)},
}
EPOCHS = {"batches": 3}  # Number of steps in an epoch: batches of ten of 30 rows.

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")


def fit(n, held, build=models.shared, **options):
    model, gp = build()
    given = {} if options["method"] == "qiep" else {"gp": gp}
    with model:
        return model, pm.fit(n, progressbar=False, callbacks=[held], **given, **options)


def mean_log_density(fit):
    p = fit.predict(X)["p"].values
    return np.log(p[np.arange(len(Y)), Y]).mean()


FEW = ["all latent values", "active rows"]


@pytest.fixture(
    scope="module", params=[name if name in FEW else pytest.param(name, marks=pytest.mark.variation) for name in WAYS]
)
def way(request):
    held, seen = gpep.EarlyStopping(X, Y), []
    per = EPOCHS.get(request.param, 1)
    model, gp = models.shared()
    given = {} if request.param == "all latent values" else {"gp": gp}

    def listen(fit, losses, iteration):
        if iteration % per == 0:
            seen.append((iteration, mean_log_density(fit)))

    with model:
        found = pm.fit(8 * per + 1, progressbar=False, callbacks=[held, listen], **given, **WAYS[request.param])
    return model, held, seen, found


def test_scores_match_the_fit_of_each_iteration(way):
    _, held, seen, _ = way
    scores = held.scores.mlpd.to_series()
    iterations, densities = zip(*seen, strict=True)
    assert_allclose(scores[list(iterations)], densities, rtol=1e-9)
    assert held.scores.accuracy.max() > 0.9


def test_last_score_matches_the_returned_fit(way):
    _, held, _, found = way
    assert_allclose(held.scores.mlpd[-1], mean_log_density(found), rtol=1e-6)


def test_best_fit_equals_the_fit_of_its_iteration(way):
    _, held, _, found = way
    assert_allclose(mean_log_density(held.best), held.scores.mlpd.max(), rtol=1e-9)
    assert held.best is not found
    assert "the best score of 15 held-out rows" in held.best.message


def test_best_fit_can_be_saved(way):
    model, held, _, _ = way
    again = gpep.from_datatree(held.best.to_datatree(), model=model)
    assert_allclose(mean_log_density(again), mean_log_density(held.best), rtol=1e-4)


def test_patience_counts_scores_since_the_best():
    held = gpep.EarlyStopping(X, Y, patience=2, every=2)
    _, found = fit(60, held, **WAYS["inducing inputs"] | {"start": {"ls": [1.0, 1.0], "eta": 30.0}})
    scores = held.scores.mlpd
    assert (scores.iteration % 2 == 0).all()
    assert found.trace.message == "No improvement on held-out rows in 2 scores"
    assert scores.values.argmax() == scores.size - 3


def test_fit_that_integrates_over_hyperparameters_is_scored_at_its_end():
    held = gpep.EarlyStopping(X, Y)
    _, found = fit(30, held, method="qiep", hyper="ccd", random_seed=0)
    assert found.nodes.sizes["node"] > 1
    assert_allclose(held.scores.mlpd[-1], mean_log_density(found), rtol=1e-9)
    assert held.scores.iteration[-1] == len(found.hist)  # one more than the number of iterations
    assert_allclose(mean_log_density(held.best), held.scores.mlpd.max(), rtol=1e-9)


def test_scores_of_an_earlier_fit_are_dropped():
    held = gpep.EarlyStopping(X, Y, every=2)
    assert repr(held) == "EarlyStopping of 15 rows, nothing scored yet"
    fit(4, held, **WAYS["inducing inputs"])
    first = held.best
    fit(2, held, **WAYS["inducing inputs"] | {"inducing": 3})
    assert held.scores.iteration.values.tolist() == [2]
    assert held.best is not first
    assert repr(held).startswith("EarlyStopping of 15 rows, best at iteration 2 of 2: mlpd -0.")


def test_fit_without_a_posterior_has_no_score(way):
    _, held, _, found = way
    broken = found.kept("a fit like it")
    broken.solution = SimpleNamespace(posterior=None)
    held = gpep.EarlyStopping(X, Y, every=1)
    held(broken, broken.hist, 1)
    held(found, found.hist, 2)
    assert_array_equal(np.isnan(held.scores.mlpd), [True, False])
    assert held.scores.accuracy[1] > 0.9
    assert "best at iteration 2" in repr(held)


def test_counts_are_scored_by_log_density():
    x = np.linspace(-1, 1, 8)[:, None]
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5)).prior("f", X=x)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(8) % 3)
        held = gpep.EarlyStopping(x[:3] + 0.1, [1, 0, 2])
        pm.fit(method="laplace", progressbar=False, callbacks=[held])
    assert set(held.scores) == {"mlpd", "squared_error"}
    assert held.scores.iteration == 0  # without hyperparameters there is one score, at the end
    assert held.scores.mlpd < 0


def test_gp_argument_allows_scores_of_computed_latent_values():
    inputs, labels = models.data()
    with pm.Model():
        x = pm.Data("x", inputs)  # the covariance uses the maximum of all rows
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, 1.0) * (x**2).max())
        gpep.MultinomialProbit("y", gp.prior("f", X=x, n_outputs=3).T, observed=labels)
        held = gpep.EarlyStopping(X, Y, gp=gp)
        pm.fit(method="qiep", progressbar=False, callbacks=[held])
        with pytest.raises(gpep.StructureError, match="cannot be computed at other inputs"):
            pm.fit(method="qiep", progressbar=False, callbacks=[gpep.EarlyStopping(X, Y)])
    assert held.scores.accuracy > 0.9


@pytest.mark.variation
def test_methods_without_iterations_have_no_scores():
    with models.fixed()[0], pytest.raises(TypeError, match=r"fits by methods of pymc_gpep, but this method returns a"):
        pm.fit(2, method="advi", callbacks=[gpep.EarlyStopping(X, Y)], progressbar=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y + 1), "y of EarlyStopping must be integers 0…2, but run from 1 to 3. Code the classes from 0"),
        ((X[:, :1], Y), "Xnew has 1 columns, but the model's inputs have 2"),
    ],
    ids=["from 1", "columns"],
)
def test_rows_of_another_model_are_refused_after_one_iteration(arguments, message):
    seen = []
    with models.shared()[0], pytest.raises(ValueError, match=re.escape(message)):
        pm.fit(5, callbacks=[lambda *_: seen.append(1), gpep.EarlyStopping(*arguments, every=5)], progressbar=False,
               **WAYS["inducing inputs"])  # fmt: skip
    assert seen == [1]


def test_best_raises_value_error_before_a_fit():
    held = gpep.EarlyStopping(X, Y)
    assert held.scores.sizes["iteration"] == 0
    with pytest.raises(ValueError, match="No fit has been scored yet"):
        _ = held.best


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, Y[:3]), {}, ValueError, r"y must have one label for each of 15 rows, but has shape \(3,\)"),
        ((X, Y[:, None]), {}, ValueError, r"\(15, 1\); y\.ravel\(\) has one axis"),
        ((X[:, 0], Y), {}, ValueError, r"X must be \(rows, columns\)"),
        ((X[:0], Y[:0]), {}, ValueError, "with a row or more"),
        ((X, Y), {"every": 0}, ValueError, "every must be at least 1"),
        ((X, Y), {"patience": 1.5}, TypeError, "patience must be a whole number"),
    ],
)
def test_invalid_held_out_rows_raise_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gpep.EarlyStopping(*arguments, **options)


def test_held_out_rows_of_effects_are_given_by_data():
    group, y = np.arange(24) % 3, np.arange(24) % 2
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("s", 1), shape=3)
        gpep.Probit("y", a[pm.Data("group", group)], observed=y)
    held = gpep.EarlyStopping(None, [1, 0], data={"group": [0, 2]})
    fit = pm.fit(3, model=model, method="ep", hyper="map", callbacks=[held], progressbar=False)
    expected = fit.predict(data={"group": [0, 2]}, observed=[1, 0])["log_density"].mean()
    assert held.scores["mlpd"][-1] == expected
    assert str(held).startswith("EarlyStopping of 2 rows")
    with pytest.raises(ValueError, match="X is None and data is empty"):
        gpep.EarlyStopping(None, [1, 0])
