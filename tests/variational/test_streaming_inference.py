"""`pm.fit(..., batch_size=...)`: results, convergence, resuming, and refusals."""

from copy import copy
from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.fits.callbacks import read_checkpoint
from pymc_gpep.rows.rows import RowError
from pymc_gpep.streaming.memories import Stateless
from pymc_gpep.streaming.run import Run
from pymc_gpep.streaming.step import FallingAdam
from tests import models

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))
ADAM = pm.adam(learning_rate=0.02)
OF_ONE_FUNCTION = {"build": models.bernoulli_probit, "sites": None}  # a step of this model takes half the time


def fit(n, method="sparse_ep", build=models.shared, **options):
    model, gp = build()
    settings = {"gp": gp, "inducing": 6, "batch_size": 10, "sites": "pairwise", "random_seed": 3, "obj_optimizer": ADAM,
                "shared_inducing": False, "warmup": 1}  # fmt: skip
    with model:
        return model, pm.fit(n, method=method, progressbar=False, **settings | options)


@pytest.fixture(scope="module")
def learned():
    return fit(40)[1]


def test_batch_fit_learns_and_predicts(learned):
    assert learned.hist.shape == (40,)
    assert learned.trace.settings["per_epoch"] == 3
    assert learned.hist[-6:].mean() < learned.hist[9:15].mean()
    p = learned.predict(X)["p"]
    assert_allclose(p.sum("species"), 1.0)
    assert (p.values.argmax(axis=1) == Y).mean() > 0.9
    assert learned.inducing.dims == ("species", "inducing", "column")
    assert set(learned.hyperparameters) == {"ls", "eta"}
    assert learned.history.sizes["step"] == 40


def test_predicted_probabilities_of_a_batch_fit_match_draws(learned):
    found = learned.predict(NEW)
    mean, cov, p = (found[name].values for name in ("mean", "cov", "p"))
    assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)
    rng, draws = np.random.default_rng(5), 1_000_000
    for point in range(2):
        variance = 1.0 + np.diagonal(cov[point])
        utilities = mean[point] + np.sqrt(variance) * rng.standard_normal((draws, 3))
        share = np.bincount(utilities.argmax(axis=1), minlength=3) / draws
        assert (np.abs(share - p[point]) < 4.0 * np.sqrt(p[point] * (1.0 - p[point]) / draws) + 1e-6).all()


def test_compare_methods_accepts_a_batch_fit(learned):
    assert np.isnan(learned.lower_bound)
    assert learned.converged
    table = gpep.compare_methods({"batches": learned}, "batches", Xnew=NEW, ynew=np.zeros(6, int))
    assert table.loc["batches", "ls[width]"] == learned.hyperparameters.ls.sel(petal="width")


def test_fixed_point_does_not_depend_on_the_steps(learned):
    assert learned.convergence is None
    with pytest.raises(NotImplementedError, match="joint_latent_moments needs the joint posterior of all latent"):
        learned.joint_latent_moments([0])
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = learned.colour


@pytest.mark.variation(but=["sparse_ep"])
@pytest.mark.parametrize("method", ["sparse_ep", "sparse_vi"])
def test_missing_labels_of_one_function_are_left_out(method, learned):
    model, fitted = fit(40, method, **OF_ONE_FUNCTION)
    found = fitted.loo()
    with model:
        dense = pm.fit(method="ep", progressbar=False).loo()
    assert_allclose(found.elpd, dense.elpd, rtol=0.5)
    assert found.p > 0
    assert np.isfinite(fitted.log_evidence) == np.isnan(fitted.lower_bound) == (method == "sparse_ep")
    with pytest.raises(NotImplementedError, match="treat the functions of a point as independent"):
        learned.loo()


@pytest.mark.variation(but=["equal inducing inputs, sites kept"])
@pytest.mark.parametrize(
    "options",
    [
        {"inducing": np.tile(X[:1], (5, 1)), "data": (X * [1.0, 0.0], np.minimum(Y, 1))},
        {"inducing": np.random.default_rng(1).normal(size=(40, 2)), "batch_size": 1000} | OF_ONE_FUNCTION,
        {"inducing": 1, "batch_size": 1, "memory": "sites"} | OF_ONE_FUNCTION,
        {"inducing": np.tile(X[:1], (5, 1)), "memory": "sites"} | OF_ONE_FUNCTION,
    ],
    ids=[
        "equal inducing inputs, an absent class, a constant column",
        "more of them than rows, all rows in a batch",
        "one of them, single rows, sites kept",
        "equal inducing inputs, sites kept",
    ],
)
def test_degenerate_problems_are_fitted(options):
    _, odd = fit(5, **options)
    assert odd.message.startswith("Ended after 5 steps")
    assert np.isfinite(odd.hist).all()
    assert odd.predict(NEW).p.notnull().all()


