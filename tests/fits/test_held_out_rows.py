"""Rows that are kept back: their scores, the fit that predicts them best, and when a fit ends by them."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests import models
from tests.reference.data import iris

X, Y = (each[2::10] for each in iris())
X = X[:, 2:]

SPARSE = {"method": "sparse_ep", "sites": "pairwise", "inducing": 5, "random_seed": 1}
WAYS = {
    "all latent values": {"method": "qiep"},
    "inducing inputs": SPARSE,
    "inner updates": SPARSE | {"update": "inner"},
    "batches": SPARSE | {"batch_size": 10, "warmup": 0, "obj_optimizer": pm.adam(learning_rate=0.1)},
}
EPOCHS = {"batches": 3}  # of the 30 rows

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")


def fit(n, held, build=models.shared, **options):
    model, gp = build()
    given = {} if options["method"] == "qiep" else {"gp": gp}
    with model:
        return model, pm.fit(n, progressbar=False, callbacks=[held], **given, **options)


def mean_log_density(fit):
    p = fit.predict(X)["p"].values
    return np.log(p[np.arange(len(Y)), Y]).mean()


@pytest.fixture(scope="module", params=list(WAYS))
def way(request):
    held, seen = gpep.HeldOut(X, Y), []
    per = EPOCHS.get(request.param, 1)
    model, gp = models.shared()
    given = {} if request.param == "all latent values" else {"gp": gp}

    def listen(fit, losses, iteration):
        if iteration % per == 0:
            seen.append((iteration, mean_log_density(fit)))

    with model:
        found = pm.fit(8 * per + 1, progressbar=False, callbacks=[held, listen], **given, **WAYS[request.param])
    return model, held, seen, found


def test_scores_are_those_of_the_fits_that_there_were(way):
    _, held, seen, _ = way
    scores = held.scores.mlpd.to_series()
    iterations, densities = zip(*seen, strict=True)
    assert_allclose(scores[list(iterations)], densities, rtol=1e-9)
    assert held.scores.accuracy.max() > 0.9


def test_the_last_score_is_of_what_is_returned(way):
    _, held, _, found = way
    assert_allclose(held.scores.mlpd[-1], mean_log_density(found), rtol=1e-6)


def test_the_best_is_as_it_was(way):
    _, held, _, found = way
    assert_allclose(mean_log_density(held.best), held.scores.mlpd.max(), rtol=1e-9)
    assert held.best is not found
    assert "predicts 15 rows held out best" in held.best.message


def test_the_best_can_be_saved(way):
    model, held, _, _ = way
    again = gpep.from_datatree(held.best.to_datatree(), model=model)
    assert_allclose(mean_log_density(again), mean_log_density(held.best), rtol=1e-4)


def test_patience_counts_scores_since_the_best():
    held = gpep.HeldOut(X, Y, patience=2, every=2)
    _, found = fit(60, held, **WAYS["inducing inputs"] | {"start": {"ls": [1.0, 1.0], "eta": 30.0}})
    scores = held.scores.mlpd
    assert (scores.iteration % 2 == 0).all()
    assert found.optimum.message == "No better on rows held out in 2 scores"
    assert scores.values.argmax() == scores.size - 3


def test_a_fit_that_integrates_over_hyperparameters_is_scored_at_its_end():
    held = gpep.HeldOut(X, Y)
    _, found = fit(30, held, method="qiep", hyper="ccd", random_seed=0)
    assert found.nodes.sizes["node"] > 1
    assert_allclose(held.scores.mlpd[-1], mean_log_density(found), rtol=1e-9)


def test_counts_are_scored_by_their_own_scores():
    x = np.linspace(-1, 1, 8)[:, None]
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5)).prior("f", X=x)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(8) % 3)
        held = gpep.HeldOut(x[:3] + 0.1, [1, 0, 2])
        pm.fit(method="laplace", progressbar=False, callbacks=[held])
    assert set(held.scores) == {"mlpd", "squared_error"}
    assert held.scores.iteration == 0  # there is nothing to learn, and only the end


def test_active_rows_have_no_fit_to_score():
    with pytest.raises(TypeError, match=r'"ivm" has no fit to score .* gpep\.learning_curve'):
        fit(3, gpep.HeldOut(X, Y), method="ivm", active=5)


def test_there_is_no_best_before_a_fit():
    held = gpep.HeldOut(X, Y)
    assert held.scores.sizes["iteration"] == 0
    with pytest.raises(ValueError, match="No fit has been scored yet"):
        _ = held.best


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, Y[:3]), {}, ValueError, r"y must have one label for each of 15 rows, but has shape \(3,\)"),
        ((X[:, 0], Y), {}, ValueError, r"X must be \(rows, columns\)"),
        ((X[:0], Y[:0]), {}, ValueError, "with a row or more"),
        ((X, Y), {"every": 0}, ValueError, "every must be at least 1"),
        ((X, Y), {"patience": 1.5}, TypeError, "patience must be a whole number"),
    ],
)
def test_what_cannot_be_scored_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gpep.HeldOut(*arguments, **options)
