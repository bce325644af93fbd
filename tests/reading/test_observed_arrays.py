"""Observed arrays with several axes, and links before a selection, against models with a row for each entry."""

import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.likelihood_search import with_rows

P, K = 6, 4
COORDS = {"person": [f"p{11 - i}" for i in range(P)], "item": list("dacb")}
_rng = np.random.default_rng(0)
X = _rng.normal(size=P)
ETA = _rng.normal(size=P)[:, None] + 0.5 * _rng.normal(size=K)
Y = ETA + _rng.normal(size=ETA.shape)
COUNTS = _rng.poisson(np.exp(ETA))
HOLES = np.ma.masked_array(COUNTS, COUNTS > 2)
PERSON, ITEM = np.divmod(np.arange(P * K), K)


def effects():
    """Effects of persons and items, with a scale."""
    a, b = pm.Normal("a", dims="person"), pm.Normal("b", 0, 0.5, dims="item")
    return a, b, a[:, None] + b, pm.HalfNormal("s")


def declared(declare):
    with pm.Model(coords=COORDS) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        declare(*effects())
    return model


MODELS = {
    "normal": lambda a, b, e, s: pm.Normal("y", e, s, observed=Y, dims=("person", "item")),
    "scale of an axis": lambda a, b, e, s: pm.Normal("y", a[:, None], pm.math.exp(b), observed=Y),
    "mean of an axis": lambda a, b, e, s: pm.Normal("y", b, s, observed=Y),
    "no rows": lambda a, b, e, s: pm.Normal("y", 0, s, observed=Y),
    "three axes": lambda a, b, e, s: pm.Normal("y", e[..., None], s, observed=np.stack([Y, Y + 1], axis=-1)),
    "poisson": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(e), observed=COUNTS),
    "turned": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(e).T, observed=COUNTS.T),
    "negative binomial": lambda a, b, e, s: pm.NegativeBinomial(
        "y", mu=pm.Deterministic("mu", pm.math.exp(e)), alpha=s, observed=COUNTS
    ),
    "bernoulli": lambda a, b, e, s: pm.Bernoulli("y", p=pm.math.sigmoid(e), observed=COUNTS > 1),
    "binomial": lambda a, b, e, s: pm.Binomial("y", n=20, p=pm.math.invlogit(e), observed=COUNTS),
    "gamma": lambda a, b, e, s: pm.Gamma("y", alpha=s, beta=s / pm.math.exp(e), observed=np.exp(Y)),
    "student": lambda a, b, e, s: pm.StudentT("y", nu=4, mu=e, sigma=s, observed=Y),
    "censored": lambda a, b, e, s: pm.Censored(
        "y", pm.Normal.dist(e, s), lower=None, upper=np.maximum(Y, 1.0), observed=Y
    ),
    "truncated": lambda a, b, e, s: pm.Truncated("y", pm.Normal.dist(e, s), lower=0, observed=np.abs(Y)),
    "zero-truncated": lambda a, b, e, s: pm.Truncated(
        "y", pm.Poisson.dist(pm.math.exp(e)), lower=1, observed=COUNTS + 1
    ),
    "zero-inflated": lambda a, b, e, s: pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(e), observed=COUNTS),
    "hurdle": lambda a, b, e, s: pm.HurdlePoisson("y", psi=0.7, mu=pm.math.exp(e), observed=COUNTS),
    "mixture": lambda a, b, e, s: pm.Mixture(
        "y", w=[0.3, 0.7], comp_dists=[pm.Normal.dist(e, s), pm.Normal.dist(0, 5)], observed=Y
    ),
    "stacked mixture": lambda a, b, e, s: pm.NormalMixture(
        "y", w=[0.3, 0.7], mu=e[..., None] + np.array([0.0, 1.0]), sigma=1.0, observed=Y
    ),
    "ordered": lambda a, b, e, s: pm.OrderedLogistic(
        "y", eta=e, cutpoints=[-1.0, 0.0, 1.0], observed=np.minimum(COUNTS, 3), compute_p=False
    ),
    "softmax": lambda a, b, e, s: pm.Categorical("y", logit_p=pt.stack([0 * e, e, -e], axis=-1), observed=COUNTS % 3),
    "rate of an axis": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(a)[:, None], observed=COUNTS),
    "offsets of an axis": lambda a, b, e, s: pm.NegativeBinomial(
        "y", mu=pm.Data("size", np.full(K, 2.0))[None, :] * pm.math.exp(e), alpha=s, observed=COUNTS
    ),
    "cutpoints of items": lambda a, b, e, s: pm.OrderedLogistic(
        "y",
        eta=a[:, None],
        cutpoints=np.array([-1.0, 0.0, 1.0]) + s * np.arange(K)[:, None],
        observed=np.minimum(COUNTS, 3),
        compute_p=False,
    ),
    "zero-inflated axis": lambda a, b, e, s: pm.ZeroInflatedNegativeBinomial(
        "y", psi=0.7, mu=pm.math.exp(a)[:, None], alpha=s, observed=COUNTS
    ),
    "selected softmax": lambda a, b, e, s: pm.Categorical(
        "y", p=pm.Deterministic("p", pm.math.softmax(pm.Normal("u", shape=(P, 3)), axis=1))[PERSON], observed=ITEM % 3
    ),
    "votes": lambda a, b, e, s: pm.Multinomial(
        "y", n=6, p=pm.math.softmax(pm.Normal("u", shape=(P, 2, 3)), axis=-1), observed=np.full((P, 2, 3), 2)
    ),
    "missing": lambda a, b, e, s: pm.Normal("y", e, s, observed=np.where(Y > 1, np.nan, Y), dims=("person", "item")),
    "missing counts": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(e), observed=HOLES),
    "selection": lambda a, b, e, s: pm.Normal("y", pm.math.exp(b)[ITEM], s, observed=Y.ravel()),
    "pairs": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(e)[PERSON, ITEM], observed=COUNTS.ravel()),
    "mask": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(e)[COUNTS < 3], observed=COUNTS[COUNTS < 3]),
    "ravel": lambda a, b, e, s: pm.Poisson("y", pm.math.exp(e).ravel(), observed=COUNTS.ravel()),
    "repeat": lambda a, b, e, s: pm.Poisson("y", pt.repeat(pm.math.exp(a), K), observed=COUNTS.ravel()),
    "repeat by counts": lambda a, b, e, s: pm.Poisson(
        "y", pt.repeat(pm.math.exp(b), np.arange(1, K + 1)), observed=COUNTS.ravel()[:10]
    ),
    "tile": lambda a, b, e, s: pm.Poisson("y", pt.tile(pm.math.exp(b), P), observed=COUNTS.ravel()),
    "written out": lambda a, b, e, s: pm.Bernoulli("y", 1 / (1 + pm.math.exp(-e[:, 0]))[PERSON], observed=PERSON % 2),
    "join": lambda a, b, e, s: pm.Poisson(
        "y", pt.concatenate([pt.exp(e[:, 0]), pt.exp(e[:, 1])]), observed=COUNTS[:, :2].T.ravel()
    ),
    "stack": lambda a, b, e, s: pm.Poisson(
        "y", pm.math.stack([pt.exp(e[:, 0]), pt.exp(e[:, 1])], axis=1), observed=COUNTS[:, :2]
    ),
    "product": lambda a, b, e, s: pm.Poisson("y", (pm.math.exp(e) * pm.math.exp(X)[:, None])[PERSON, 0], observed=ITEM),
}