def test_diverging_learning_rate_ends_the_fit_with_finite_results():
    with pytest.warns(RuntimeWarning, match=r"Stopped \("):
        _, wild = fit(60, obj_optimizer=pm.adam(learning_rate=1e4), **OF_ONE_FUNCTION)
    assert np.isfinite(wild.theta).all()
    assert wild.message.startswith("Stopped (")
    assert "learning rate" in wild.message


def test_failed_steps_are_reported_in_short_fits():
    said = pytest.warns(
        RuntimeWarning, match=r"\d of 6 steps failed, including the last step, since numbers were not finite"
    )
    with said:
        _, wild = fit(6, obj_optimizer=pm.adam(learning_rate=1e4), warmup=0, **OF_ONE_FUNCTION)
    assert not wild.converged
    assert "Check for rows that lie far from all other rows" in wild.message


def test_fit_without_a_proper_posterior_raises(learned):
    values = dict(learned.trace.values) | {"precision": -2.0 * np.abs(learned.trace.values["precision"]) - np.eye(6)}
    bad = copy(learned.log_posterior)
    bad.steps = replace(bad.steps, read=lambda: values)
    assert bad.solve(learned.theta).posterior is None
    with pytest.raises(ValueError, match="has no posterior and cannot predict"):
        gpep.Fit(bad, bad.steps).predict(NEW)


def test_objective_of_batches_is_not_called_evidence(learned):
    text = str(learned)
    assert text.startswith("sparse_ep (sites='pairwise', 6 inducing inputs for each function): log normaliser of EP")
    assert "averaged over the last whole epoch (not the evidence" in text
    assert "Ended after 40 steps of 10 rows, 13.3 epochs." in text
    assert "log evidence" not in text
    prior = learned.log_posterior.space.log_prior(learned.theta)
    assert_allclose(learned.objective, -learned.hist[36:39].mean() - prior)  # a fortieth step would count rows twice
    assert np.isnan(learned.log_evidence)  # the product of these factors is not a likelihood


def test_callbacks_are_called_after_each_step_and_can_end_the_fit():
    seen = []

    def watch(so_far, losses, i):
        assert ("have their initial values (warmup=1" in so_far.message) == (i <= 3)
        assert ("averaged over all steps" in str(so_far)) == (i < 3)
        seen.append((len(so_far.hist), losses.shape[0], i, float(so_far.hyperparameters["ls"])))
        if i == 5:
            raise StopIteration

    _, stopped = fit(20, callbacks=[watch], **OF_ONE_FUNCTION)
    assert [row[:3] for row in seen] == [(i, i, i) for i in range(1, 6)]
    assert "Stopped by a callback after 5 steps" in stopped.message
    assert "not moved" not in stopped.message
    assert len({row[3] for row in seen[:3]}) == 1  # the first epoch updates only q
    assert len({row[3] for row in seen}) == 3
    assert stopped.predict(NEW).p.notnull().all()


def test_interrupt_keeps_earlier_steps():
    def stop(so_far, losses, i):
        if i == 4:
            raise KeyboardInterrupt

    model, stopped = fit(20, callbacks=[stop], **OF_ONE_FUNCTION)
    assert "Interrupted after 4 steps" in stopped.message
    assert stopped.hist.shape == (4,)
    again = gpep.from_datatree(stopped.to_datatree(), model)
    xr.testing.assert_allclose(again.predict(NEW), stopped.predict(NEW))


def test_numpy_scalars_are_accepted_as_options(tmp_path):
    options = {"warmup": np.int64(1), "learn_inducing": np.bool_(True), "local_iterations": np.int64(5)}
    file = tmp_path / "run.nc"
    fit(1, batch_size=np.int64(10), callbacks=[gpep.Checkpoint(file)], **options, **OF_ONE_FUNCTION)
    assert read_checkpoint(file).settings["memory"] == repr(Stateless(local_iterations=5))


