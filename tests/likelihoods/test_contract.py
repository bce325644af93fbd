"""Every likelihood of the registry against its contract: what else it says has to follow from its log density."""

import copy
import pickle

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.registry import posterior_class
from pymc_gpep.likelihoods.log_predictive import log_predictive
from pymc_gpep.likelihoods.registry import LIKELIHOODS
from tests.likelihoods.integrals import integrate

C, N = 3, 6
LABELS = np.array([0, 1, 2, 1, 0, 2])
likelihoods = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: likelihood.name)
OBSERVED = {
    "multinomial_probit": lambda f, y: gpep.MultinomialProbit("y", f.T, observed=y),
    "softmax": lambda f, y: pm.Categorical("y", logit_p=f.T, observed=y),
}


def points(c=C):
    """Means (m, c) and covariances (m, c, c) of latent values at a few points."""
    rng = np.random.default_rng(4)
    root = 0.5 * rng.normal(size=(4, c, c))
    return rng.normal(size=(4, c)), root @ root.swapaxes(1, 2)


def test_names_are_different():
    assert len({likelihood.name for likelihood in LIKELIHOODS}) == len(LIKELIHOODS)


@likelihoods
def test_reads_its_own_model_and_no_other(likelihood):
    assert set(OBSERVED) == {each.name for each in LIKELIHOODS}
    for name, observe in OBSERVED.items():
        with pm.Model() as model:
            f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=np.arange(6.0)[:, None], n_outputs=C)
            observe(f, LABELS)
        assert (likelihood.read(model["y"]) is not None) == (name == likelihood.name)
        classifier = gpep.read_classifier(model)
        assert (classifier.kind == likelihood.name) == (classifier.likelihood_model == likelihood)
        assert classifier.n_classes == classifier.likelihood_model.n_classes(C)


@likelihoods
def test_instances_are_equal(likelihood):
    for other in (type(likelihood)(), copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        assert other == likelihood
        assert hash(other) == hash(likelihood)
    assert [likelihood == other for other in LIKELIHOODS].count(True) == 1


@likelihoods
def test_density_sums_to_one_over_the_classes(likelihood):
    f = 3 * np.random.default_rng(1).normal(size=(20, C, 1))
    density = [np.exp(likelihood.log_density(f, np.array([y]))) for y in range(likelihood.n_classes(C))]
    assert_allclose(np.sum(density, axis=0), 1.0, rtol=1e-12)


@likelihoods
def test_density_of_all_points_is_the_product(likelihood):
    f = np.random.default_rng(1).normal(size=(2, 5, C, N))
    each = sum(likelihood.log_density(f[..., [i]], LABELS[[i]]) for i in range(N))
    assert_allclose(likelihood.log_density(f, LABELS), each, rtol=1e-12)


@likelihoods
def test_sees_what_is_added_to_all_functions_as_it_says(likelihood):
    f = np.random.default_rng(1).normal(size=(C, N))
    seen = abs(likelihood.log_density(f + 2.0, LABELS) - likelihood.log_density(f, LABELS)) > 1e-10
    assert seen == likelihood.sees_common


@likelihoods
@pytest.mark.parametrize("c", [2, 3])
def test_probabilities_are_averages_of_the_density(likelihood, c):
    mean, cov = points(c)
    p, error = likelihood.probabilities(mean, cov)
    assert (error < 1e-6).all()
    for i in range(len(mean)):
        expected = [np.exp(integrate(likelihood, mean[i], cov[i], y)) for y in range(likelihood.n_classes(c))]
        assert_allclose(p[i], expected, atol=1e-6)


@likelihoods
def test_every_way_gives_probabilities(likelihood):
    mean, cov = points()
    default, _ = likelihood.probabilities(mean, cov)
    for how in likelihood.ways:
        p, error = likelihood.probabilities(mean, cov, how=how)
        assert error.shape == (len(mean),)
        assert_allclose(p.sum(1), 1.0, rtol=1e-12)
        assert_allclose(p, default, atol=0.01)
    with pytest.raises(ValueError, match="how is 'other', but must be"):
        likelihood.probabilities(mean, cov, how="other")


@likelihoods
def test_log_predictive_is_the_log_of_probabilities_that_are_not_tiny(likelihood):
    mean, cov = points()
    p, _ = likelihood.probabilities(mean, cov)
    for y in range(C):
        labels = np.full(len(mean), y)
        assert_allclose(log_predictive(likelihood, mean, cov, labels), np.log(p[:, y]), atol=1e-12)
        assert_allclose(likelihood.log_tail(mean, cov, labels), np.log(p[:, y]), atol=0.03)


@likelihoods
def test_what_guides_samplers_by_default_can(likelihood):
    guides = [
        kind.name
        for kind in APPROXIMATIONS
        if kind.approximates(likelihood) and posterior_class(DensePrior, kind().site_form).whitens
    ]
    assert likelihood.guide in [*guides, "prior"]


@likelihoods
def test_a_method_is_one_approximation(likelihood):
    names = [kind.name for kind in APPROXIMATIONS if kind.approximates(likelihood)]
    assert len(names) == len(set(names))


@likelihoods
def test_computation_that_there_is_not(likelihood):
    assert not likelihood.offers(int)
    with pytest.raises(ValueError, match=f"A {likelihood.name} likelihood has no int; of local computations it has"):
        likelihood.computation(int)


@likelihoods
@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(float), LABELS.astype("int8"), LABELS.tolist()], ids=repr)
def test_labels_are_given_as_kernels_want_them(likelihood, labels):
    classes = likelihood.check(labels, C, N)
    assert (classes.shape, classes.dtype, classes.flags.c_contiguous) == ((N,), np.int64, True)
    assert (classes == LABELS).all()


@likelihoods
@pytest.mark.parametrize(
    ("functions", "labels", "message"),
    [
        (1, 0 * LABELS, "c ≥ 2"),
        (C, LABELS[:3], r"labels must be \(6,\).*have shape \(3,\)"),
        (C, LABELS[:, None], r"labels must be \(6,\)"),
        (C, LABELS + 1, "labels must be integers 0…2, but run from 1 to 3"),
        (C, LABELS - 1, "labels must be integers 0…2, but run from -1 to 1"),
        (C, LABELS / 2, "labels must be integers"),
        (C, ["a"] * N, "labels must be integers"),
    ],
)
def test_labels_that_are_refused(likelihood, functions, labels, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check(labels, functions, N)