def log_densities(model, point):
    terms = model.compile_fn(model.logp(sum=False), point_fn=True, on_unused_input="ignore")(point)
    return sum(each.sum() for each in terms)


@pytest.mark.parametrize("name", MODELS)
def test_log_density_of_rows_equals_log_density_of_array(name):
    model = declared(MODELS[name])
    rows = with_rows(model)
    assert rows is not model
    assert all(rv.ndim == 1 + (name == "votes") for rv in rows.observed_RVs)
    rng = np.random.default_rng(1)
    point = {key: value + 0.1 * rng.normal(size=value.shape) for key, value in model.initial_point().items()}
    assert_allclose(log_densities(rows, point), log_densities(model, point), rtol=1e-12)


def test_model_of_plain_rows_is_not_changed():
    model = declared(lambda a, b, e, s: pm.Poisson("y", pm.math.exp(a[PERSON] + b[ITEM]), observed=COUNTS.ravel()))
    assert with_rows(model) is model


@pytest.mark.parametrize(
    "name",
    [
        *("poisson", "bernoulli", "censored", "student", "ordered", "missing", "written out", "pairs", "ravel"),
        *("rate of an axis", "offsets of an axis", "cutpoints of items", "zero-inflated axis", "selected softmax"),
        *("repeat", "tile"),
    ],
)
def test_model_of_an_observed_array_has_one_latent_function_over_its_entries(name):
    found = read_classifier(declared(MODELS[name]))
    assert found.n_functions == (3 if name == "selected softmax" else 1)
    assert found.n_points == np.count_nonzero(Y <= 1) if name == "missing" else P * K