def test_checkpoint_with_interrupted_renaming_is_found(learned, tmp_path):
    file = tmp_path / "run.zarr"
    gpep.Checkpoint(file).write(learned)
    file.rename(tmp_path / ".run.zarr.new")
    (tmp_path / ".run.zarr.old").mkdir()
    assert_array_equal(read_checkpoint(file).losses, learned.hist)


def test_fit_of_zero_steps_has_no_objective(learned):
    assert np.isnan(replace(learned.trace, losses=np.empty(0)).loss)


class ReachedError(Exception):
    """Raised where the steps would start."""


def test_decay_and_warmup_are_passed_to_the_steps(monkeypatch):
    def run(step, state, batches, schedule, warmup, done):
        raise ReachedError(schedule.decay, schedule.per_epoch, warmup)

    monkeypatch.setattr("pymc_gpep.variational.plans.batches.step_of", lambda *_: None)
    monkeypatch.setattr("pymc_gpep.variational.plans.batches.Run", run)
    with pytest.raises(ReachedError) as reached:
        fit(1, decay=0.5, warmup=2)
    assert reached.value.args == (0.5, 3, 6)


@pytest.mark.variation
def test_resumed_run_equals_uninterrupted_run(tmp_path):
    pytest.importorskip("zarr")
    path = tmp_path / "run.zarr"
    options = {"memory": "sites"} | OF_ONE_FUNCTION
    _, whole = fit(11, **options)
    fit(5, callbacks=[gpep.Checkpoint(path)], **options)
    _, resumed = fit(6, start=path, callbacks=[gpep.Checkpoint(path)], **options)
    assert_array_equal(resumed.hist, whole.hist)
    for name, values in whole.trace.values.items():
        assert_array_equal(resumed.trace.values[name], values, err_msg=name)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="start does not match this fit: batch_size was 10 and is 8"):
        fit(1, start=path, **options | {"batch_size": 8})


def test_saved_fit_equals_the_fit(learned, tmp_path):
    learned.to_datatree().to_netcdf(tmp_path / "fit.nc")
    tree = az.from_netcdf(tmp_path / "fit.nc")
    model, gp = models.shared()
    again = gpep.from_datatree(tree, model)
    assert str(again) == str(learned)
    assert again.trace.settings == learned.trace.settings
    xr.testing.assert_allclose(again.predict(NEW), learned.predict(NEW))
    xr.testing.assert_allclose(again.predict(gp, NEW), learned.predict(NEW))
    assert_allclose(again.fitted_inputs(), X)
    xr.testing.assert_equal(again.to_datatree()["posterior"].to_dataset(), tree["posterior"].to_dataset())
    assert_array_equal(again.labels(), Y)
    with pytest.raises(ValueError, match="The fit has the hyperparameters"):
        gpep.from_datatree(tree, models.fixed()[0])


def test_resuming_with_other_rows_raises_value_error(learned):
    with pytest.raises(ValueError, match="start does not match this fit: checksum was"):
        fit(1, start=learned, data=(X, 2 - Y))


def test_resuming_with_another_model_raises_value_error(learned):
    other = learned.trace.left_off
    other = other._replace(settings=other.settings | {"parameters": "scale"})
    with pytest.raises(
        ValueError, match="start is a fit of another model: its hyperparameters were scale, and this model has"
    ):
        other.check(learned.trace.settings, learned.inducing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inducing": 4}, "inducing was 6 and is 4"),
        ({"shared_inducing": True}, "shared_inducing was False and is True"),
        ({"learn_inducing": False}, "learn_inducing was True and is False"),
    ],
)
def test_resuming_with_other_inducing_inputs_raises_value_error(learned, options, message, monkeypatch):
    monkeypatch.setattr("pymc_gpep.variational.plans.batches.step_of", None)
    with pytest.raises(ValueError, match=f"start does not match this fit: {message}"):
        fit(1, start=learned, **options)


@pytest.mark.variation
def test_resuming_with_another_optimiser_raises_value_error(learned):
    with pytest.raises(ValueError, match=r"start is a fit with another optimiser.* Give the same obj_optimizer"):
        fit(1, start=learned, obj_optimizer=pm.sgd(learning_rate=0.01))


