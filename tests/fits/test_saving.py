"""Saving and loading of fits."""

import contextlib
import signal
import sys
import threading
import time

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.fits import saving
from pymc_gpep.fits.saving import read_tree
from tests import models
from tests.reference.mutations import MUTATIONS

NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))
KINDS = {
    "shared, ccd": (models.shared, "nested_ep", {"hyper": "ccd"}),
    "importance": (models.bernoulli_probit, "ep", {"hyper": "importance", "hyper_options": {"draws": 100}}),
    "per class": (models.per_class, "nested_ep", {"hyperparameters": models.MEANS, "n": 2}),
    "no hyperparameters": (models.fixed, "vb", {}),
    "softmax": (models.softmax, "qep", {"nodes": 200, "hyper": "laplace", "hyper_options": {"nodes": 4}}),
    "nuts": (
        models.bernoulli_logit,
        "ep",
        {"hyper": "nuts", "hyper_options": {"draws": 5, "tune": 5, "chains": 2, "cores": 1, "nodes": 3}},
    ),
}
FORMATS = {
    "netcdf": (lambda tree, path: tree.to_netcdf(path), az.from_netcdf),
    # For version 3, zarr warns that consolidated metadata are not standardised yet.
    "zarr": (lambda tree, path: tree.to_zarr(path, zarr_format=2), az.from_zarr),
}


@pytest.fixture(scope="module")
def probit():
    model, _ = models.probit()
    with model:
        return pm.fit(method="nested_ep", progressbar=False, random_seed=1)


def through_file(tree, path, form):
    write, read = FORMATS[form]
    write(tree, path)
    return read(path)


@pytest.mark.variation(but=["shared, ccd-netcdf", "no hyperparameters-zarr"])
@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning", "ignore:.*R-hat:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:In hyper='nuts'")
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        # The content does not depend on the format: few kinds of fits suffice to test zarr.
        *((kind, "netcdf") for kind in KINDS if kind not in ("no hyperparameters", "nuts")),
        ("no hyperparameters", "zarr"),
        pytest.param("nuts", "zarr", marks=pytest.mark.slow),
    ],
)
def test_loaded_fit_equals_saved_fit(kind, form, tmp_path):
    build, method, options = KINDS[kind]
    model, gp = build()
    with model:
        fit = pm.fit(method=method, progressbar=False, random_seed=1, **options)
    again_model, again_gp = build()
    again = gpep.from_datatree(through_file(fit.to_datatree(), tmp_path / "fit", form), again_model)
    assert str(again) == str(fit)
    assert again.converged == fit.converged
    assert again.seconds == fit.seconds
    assert again.log_posterior.approximator == fit.log_posterior.approximator
    # The model computes the same prior, and the solver starts at the stored sites. Only weights have other rounding
    # errors.
    for name in ("latent", "history", "hyperparameters", "nodes"):
        xr.testing.assert_allclose(getattr(again, name), getattr(fit, name), rtol=1e-13, atol=1e-13)
    assert_array_equal(again.hist, fit.hist)
    assert_allclose(again.mean.eval(), fit.mean.eval(), rtol=1e-13, atol=1e-13)
    xr.testing.assert_allclose(again.predict(again_gp, NEW), fit.predict(gp, NEW), rtol=1e-12, atol=1e-14)
    draws, again_draws = (each.sample(7, chains=2, random_seed=3)["posterior"].to_dataset() for each in (fit, again))
    xr.testing.assert_allclose(again_draws, draws, rtol=1e-12)
    assert again.hyper_posterior.weighing == fit.hyper_posterior.weighing
    chains, again_chains = fit.hyper_posterior.draws, again.hyper_posterior.draws
    assert (chains is None) == (again_chains is None)
    if chains is not None:
        xr.testing.assert_allclose(again_chains["posterior"].to_dataset(), chains["posterior"].to_dataset())


def test_loaded_fit_predicts_like_a_fit(probit):
    model, _ = models.probit()
    again = gpep.from_datatree(probit.to_datatree(), model)
    assert_allclose(again.loo().elpd_i, probit.loo().elpd_i, rtol=1e-12)
    assert again.importance(200, random_seed=1).pareto_k == probit.importance(200, random_seed=1).pareto_k
    xr.testing.assert_identical(gpep.from_datatree(again.to_datatree(), model).latent, probit.latent)