def poisson(flat, observed=COUNTS, turned=False):
    def declare(a, b, e, s):
        w = pm.Normal("w")
        rate = pm.math.exp(e + w * X[:, None])
        dims = ("item", "person") if turned else ("person", "item")
        if flat:
            return pm.Poisson("y", pm.math.exp(a[PERSON] + w * X[PERSON] + b[ITEM]), observed=observed.ravel())
        return pm.Poisson("y", rate.T if turned else rate, observed=observed.T if turned else observed, dims=dims)

    return declared(declare)


@pytest.fixture(scope="module")
def fits():
    return [pm.fit(method="ep", model=poisson(flat), hyper="map", progressbar=False) for flat in (False, True)]


def test_fit_of_array_equals_fit_of_rows(fits):
    array, rows = fits
    assert_allclose(array.log_evidence, rows.log_evidence, rtol=1e-10)
    for name in ("mean", "variance"):
        found = array.latent[name]
        assert found.dims == ("person", "item")
        assert list(found.coords["person"].values) == COORDS["person"]
        assert_allclose(found.values.ravel(), rows.latent[name], rtol=1e-7)
    left, own = array.loo(), rows.loo()
    assert left.elpd_i.dims == ("person", "item")
    assert_allclose(left.elpd_i.values.ravel(), own.elpd_i, rtol=1e-6)
    assert set(az.compare({"array": left, "again": left}).index) == {"array", "again"}


def test_draws_have_the_shape_of_the_array(fits):
    array, _ = fits
    idata = array.sample(20, random_seed=1)
    assert idata.observed_data["y"].dims == ("person", "item")
    assert_allclose(idata.observed_data["y"], COUNTS)
    with poisson(False):
        drawn = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=2)
    assert drawn.posterior_predictive["y"].dims == ("chain", "draw", "person", "item")


def test_transposed_array_has_transposed_results(fits):
    found = pm.fit(method="ep", model=poisson(False, turned=True), hyper="map", progressbar=False)
    assert found.latent["mean"].dims == ("item", "person")
    assert_allclose(found.latent["mean"].values.T, fits[0].latent["mean"], rtol=1e-6)


def test_loaded_fit_of_array_equals_the_fit(fits):
    again = gpep.from_datatree(fits[0].to_datatree(), poisson(False))
    assert_allclose(again.latent["mean"], fits[0].latent["mean"])
    with pytest.raises(ValueError, match="labels differ"):
        gpep.from_datatree(fits[0].to_datatree(), poisson(False, observed=COUNTS + 1))


@pytest.mark.parametrize(("groups", "labels"), [("person", PERSON), ("item", ITEM), (COUNTS % 2, COUNTS.ravel() % 2)])
def test_loo_by_axis_equals_loo_by_row_labels(fits, groups, labels):
    array, rows = fits
    assert_allclose(sorted(array.loo(groups=groups).elpd_i), sorted(rows.loo(groups=labels).elpd_i), rtol=1e-6)