def test_few_rows_are_one_batch_with_fixed_inducing_inputs():
    """Thirty rows are one and a half batches of 20 rows, and more than one and a half batches of 19."""
    options = {"inducing": None, "shared_inducing": None} | OF_ONE_FUNCTION
    _, every = fit(3, batch_size=20, **options)
    assert every.trace.settings["per_epoch"] == 1
    assert not every.trace.settings["learn_inducing"]
    assert_allclose(every.inducing.squeeze(), X)
    for other in ({"batch_size": 19}, {"batch_size": 20, "learn_inducing": True}, {"batch_size": 20, "inducing": 8}):
        _, some = fit(1, **options | other)
        assert some.trace.settings["per_epoch"] == 2
        assert some.trace.settings["learn_inducing"]


@pytest.mark.variation
def test_sites_of_few_rows_couple_classes_like_nested_ep():
    """Thirty rows are all inducing inputs for a batch size of 20. Batch steps would make functions independent."""
    model, gp = models.shared()
    options = {"gp": gp, "data": (X, Y), "batch_size": 20, "random_seed": 3, "progressbar": False}
    with model:
        few = pm.fit(method="sparse_ep", **options)
        again = pm.fit(method="sparse_ep", start=few, **options)
        dense = pm.fit(method="nested_ep", progressbar=False)
    assert few.converged
    assert again.trace.unit == few.trace.unit == "iteration"
    assert len(again.hist) < len(few.hist)
    assert_allclose(again.log_evidence, few.log_evidence, rtol=1e-6)
    assert_allclose(few.log_evidence, dense.log_evidence, rtol=1e-4)
    assert_allclose(few.theta, dense.theta, atol=1e-2)
    found = [each.predict(gp, NEW)["p"] for each in (few, dense)]
    assert_allclose(*found, atol=1e-3)