@contextlib.contextmanager
def full_disk(free):
    """Within this context a file can grow by `free` bytes, and further writes raise an error."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", ["fit.nc", "fit.zarr"])
def test_saved_fit_loads_from_its_file_also_after_a_second_save(probit, tmp_path, name):
    path = tmp_path / name
    probit.save(path)
    probit.save(str(path))
    for free in (0, 400):
        with full_disk(free), pytest.raises(OSError, match=rf"The fit was not saved, and an earlier file .*{name}"):
            probit.save(path)
    model, gp = models.probit()
    again = gpep.load(path, model)
    assert_allclose(again.predict(gp, NEW)["p"], probit.predict(NEW)["p"], atol=1e-6)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_interrupted_replacement_of_a_store_is_finished_by_load(probit, tmp_path):
    path = tmp_path / "fit.zarr"
    probit.save(path)
    path.rename(tmp_path / ".fit.zarr.new")
    (tmp_path / ".fit.zarr.old").mkdir()
    assert gpep.load(path, models.probit()[0]).log_evidence == pytest.approx(probit.log_evidence)


def is_refused(path):
    """Return whether the file is refused with an error that names it."""
    try:
        read_tree(path)
    except ValueError as error:
        return str(path) in str(error)
    return False


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_netcdf_files_are_refused(probit, tmp_path, mutation, count):
    """Only a mutation of the checksum itself leaves a readable file, with unchanged numbers."""
    probit.save(tmp_path / "fit.nc")
    data, path, rng = (tmp_path / "fit.nc").read_bytes(), tmp_path / "mutated.nc", np.random.default_rng(count)
    refused = 0
    for _ in range(count):
        path.write_bytes(MUTATIONS[mutation](data, int(rng.integers(len(data))), rng))
        refused += is_refused(path)
    assert refused > 0.98 * count


def test_mutated_zarr_stores_are_refused(probit, tmp_path):
    store, rng = tmp_path / "fit.zarr", np.random.default_rng(1)
    probit.save(store)
    files = sorted(each for each in store.rglob("*") if each.is_file())
    for path in (store / "zarr.json", *(files[i] for i in rng.integers(len(files), size=20))):
        data = path.read_bytes()
        path.write_bytes(MUTATIONS["bytes"](data, int(rng.integers(len(data) - 8)), rng))
        assert is_refused(store)
        path.write_bytes(data)
    assert not is_refused(store)


def test_netcdf_files_without_a_checksum_are_read(probit, tmp_path):
    path = tmp_path / "fit.nc"
    probit.to_datatree().to_netcdf(path)
    assert not is_refused(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert is_refused(path)


def test_save_refuses_unknown_file_endings_before_it_computes(probit, tmp_path):
    with pytest.raises(ValueError, match=r"path must end in \.zarr or \.nc"):
        probit.save(tmp_path / "fit.pkl")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        gpep.load(tmp_path / "fit.nc", probit.model)


@pytest.mark.parametrize(("name", "library"), [("fit.nc", "h5netcdf"), ("fit.zarr", "zarr")])
def test_error_without_libraries_of_files_names_the_extra(probit, tmp_path, monkeypatch, name, library):
    path = tmp_path / name
    probit.save(path)
    for each in ("h5netcdf", "netCDF4", "zarr"):
        monkeypatch.setitem(sys.modules, each, None)
    for use in (probit.save, gpep.load, gpep.Checkpoint):
        with pytest.raises(ImportError, match=rf"{name}' needs {library}: pip install \"pymc-gpep\[files\]\""):
            use(path)


def test_cloudpickle_accepts_a_fit_with_its_model(probit):
    again = cloudpickle.loads(cloudpickle.dumps(probit))
    xr.testing.assert_identical(again.predict(None, NEW), probit.predict(None, NEW))


def test_summary_of_a_loaded_fit_needs_no_model(probit, tmp_path):
    tree = through_file(probit.to_datatree(), tmp_path / "fit", "netcdf")
    assert tree.attrs["approximation"] == "nested_ep"
    assert tree.attrs["message"] == probit.message
    assert_array_equal(tree["latent/mean"].sel(species="virginica"), probit.latent["mean"].sel(species="virginica"))
    assert_allclose(tree["hyperparameters/ls"], probit.hyperparameters["ls"])


def test_loaded_fit_without_convergence_reports_it(tmp_path):
    model, _ = models.shared()
    with model, pytest.warns(RuntimeWarning, match="did not converge"):
        fit = pm.fit(method="nested_ep", n=1, progressbar=False)
    tree = through_file(fit.to_datatree(), tmp_path / "fit", "netcdf")
    assert not tree.attrs["converged"]
    again = gpep.from_datatree(tree, model)
    assert not again.converged
    assert again.message == fit.message


def test_file_name_in_place_of_a_datatree_raises_type_error(probit):
    with pytest.raises(TypeError, match=r"arviz.from_netcdf\(file\), not a str"):
        gpep.from_datatree("fit.nc", probit.model)


def test_draws_in_place_of_a_fit_raise_value_error(probit):
    with pytest.raises(ValueError, match="This DataTree is not a fit: it has the groups posterior"):
        gpep.from_datatree(probit.sample(4, random_seed=1), probit.model)


def another(*, y=None, ls=None, scale=9.0, classes=3, X=None, names=models.SPECIES):
    """The model of `models.probit` with one change."""
    theirs, labels = models.data()
    names = [*names, "sp."][:classes]
    with pm.Model(coords={"species": names, "flower": np.arange(len(labels if y is None else y)) + 100}) as model:
        lengthscale = pm.InverseGamma(ls or "ls", 3, 3) if ls != "alpha" else pm.InverseGamma("ls", 4, 3)
        gp = pm.gp.Latent(cov_func=scale * pm.gp.cov.ExpQuad(2, ls=lengthscale))
        f = gp.prior("f", X=theirs if X is None else X, n_outputs=classes, dims=("species", "flower"))
        gpep.MultinomialProbit("y", f.T, observed=labels if y is None else y, dims="flower")
    return model


@pytest.mark.variation(
    but=[
        "changes4-its classes are .*, sp., not setosa",
        "changes3-The priors of the hyperparameters differ from the fitted model",
        "changes1-30 points: the model has 9 points",
    ]
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": (models.data()[1] + 1) % 3}, "30 labels differ"),
        ({"y": models.data()[1][:9], "X": models.data()[0][:9]}, "30 points: the model has 9 points"),
        ({"ls": "rho"}, "has the hyperparameters ls_log__, but the model has rho_log__"),
        ({"ls": "alpha"}, "The priors of the hyperparameters differ from the fitted model"),
        ({"classes": 4}, "its classes are .*, sp., not setosa"),
        ({"names": ("virginica", "setosa", "versicolor")}, "its classes are virginica, setosa, versicolor, not setosa"),
        ({"scale": 8.0}, "log evidence is"),
        ({"X": models.data()[0] + 0.01 * np.arange(30)[:, None]}, "log evidence is"),
    ],
)
def test_loading_with_another_model_is_refused(probit, changes, message):
    with pytest.raises(ValueError, match=message):
        gpep.from_datatree(probit.to_datatree(), another(**changes))
    gpep.from_datatree(probit.to_datatree(), another())


def test_files_of_earlier_formats_are_refused_by_name(probit, tmp_path):
    tree = probit.to_datatree()
    del tree.attrs["format"]
    tree.to_netcdf(tmp_path / "fit.nc")
    refused = r"written in format 1, by version .*, and this version reads format 2 only"
    with pytest.raises(ValueError, match=refused) as raised:
        gpep.load(tmp_path / "fit.nc", probit.model)
    assert str(tmp_path / "fit.nc") in raised.value.__notes__[0]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
def test_an_interrupt_waits_for_the_end_of_reading_or_writing():
    """A lock of xarray that an interrupt leaves acquired would block the next file for ever."""
    done = []

    def work():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.05)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        saving._in_a_thread(work)
    assert done == [True]