def test_missing_entries_are_predicted_and_have_no_latent_result():
    fit = pm.fit(method="ep", model=poisson(False, observed=HOLES), hyper="map", progressbar=False)
    keep = ~HOLES.mask
    rows = declared(
        lambda a, b, e, s: pm.Poisson(
            "y",
            pm.math.exp(a[PERSON[keep.ravel()]] + pm.Normal("w") * X[PERSON[keep.ravel()]] + b[ITEM[keep.ravel()]]),
            observed=COUNTS[keep],
        )
    )
    other = pm.fit(method="ep", model=rows, hyper="map", progressbar=False)
    assert_allclose(fit.log_evidence, other.log_evidence, rtol=1e-10)
    assert (fit.latent["mean"].isnull().values == HOLES.mask).all()
    predicted = fit.predict(missing=True)
    assert list(predicted["person"].values) == list(np.array(COORDS["person"])[np.nonzero(HOLES.mask)[0]])
    assert list(predicted["item"].values) == list(np.array(COORDS["item"])[np.nonzero(HOLES.mask)[1]])
    assert fit.sample(10).posterior["y"].dims[2:] == ("person", "item")


def test_draws_of_array_votes_have_the_axis_of_classes():
    idata = pm.fit(method="laplace", model=declared(MODELS["votes"]), hyper="map", progressbar=False).sample(3)
    assert idata.observed_data["y"].shape == (P, 2, 3)


def test_fit_of_an_array_and_a_vector_contains_entries_of_both():
    def declare(a, b, e, s):
        pm.Poisson("y", pm.math.exp(e), observed=COUNTS, dims=("person", "item"))
        pm.Normal("z", a, s, observed=X, dims="person")

    model = declared(declare)
    fit = pm.fit(method="ep", model=model, progressbar=False)
    assert fit.latent.sizes["point"] == P * K + P
    assert fit.loo(response="y").elpd_i.dims == ("person", "item")


NEW_X, NEW_G = np.array([0.3, -1.0, 0.2]), np.array([2, 0, 2])
LIKELIHOODS = {
    "counts": lambda e, size, s, y: pm.NegativeBinomial(
        "y", mu=size * pm.math.exp(e), alpha=s, observed=y, dims=("person", "item") if y.ndim > 1 else None
    ),
    "holes": lambda e, size, s, y: pm.Poisson(
        "y", size * pm.math.exp(e), observed=np.ma.masked_array(y, np.arange(y.size).reshape(y.shape) % 7 == 2)
    ),
    "censored": lambda e, size, s, y: pm.Censored("y", pm.Normal.dist(e, s), upper=2.0, observed=np.minimum(y, 2.0)),
    "ordered": lambda e, size, s, y: pm.OrderedLogistic(
        "y", eta=e, cutpoints=[-1.0, 0.0, 1.0], observed=np.minimum(y, 3), compute_p=False
    ),
    "truncated": lambda e, size, s, y: pm.Truncated("y", pm.Poisson.dist(pm.math.exp(e)), lower=1, observed=y + 1),
}


@pytest.fixture
def quiet(recwarn):
    return warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)