@pytest.mark.variation(but=["sites", "method"])
@pytest.mark.parametrize(
    "asked",
    [{"sites": "quadrature"}, {"memory": "sites"}, {"warmup": 1}, {"decay": 0.0}, {"obj_optimizer": ADAM},
     {"shared_inducing": False}, {"local_iterations": 2}, {"batch_size": 19}, {"method": "sparse_sep"}],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_few_rows_are_fitted_by_steps_if_step_options_are_given(asked):
    assert as_it_comes(0, **{"batch_size": 20} | asked).trace.unit == "step"


@pytest.mark.variation
def test_few_rows_with_a_checkpoint_are_fitted_by_resumable_steps(tmp_path):
    path = tmp_path / "run.nc"
    as_it_comes(2, batch_size=20, callbacks=[gpep.Checkpoint(path)])
    assert len(as_it_comes(3, batch_size=20, start=path).hist) == 5


def test_sites_of_rows_can_be_stored():
    """Batches of 18 of 53 rows: the last batch is filled up with other rows."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(53, 2))
    rows = inputs, (inputs.sum(axis=1) > 0).astype(int)
    _, kept = fit(30, memory="sites", data=rows, batch_size=20, **OF_ONE_FUNCTION)
    _, found = fit(30, data=rows, batch_size=20, **OF_ONE_FUNCTION)
    assert kept.trace.values["site_features"].shape == (53, 1, 6)
    assert kept.trace.values["site_precision"].all()
    assert_allclose(kept.predict(NEW)["p"], found.predict(NEW)["p"], atol=0.1)
    assert_allclose(kept.log_evidence, found.log_evidence, rtol=0.05)
    again = gpep.from_datatree(kept.to_datatree(), models.bernoulli_probit()[0])
    assert str(again) == str(kept)
    assert_array_equal(again.trace.values["site_features"], kept.trace.values["site_features"])


def test_steps_and_minutes_are_checked_before_any_computation(tmp_path, monkeypatch):
    monkeypatch.setattr("pymc_gpep.variational.plans.batches.step_of", None)
    with pytest.raises(ValueError, match="n, the number of steps, must be at least 0, but is -3"):
        fit(-3)
    with pytest.raises(TypeError, match="minutes must be a number"):
        gpep.Checkpoint(tmp_path / "run.zarr", minutes="often")
    with pytest.raises(ValueError, match="minutes must be at least 0"):
        gpep.Checkpoint(tmp_path / "run.zarr", minutes=-1)


def test_invalid_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="which does not exist"):
        fit(1, start=tmp_path / "none.nc")
    xr.Dataset({"a": 1}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"not a file that gpep\.Checkpoint wrote"):
        fit(1, start=tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"path must end in \.zarr or \.nc"):
        gpep.Checkpoint(tmp_path / "run.txt")


def test_stochastic_ep_without_a_batch_size_uses_all_rows():
    _, found = fit(8, "sparse_sep", batch_size=None, **OF_ONE_FUNCTION)
    assert found.trace.settings["per_epoch"] == 1
    assert str(found).startswith("sparse_sep (")
    assert "objective of stochastic EP" in str(found)


REFUSED = {
    "no iteration": ({"local_iterations": 0}, ValueError, "local_iterations must be at least 1"),
    "half an iteration": ({"local_iterations": 2.5}, TypeError, "local_iterations must be a whole number"),
    "unknown": ({"colour": 1}, TypeError, "sparse_ep with batches has no option colour. Options: .*, sites, memory"),
    "misspelt": ({"decai": 0.1, "inducin": 4}, TypeError, r"Did you mean 'decay' and 'inducing'\?"),
    "memory": ({"memory": "perfect"}, ValueError, "memory is 'perfect', but must be 'stateless' or 'sites'"),
    "option of another memory": (
        {"memory": "sites", "local_iterations": 3},
        TypeError,
        "sparse_ep with batches has no option local_iterations",
    ),
    "sites": ({"sites": "nested"}, ValueError, "sites is 'nested', but must be 'quadrature' or 'pairwise' for batches"),
    "size": ({"batch_size": 0}, ValueError, "batch_size must be at least 1, but is 0"),
    "warmup": ({"warmup": -1}, ValueError, "warmup, .*, must be at least 0, but is -1"),
    "kind of size": ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number"),
    "kind of decay": ({"decay": "slow"}, TypeError, "decay must be a number, but is 'slow'"),
    "switch": ({"learn_inducing": "no"}, TypeError, "learn_inducing must be True or False, but is 'no'"),
    "decay": ({"decay": -1.0}, ValueError, "decay must be a finite number"),
    "inducing": ({"inducing": 31}, ValueError, "inducing must be from 1 to 30"),
    "start": ({"start": {"rho": 1.0}}, ValueError, "start names rho"),
    "kind of start": ({"start": 3}, TypeError, "start must be initial values of hyperparameters, by name, but is 3"),
    "optimiser": (
        {"obj_optimizer": "adam"},
        TypeError,
        r"obj_optimizer must be a learning rate .*but is 'adam'",
    ),
    "rate": (
        {"obj_optimizer": 0.0},
        ValueError,
        "obj_optimizer as a learning rate must be positive and finite, but is 0.0",
    ),
    "no rate": ({"obj_optimizer": True}, TypeError, "obj_optimizer must be a learning rate .*but is True"),
    "backend": ({"backend": "numbat"}, ValueError, "backend must be .* but is 'numbat'"),
    "of all rows": ({"update": "inner"}, TypeError, "update is for fits of all rows at once"),
    "names for labels": (
        {"data": (X, np.array(["a", "b", "c"])[Y])},
        TypeError,
        "whole numbers .*, but are of type <U1",
    ),
}


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_options_are_refused_before_any_computation(options, kind, message):
    with pytest.raises(kind, match=message):
        fit(1, **options)


def test_rows_given_as_data_replace_rows_of_the_model():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(53, 2))
    model, found = fit(12, data=(inputs, (inputs.sum(axis=1) > 0).astype(int)), batch_size=20, **OF_ONE_FUNCTION)
    assert found.trace.settings["rows"] == 53
    assert found.trace.settings["batch_size"] == 18
    again = gpep.from_datatree(found.to_datatree(), model)
    xr.testing.assert_allclose(again.predict(NEW), found.predict(NEW))
    with pytest.raises(ValueError, match=r"The 53 rows of this fit came from data="):
        again.fitted_inputs()
    with pytest.raises(ValueError, match="data must have inputs with 2 columns"):
        fit(1, data=(inputs[:, :1], np.zeros(53, int)))


def test_error_names_the_invalid_row_before_any_computation(tmp_path, monkeypatch):
    monkeypatch.setattr("pymc_gpep.variational.plans.batches.step_of", None)
    inputs, labels = np.tile(X, (40, 1)), np.tile(Y, 40)
    inputs[1000, 1] = np.nan
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(RowError, match=r"x\.npy: row 1000 has nan in column 1"):
        fit(1, data=(tmp_path / "x.npy", tmp_path / "y.npy"))


def with_label_noise():
    with pm.Model(coords={"species": models.SPECIES}) as model:
        ls = pm.InverseGamma("ls", 3, 3)
        gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(2, ls=ls) + pm.gp.cov.WhiteNoise(0.5))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, epsilon=0.06, observed=Y)
    return model, gp


@pytest.mark.variation
def test_label_noise_is_learned_by_batches():
    model, found = fit(8, build=with_label_noise, sites=None, learn_inducing=False, batch_size=15)
    assert np.isfinite(found.hist).all()
    assert found.hist[-2:].mean() < found.hist[:2].mean()
    p = found.predict(X)["p"].values
    assert (p > 0.0199).all()
    assert (p.argmax(axis=1) == Y).mean() > 0.8
    assert np.isfinite(found.log_evidence)
    again = gpep.from_datatree(found.to_datatree(), model)
    assert str(again) == str(found)
    assert_allclose(again.log_evidence, found.log_evidence, rtol=1e-12)


def test_batch_fit_without_parameters_ends_after_one_epoch():
    _, found = fit(4, build=models.fixed, learn_inducing=False)
    assert np.isfinite(found.hist).all()
    assert found.predict(NEW).p.notnull().all()


def test_functions_can_share_their_inducing_inputs():
    _, found = fit(6, shared_inducing=True)
    assert found.inducing.dims == ("inducing", "column")
    assert np.isfinite(found.hist).all()
    assert found.predict(NEW).p.notnull().all()


def as_it_comes(n, build=models.shared, **options):
    model, _ = build()
    with model:
        return pm.fit(n, **{"method": "sparse_ep", "batch_size": 10} | options, random_seed=3, progressbar=False)


@pytest.fixture(scope="module")
def unmoved():
    return as_it_comes(0)


@pytest.mark.variation
def test_default_functions_share_inducing_inputs_at_class_centres(unmoved, learned):
    """Thirty rows have thirty inducing inputs. Of six inducing inputs, each class has two, at means of close rows."""
    assert unmoved.inducing.shape == (30, 2)
    found = as_it_comes(0, inducing=6, learn_inducing=False).inducing.values
    for k in range(3):
        rows, centres = X[k == Y], found[2 * k : 2 * k + 2]
        scaled = (rows[:, None] - centres) / X.std(axis=0)
        nearest = (scaled**2).sum(axis=2).argmin(axis=1)
        assert_allclose(centres, [rows[nearest == j].mean(axis=0) for j in range(2)])
    own = as_it_comes(0, inducing=np.stack([X[:4], X[4:8], X[8:12]]))
    assert own.inducing.dims == ("species", "inducing", "column")
    assert learned.inducing.shape == (3, 6, 2)  # with shared_inducing=False


@pytest.mark.variation
def test_default_warm_up_takes_a_tenth_of_the_steps(monkeypatch):
    asked = []

    class Recorded(Run):
        def __init__(self, step, state, batches, schedule, warmup, done=0):
            asked.append((warmup, done))
            super().__init__(step, state, batches, schedule, warmup, done)

    monkeypatch.setattr("pymc_gpep.variational.plans.batches.Run", Recorded)
    unmoved, short, long = (as_it_comes(n, models.bernoulli_probit) for n in (0, 12, 40))
    assert asked[-2:] == [(1, 0), (3, 0)]
    assert not np.array_equal(short.theta, unmoved.theta)
    as_it_comes(28, models.bernoulli_probit, start=short)
    assert asked[-1] == (3, 12)
    assert "have their initial values" not in long.message


@pytest.mark.variation
def test_default_rates_of_a_resumed_run_equal_rates_of_one_run():
    """The state counts the steps, and the rate falls to 0 at the last of all steps."""
    whole = as_it_comes(20, models.bernoulli_probit).trace.values
    assert whole["optimiser_5"] == 18.0  # number of steps after the two steps of the warm-up
    model, _ = models.bernoulli_probit()
    for optimiser in (FallingAdam(18, 0.03), 0.03):
        steps = pm.fit(20, model=model, method="sparse_ep", batch_size=10, random_seed=3, progressbar=False,
                       obj_optimizer=optimiser).trace.values  # fmt: skip
        for name, values in steps.items():
            assert_array_equal(whole[name], values, err_msg=name)


def test_default_length_scales_start_at_suggested_values():
    first = as_it_comes(0).hyperparameters
    relative = first.ls.values / X.std(axis=0)
    assert_allclose(relative[0], relative[1], rtol=1e-2)
    assert_allclose(as_it_comes(0, start={"ls": [1.5, 0.5]}).hyperparameters.ls, [1.5, 0.5])
