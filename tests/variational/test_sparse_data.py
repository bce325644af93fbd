"""`pm.fit(method="sparse_ep", data=...)` with rows that are not part of the model."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.rows.rows import RowError
from pymc_gpep.variational.inference import GPInference
from tests import models

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))
OPTIONS = {"method": "sparse_ep", "inducing": 5, "learn_inducing": True, "random_seed": 1, "progressbar": False}


def declared(rows):
    """A classifier of flowers that is declared with the first few rows."""
    with pm.Model(coords={"species": models.SPECIES, "flower": range(rows)}) as model:
        inputs = pm.Data("X", X[:rows])
        ls = pm.InverseGamma("ls", 3, 3)
        gp = pm.gp.Latent(cov_func=pm.HalfNormal("eta", 3) ** 2 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=inputs, n_outputs=3, dims=("species", "flower"))
        gpep.MultinomialProbit("y", f.T, observed=pm.Data("labels", Y[:rows]))
    return model, gp


@pytest.fixture(scope="module")
def of_model():
    """The same fit with all rows in the model."""
    model, gp = declared(30)
    with model, pytest.warns(RuntimeWarning, match="did not converge after 3 iterations"):
        return model, gp, pm.fit(3, gp=gp, **OPTIONS)


def stored(folder):
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")


def parquet(folder, **more):
    frame = pd.DataFrame(X, columns=["length", "width"]).assign(species=Y, **more)
    frame.to_parquet(folder / "flowers.parquet", row_group_size=7)
    return folder / "flowers.parquet", "species"


@pytest.mark.variation(but=["3, parquet"])
@pytest.mark.parametrize(("rows", "data"), [(1, stored), (3, parquet)], ids=["1, stored", "3, parquet"])
def test_model_declared_on_few_rows_is_fitted_to_all_rows(rows, data, of_model, tmp_path):
    model, gp = declared(rows)
    with model, pytest.warns(RuntimeWarning, match="did not converge after 3 iterations"):
        fit = pm.fit(3, gp=gp, data=data(tmp_path), **OPTIONS)
    _, its_gp, expected = of_model
    assert_allclose(fit.objective, expected.objective, rtol=1e-10)
    assert_allclose(fit.inducing, expected.inducing, rtol=1e-8)
    xr.testing.assert_allclose(fit.predict(gp, NEW), expected.predict(its_gp, NEW))
    assert_allclose(fit.fitted_inputs(gp), X)
    tree = fit.to_datatree()
    assert tree.nbytes < expected.to_datatree().nbytes
    assert not tree["observed_data"].data_vars
    tree.to_netcdf(tmp_path / "fit.nc")
    again = gpep.from_datatree(az.from_netcdf(tmp_path / "fit.nc"), model)
    assert str(again) == str(fit)
    xr.testing.assert_allclose(again.predict(gp, NEW), fit.predict(gp, NEW))
    with pytest.raises(ValueError, match=r"The 30 rows of this fit came from data=.* read from .*"):
        again.fitted_inputs(gp)
    assert again.to_datatree()["observed_data"].attrs == tree["observed_data"].attrs


@pytest.mark.variation
def test_blocks_smaller_than_a_chunk_give_equal_results(of_model, tmp_path, monkeypatch):
    monkeypatch.setattr("pymc_gpep.solvers.inducing._ENTRIES", 60)
    monkeypatch.setattr("pymc_gpep.solvers.inducing._KEPT", 0)
    model, gp = declared(3)
    with model, pytest.warns(RuntimeWarning, match="did not converge after 3 iterations"):
        fit = pm.fit(3, gp=gp, data=parquet(tmp_path), **OPTIONS)
    assert_allclose(fit.objective, of_model[2].objective, rtol=1e-10)


def test_error_names_the_invalid_row_before_any_computation(tmp_path):
    model, gp = declared(3)
    inputs, labels = (np.array(each) for each in stored(tmp_path))
    inputs[17, 1] = np.inf
    np.save(tmp_path / "bad.npy", inputs)
    with model, pytest.raises(RowError, match=r"bad\.npy: row 17 has inf in column 1") as raised:
        pm.fit(gp=gp, data=(np.load(tmp_path / "bad.npy", mmap_mode="r"), labels), **OPTIONS)
    assert raised.value.fit is None
    labels[23] = 3
    np.save(tmp_path / "bad.npy", labels)
    with model, pytest.raises(RowError, match=r"bad\.npy: row 23 has the label 3: labels must be") as raised:
        pm.fit(gp=gp, data=(stored(tmp_path)[0], np.load(tmp_path / "bad.npy", mmap_mode="r")), **OPTIONS)
    assert raised.value.row == 23


@pytest.mark.parametrize("batches", [{}, {"method": "sparse_ep", "batch_size": 10}], ids=["all", "batches"])
def test_labels_starting_at_1_get_advice_on_coding(batches, tmp_path):
    model, gp = declared(3)
    first = int(np.flatnonzero(Y == 2)[0])
    message = rf"row {first} has the label 3: labels must be integers 0…2, but run from 1 to 3\. .*: labels - 1 does so"
    with model, pytest.raises(RowError, match=message):
        pm.fit(1, gp=gp, data=(stored(tmp_path)[0], Y + 1), **OPTIONS | batches)


@pytest.mark.variation
def test_error_for_a_bad_row_carries_the_fit(tmp_path):
    data = stored(tmp_path)
    model, gp = declared(3)

    def spoil(fit, losses, iteration):
        if iteration == 2:
            np.lib.format.open_memmap(tmp_path / "x.npy", mode="r+")[4, 0] = np.nan

    with model, pytest.raises(RowError, match="row 4 has nan") as raised:
        pm.fit(9, gp=gp, data=data, callbacks=[spoil], **OPTIONS)
    assert len(raised.value.fit.hist) == 3
    assert float(raised.value.fit.hyperparameters["ls"]) > 0.0


def test_error_for_a_bad_row_does_not_carry_an_earlier_fit(tmp_path):
    model, _ = declared(3)
    inference = GPInference("sparse_ep", model, data=stored(tmp_path), inducing=5, random_seed=1)
    with pytest.warns(RuntimeWarning, match="did not converge after 1 iteration"):
        inference.fit(1, progressbar=False)
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="r+")[4, 0] = np.nan
    with pytest.raises(RowError, match="row 4 has nan") as raised:
        inference.fit(1, progressbar=False)
    assert raised.value.fit is None


def test_rows_that_do_not_fit_the_model_are_refused(tmp_path):
    model, gp = declared(3)
    with (
        model,
        pytest.raises(ValueError, match="data must have inputs with 2 columns, like the model, but have 3"),
    ):
        pm.fit(gp=gp, data=(np.ones((4, 3)), np.zeros(4)), **OPTIONS)
    path, label = parquet(tmp_path, id=np.arange(len(Y)))
    with model, pytest.raises(ValueError, match=r"but have 3: .*'id'\. Choose .*open_rows\(path, label, columns="):
        pm.fit(gp=gp, data=(path, label), **OPTIONS)
    model, gp = declared(0)
    with model, pytest.raises(gpep.StructureError, match=r"'y' have no points. .* data=\(inputs, labels\)"):
        pm.fit(gp=gp, data=(X, Y), **OPTIONS)