def with_data(likelihood, whole):
    """A model of persons by items with data along each axis and both axes, or the same model with rows."""
    rows = (slice(None),) * 2 if whole else (PERSON, ITEM)
    x, group = (X, PERSON[::4][::-1] // 2) if whole else (X[PERSON], PERSON[::4][::-1][PERSON] // 2)
    with pm.Model(coords={"item": COORDS["item"]}) as model:
        x, group = pm.Data("x", x, dims="person" if whole else None), pm.Data("group", group)
        size, item = pm.Data("size", (1.0 + COUNTS)[rows]), pm.Data("place", np.arange(K) if whole else ITEM)
        a, b = pm.Normal("a", shape=3), pm.Normal("b", 0, 0.5, dims="item")
        slope, s = pm.Normal("slope"), pm.HalfNormal("s")
        along = a[group] + slope * x
        e = along[:, None] + b[item] if whole else along + b[item]
        LIKELIHOODS[likelihood](e, size, s, COUNTS[rows])
    return model


SLOW = {"truncated": pytest.mark.slow}


@pytest.mark.parametrize("likelihood", [pytest.param(each, marks=SLOW.get(each, ())) for each in LIKELIHOODS])
@pytest.mark.usefixtures("quiet")
def test_prediction_at_new_data_equals_prediction_of_rows(likelihood):
    array, rows = (
        pm.fit(method="ep", model=with_data(likelihood, whole), hyper="map", progressbar=False)
        for whole in (True, False)
    )
    x = xr.DataArray(NEW_X, dims="person", coords={"person": ["u", "v", "w"]})
    size = np.array([1.0, 2, 3])[:, None] * np.ones(K)
    person, item = np.divmod(np.arange(3 * K), K)
    more = {"size": size.ravel()} if likelihood in ("counts", "holes") else {}
    data = {"x": NEW_X[person], "group": NEW_G[person], "place": item, **more}
    y = np.ones((3, K), int)
    expected = rows.predict(data=data, observed=y.ravel())
    found = array.predict(data={"x": x, "group": NEW_G, **({"size": size} if more else {})}, observed=y)
    for name in expected:
        assert_allclose(found[name].values.reshape(expected[name].shape), expected[name].values, rtol=1e-6, atol=1e-9)
    if likelihood == "counts":
        assert found["mean"].sel(person="v", item="d") == found["mean"][1, 0]
        one = array.predict(data={"place": [2]} | {"size": np.ones((P, 1))})
        assert one["mean"].shape == (P, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": X[:2]}, r"shapes of data do not match: 'x' \(2,\), 'group' \(6,\), 'size' \(6, 4\)"),
        ({"xs": X}, r"data names 'xs', but 'y' depends on the data 'x', 'group', 'size', 'place'. Did you mean 'x'"),
        ({"group": [0, 1, 2, 3, 1, 0]}, r"data\['group'\] has 3, but its levels are 0 to 2"),
        ({"x": X[:, None]}, r"data\['x'\] must be numbers of shape \(any\), but has type float64 and shape \(6, 1\)"),
    ],
)
def test_new_data_of_wrong_shape_are_refused(data, message):
    fit = pm.fit(method="laplace", model=with_data("counts", True), hyper="map", progressbar=False)
    with pytest.raises(ValueError, match=message):
        fit.predict(data=data)


def test_prediction_of_array_next_to_another_response_has_its_dims():
    def declare(a, b, e, s):
        w = pm.Normal("w")
        x = pm.Data("x", X)
        pm.Poisson("y", pm.math.exp(e + w * x[:, None]), observed=COUNTS, dims=("person", "item"))
        pm.Normal("z", a + w * x, s, observed=X, dims="person")

    fit = pm.fit(method="ep", model=declared(declare), hyper="map", progressbar=False)
    found = fit.predict(data={"x": X[::-1]}, response="y")
    assert found["y_mean"].dims == ("person", "item")
    again = fit.predict(data={"x": X}, response="y")
    assert_allclose(again["mean"].values.ravel(), fit.latent["mean"][: P * K], rtol=1e-8)


def test_predictions_of_array_without_data_are_refused_with_advice(fits):
    with pytest.raises(TypeError, match=r"'y' is an array with the dims person, item: predict needs new data"):
        fits[0].predict()
    with pytest.raises(ValueError, match=r"write the model with a row for each entry, b\[item\]"):
        fits[0].predict(data={"x": X}, new_levels=True)


def test_parameter_longer_than_the_observed_axis_is_refused():
    def declare(a, b, e, s):
        pm.Poisson("y", pm.math.exp(a), observed=COUNTS[:, :1])

    with pytest.raises(gpep.StructureError, match=r"shape \(6, 1\).*np\.ravel\(y\)"):
        read_classifier(declared(declare))
