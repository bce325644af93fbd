"""Factorisation A B of the coefficients of a sum: A depends on the data of the rows and B on the priors."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.reading import read_classifier
from pymc_gpep.sums.row_parts import PartsMap
from tests.sum_models import GROUP, OTHER, SUMS, J, N, X

BINARY = (np.arange(N) % 3 == 0).astype(int)


def pairs():
    s = pm.HalfNormal("s", 1)
    strength = pm.Normal("strength", 0, s, dims="group")
    pm.Bernoulli("y", logit_p=strength[GROUP] - strength[(GROUP + 1) % J], observed=BINARY)


def scaled_after_selection():
    s, t = pm.HalfNormal("s", 1), pm.HalfNormal("t", 1)
    z = pm.Normal("z", 0, 1, shape=(J, 2))
    pm.Bernoulli("y", logit_p=0.3 + t * (s * z[GROUP, 0] + z[GROUP, 1] * X) - t, observed=BINARY)


def two_places_of_one_variable():
    s = pm.HalfNormal("s", 1)
    z = pm.Normal("z", 0, 1, shape=J)
    pm.Bernoulli("y", logit_p=z[GROUP] + s * z[OTHER], observed=BINARY)


def a_number_of_each_row():
    s = pm.HalfNormal("s", 1, shape=N)
    z = pm.Normal("z", 0, 1, shape=J)
    pm.Bernoulli("y", logit_p=s * z[GROUP], observed=BINARY)


def numbers_of_levels():
    s = pm.HalfNormal("s", 1, shape=J)
    z = pm.Normal("z", 0, 1, shape=J)
    pm.Bernoulli("y", logit_p=(s * z)[GROUP] + s[GROUP], observed=BINARY)


OWN = [pairs, scaled_after_selection, two_places_of_one_variable, numbers_of_levels]
NAMES = [
    "varying_intercepts", "non_centred_intercepts", "correlated_slopes", "centred_slopes", "persons_and_items",
    "ordered_ratings", "random_walk", "summed_walk", "areas", "field_by_basis", "splines", "moved_and_scaled",
    "sum_of_products", "autoregression", "covariance_of_areas", "softmax_with_reference", "plain_classes",
    "classes_of_one_draw",
]  # fmt: skip


def read(build):
    with pm.Model(coords={"group": range(J), "input": ["p", "q"], "kind": ["r", "s", "t"]}) as model:
        build()
    return model, read_classifier(model).prior


@pytest.mark.variation(but=["persons_and_items", "varying_intercepts", "plain_classes"])
@pytest.mark.parametrize("build", [*OWN, *map(SUMS.get, NAMES)], ids=lambda build: build.__name__)
def test_rows_times_parts_equal_the_coefficients(build):
    model, prior = read(build)
    data = frozen_data(model)
    parts = PartsMap(prior, prior.argument, partial(prior.by_function, batched=True), data).of_fit(prior.n_points, 100)
    value_vars = [model.rvs_to_values[rv] for rv in prior.hyperparameters]
    function = graph_function(model, value_vars, model.replace_rvs_by_values([parts.root, prior.plain_roots()]))
    named = model.initial_point()
    root, coefficients = function(*(named[v.name] + 0.5 for v in value_vars))
    assert_allclose(parts.rows.combined(root), coefficients.reshape(-1, coefficients.shape[2]), atol=1e-12)
    assert root.shape[0] <= 50


def test_model_with_a_hyperparameter_of_each_row_has_no_row_parts():
    model, prior = read(a_number_of_each_row)
    assert prior.row_parts(frozen_data(model)) is None
