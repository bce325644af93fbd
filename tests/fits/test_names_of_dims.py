"""Dims of a model that clash with names in results, and missing labels of rows."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.fits.datasets import check_dims
from pymc_gpep.reading import StructureError, read_classifier

N = 8
GROUP = np.arange(N) % 2
LABELS = (np.arange(N) > 3).astype(int)


def model_of(rows="row", groups="group", labels=None, observe=None):
    coords = {rows: np.arange(N) if labels is None else labels} | {groups: list("ab")}
    with pm.Model(coords=coords) as model:
        u = pm.Normal("u", 0.0, 1.0, dims=groups)
        if observe is None:
            pm.Bernoulli("y", logit_p=u[GROUP], observed=LABELS, dims=rows)
        else:
            observe(u[GROUP], rows)
    return model


@pytest.mark.parametrize("rows", ["class", "mean", "variance", "node", "moment", "new_point", "p", "error", "y_mean"])
def test_dim_of_rows_that_clashes_with_results_is_refused(rows):
    with pytest.raises(StructureError, match=f"'y' has the dim '{rows}'.*'{rows}_label'"):
        check_dims(read_classifier(model_of(rows)))
    check_dims(read_classifier(model_of(f"{rows}_label")))


@pytest.mark.parametrize("groups", ["node", "moment"])
def test_dim_of_an_effect_that_clashes_with_results_is_refused(groups):
    with pytest.raises(StructureError, match=f"'u' has the dim '{groups}'"):
        check_dims(read_classifier(model_of(groups=groups)))


def test_dim_without_a_clash_is_accepted():
    check_dims(read_classifier(model_of(groups="class")))

    def counts(f, rows):
        pm.Poisson("y", pm.math.exp(f), observed=LABELS, dims=rows)

    check_dims(read_classifier(model_of("class", observe=counts)))


def test_pm_fit_refuses_a_reserved_dim():
    with pytest.raises(StructureError, match="'y' has the dim 'mean'"):
        pm.fit(model=model_of("mean"), method="ep", progressbar=False)


@pytest.mark.parametrize("labels", [[np.nan, *range(N - 1)], np.array(["NaT"] + ["2020-01-01"] * (N - 1), "M8[ns]")])
def test_fit_with_missing_labels_of_rows_is_saved_and_loaded(labels):
    model = model_of(labels=labels)
    fit = pm.fit(model=model, method="ep", progressbar=False)
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert_array_equal(again.latent["mean"], fit.latent["mean"])


@pytest.mark.parametrize("name", ["weight", "evidence", "log_posterior"])
def test_hyperparameter_named_like_a_column_of_nodes_keeps_its_values(name):
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal(name, 1.0), shape=2)
        pm.Bernoulli("y", logit_p=u[GROUP], observed=LABELS)
    fit = pm.fit(model=model, method="ep", hyper="grid", progressbar=False)
    expected = np.exp(fit.hyper_posterior.theta[:, 0])
    assert_array_equal(fit.nodes[name], expected)
    numbers = {"weight": fit.hyper_posterior.weights} | {
        key: [getattr(each, key) for each in fit.hyper_posterior.nodes] for key in ("evidence", "log_posterior")
    }
    assert_array_equal(fit.nodes.coords[f"node_{name}"], numbers[name])
    assert gpep.from_datatree(fit.to_datatree(), model).log_evidence == fit.log_evidence


@pytest.mark.parametrize("name", ["node", "moment"])
def test_variable_that_clashes_with_results_is_refused(name):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal(name, 0.0, 1.0, shape=2)[GROUP], observed=LABELS)
    with pytest.raises(StructureError, match=f"has a variable '{name}'"):
        check_dims(read_classifier(model))
