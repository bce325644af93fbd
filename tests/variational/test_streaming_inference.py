"""`pm.fit(..., batch_size=...)`: what it returns, how it ends, how it goes on, and what it refuses."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from tests import models

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))
ADAM = pm.adam(learning_rate=0.02)


def fit(n, method="sparse_ep", build=models.shared, **options):
    model, gp = build()
    settings = {"gp": gp, "inducing": 6, "batch_size": 10, "sites": "pairwise", "random_seed": 3, "obj_optimizer": ADAM}
    with model:
        return model, pm.fit(n, method=method, progressbar=False, **settings | options)


@pytest.fixture(scope="module")
def learned():
    return fit(40)[1]


def test_it_learns_and_predicts(learned):
    assert learned.hist.shape == (40,)
    assert learned.settings["per_epoch"] == 3
    assert learned.hist[-6:].mean() < learned.hist[9:15].mean()
    p = learned.predict(X)["p"]
    assert_allclose(p.sum("species"), 1.0)
    assert (p.values.argmax(axis=1) == Y).mean() > 0.9
    assert learned.inducing.dims == ("species", "inducing", "column")
    assert set(learned.hyperparameters) == {"ls", "eta"}
    assert learned.history.sizes["step"] == 40


def test_a_number_of_batches_is_never_called_an_evidence(learned):
    text = str(learned)
    assert text.startswith("sparse_ep (sites='pairwise', 6 inducing inputs for each function): log normaliser of EP")
    assert "averaged over the last epoch (no evidence" in text
    assert "Ended after 40 steps of 10 rows, 13.3 epochs." in text
    assert "log evidence" not in text
    assert np.isnan(learned.log_evidence)  # of a product that is no likelihood


def test_callbacks_see_each_step_and_may_stop():
    seen = []

    def watch(so_far, losses, i):
        seen.append((so_far.steps, losses.shape[0], i, float(so_far.hyperparameters["eta"])))
        if i == 5:
            raise StopIteration

    _, stopped = fit(20, callbacks=[watch])
    assert [row[:3] for row in seen] == [(i, i, i) for i in range(1, 6)]
    assert "Stopped by a callback after 5 steps" in stopped.message
    assert len({row[3] for row in seen[:3]}) == 1  # the first epoch is for q
    assert len({row[3] for row in seen}) == 3
    assert stopped.predict(NEW).p.notnull().all()


def test_an_interrupt_keeps_what_was_learned():
    def stop(so_far, losses, i):
        if i == 4:
            raise KeyboardInterrupt

    _, stopped = fit(20, callbacks=[stop])
    assert "Interrupted after 4 steps" in stopped.message
    assert stopped.hist.shape == (4,)
    assert stopped.predict(NEW).p.notnull().all()


@pytest.fixture(scope="module")
def whole():
    return fit(11)[1]


@pytest.mark.parametrize("ending", ["zarr", "nc"])
def test_a_run_that_was_cut_in_two_is_the_same_to_the_last_digit(ending, whole, tmp_path):
    pytest.importorskip("zarr" if ending == "zarr" else "h5netcdf")
    path = tmp_path / f"run.{ending}"
    fit(5, callbacks=[gpep.Checkpoint(path)])
    _, resumed = fit(6, start=path, callbacks=[gpep.Checkpoint(path)])
    assert_array_equal(resumed.hist, whole.hist)
    for name, values in whole.values.items():
        assert_array_equal(resumed.values[name], values, err_msg=name)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="start is a checkpoint of another fit: batch_size was 10 and is 8"):
        fit(1, start=path, batch_size=8)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        fit(1, start=tmp_path / "none.nc")
    xr.Dataset({"a": 1}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"no file that gpep\.Checkpoint wrote"):
        fit(1, start=tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"path must end in \.zarr or \.nc"):
        gpep.Checkpoint(tmp_path / "run.txt")


def test_stochastic_ep_takes_all_rows_without_a_batch_size():
    _, found = fit(8, "sparse_sep", batch_size=None)
    assert found.settings["per_epoch"] == 1
    assert str(found).startswith("sparse_sep (sites='pairwise'")
    assert "objective of stochastic EP" in str(found)


REFUSED = {
    "unknown": ({"colour": 1}, TypeError, "sparse_ep with batches has no option colour; it has sites, memory"),
    "memory": ({"memory": "perfect"}, ValueError, "memory is 'perfect', but sparse_ep has 'stateless'"),
    "sites": ({"sites": "nested"}, ValueError, "sites is 'nested', but of rules for batches"),
    "size": ({"batch_size": 0}, ValueError, "batch_size must be at least 1, but is 0"),
    "kind of size": ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number"),
    "kind of decay": ({"decay": "slow"}, TypeError, "decay must be a number, but is 'slow'"),
    "switch": ({"learn_inducing": "no"}, TypeError, "learn_inducing must be True or False, but is 'no'"),
    "decay": ({"decay": -1.0}, ValueError, "decay must be a finite number"),
    "inducing": ({"inducing": 31}, ValueError, "inducing must be from 1 to 30"),
    "start": ({"start": {"rho": 1.0}}, ValueError, "start names rho"),
}


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_before_any_work(options, kind, message):
    with pytest.raises(kind, match=message):
        fit(1, **options)


def test_other_rows_than_those_of_the_model():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(53, 2))
    _, found = fit(12, data=(inputs, (inputs.sum(axis=1) > 0).astype(int)), batch_size=20)
    assert found.settings["rows"] == 53
    assert found.settings["batch_size"] == 18
    with pytest.raises(ValueError, match="data must have inputs of 2 columns"):
        fit(1, data=(inputs[:, :1], np.zeros(53, int)))


def test_there_may_be_nothing_to_learn():
    _, found = fit(4, build=models.fixed, learn_inducing=False)
    assert np.isfinite(found.hist).all()
    assert found.predict(NEW).p.notnull().all()


def test_functions_may_share_their_inducing_inputs():
    _, found = fit(6, shared_inducing=True)
    assert found.inducing.dims == ("inducing", "column")
    assert np.isfinite(found.hist).all()
    assert found.predict(NEW).p.notnull().all()
