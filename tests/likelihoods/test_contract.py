"""Contract of every registered likelihood: probabilities, averages and scores follow from its log density."""

import copy
import pickle

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.gaussians.whitening import whitens
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.likelihoods.local_computations import GaussianAverage, ScalarDensity
from pymc_gpep.reading import read_classifier
from pymc_gpep.solvers.newton import of_width_zero
from tests.likelihoods.integrals import integrate

N = 6
LABELS = {2: np.array([0, 1, 1, 1, 0, 0]), 3: np.array([0, 1, 2, 1, 0, 2])}  # labels by number of classes
# Likelihoods of counts and likelihoods with parameters are tested in `test_contract_with_parameters`, and votes in
# `test_votes`.
WITHOUT_PARAMETERS = [each for each in LIKELIHOODS if not each.has_parameters and each.observes_classes(2)]
likelihoods = pytest.mark.parametrize("likelihood", WITHOUT_PARAMETERS, ids=lambda likelihood: likelihood.name)
OBSERVED = {
    "multinomial_probit": lambda f, y: gpep.MultinomialProbit("y", f.T, observed=y),
    "softmax": lambda f, y: pm.Categorical("y", logit_p=f.T, observed=y),
    "probit": lambda f, y: gpep.Probit("y", f, observed=y),
    "logit": lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y),
    "complementary_log_log": lambda f, y: pm.Bernoulli("y", p=1 - pm.math.exp(-pm.math.exp(f)), observed=y),
}


def n_functions(likelihood):
    """Return a valid number of latent functions per point."""
    return 3 if likelihood.function_axis else 1


def observed(likelihood):
    """Return labels that contain every class."""
    return LABELS[likelihood.n_classes(n_functions(likelihood))]


def points(c):
    """Means (m, c) and covariances (m, c, c) of latent values at a few points."""
    rng = np.random.default_rng(4)
    root = 0.5 * rng.normal(size=(4, c, c))
    return rng.normal(size=(4, c)), root @ root.swapaxes(1, 2)


def test_names_of_likelihoods_are_unique():
    assert len({likelihood.name for likelihood in LIKELIHOODS}) == len(LIKELIHOODS)


@likelihoods
def test_likelihood_without_parameters_recognises_only_its_own_models(likelihood):
    assert set(OBSERVED) == {each.name for each in WITHOUT_PARAMETERS}
    for other in WITHOUT_PARAMETERS:
        with pm.Model() as model:
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
            f = gp.prior("f", X=np.arange(6.0)[:, None], n_outputs=n_functions(other))
            OBSERVED[other.name](f, observed(other))
        reading = likelihood.read(model["y"], {model["f"]})
        assert (reading is not None) == (other == likelihood)
        if reading is not None:
            assert reading.argument.ndim == 1 + likelihood.function_axis
        classifier = read_classifier(model)
        assert classifier.likelihood_model == other
        assert (classifier.n_functions, classifier.n_classes) == (n_functions(other), observed(other).max() + 1)


@likelihoods
def test_likelihoods_with_equal_parameters_are_equal(likelihood):
    for other in (type(likelihood)(), copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        assert other == likelihood
        assert hash(other) == hash(likelihood)
    assert [likelihood == other for other in LIKELIHOODS].count(True) == 1


@likelihoods
def test_density_sums_to_one_over_the_classes(likelihood):
    c = n_functions(likelihood)
    f = 3 * np.random.default_rng(1).normal(size=(20, c, 1))
    density = [np.exp(likelihood.log_density(f, np.array([y]))) for y in range(likelihood.n_classes(c))]
    assert_allclose(np.sum(density, axis=0), 1.0, rtol=1e-12)


@likelihoods
def test_log_density_of_all_points_is_the_sum_over_points(likelihood):
    f = np.random.default_rng(1).normal(size=(2, 5, n_functions(likelihood), N))
    labels = observed(likelihood)
    each = [likelihood.log_density(f[..., [i]], labels[[i]]) for i in range(N)]
    assert_allclose(likelihood.log_densities(f, labels), np.stack(each, axis=-1), rtol=1e-12)
    each = sum(each)
    assert_allclose(likelihood.log_density(f, labels), each, rtol=1e-12)


@likelihoods
def test_attribute_sees_common_is_true_if_the_density_changes_with_a_common_shift(likelihood):
    f = np.random.default_rng(1).normal(size=(n_functions(likelihood), N))
    labels = observed(likelihood)
    seen = abs(likelihood.log_density(f + 2.0, labels) - likelihood.log_density(f, labels)) > 1e-10
    assert seen == likelihood.sees_common


@pytest.mark.parametrize(
    ("likelihood", "c"),
    [(each, c) for each in WITHOUT_PARAMETERS for c in ((2, 3) if each.function_axis else (1,))],
    ids=lambda value: getattr(value, "name", value),
)
def test_probabilities_are_averages_of_the_density(likelihood, c):
    mean, cov = points(c)
    p, error = likelihood.probabilities(mean, cov)
    assert (error < 1e-6).all()
    for i in range(len(mean)):
        expected = [np.exp(integrate(likelihood, mean[i], cov[i], y)) for y in range(likelihood.n_classes(c))]
        assert_allclose(p[i], expected, atol=1e-6)


@likelihoods
def test_every_averaging_rule_gives_probabilities(likelihood):
    mean, cov = points(n_functions(likelihood))
    default, _ = likelihood.probabilities(mean, cov)
    for how in likelihood.ways:
        p, error = likelihood.probabilities(mean, cov, how=how)
        assert error.shape == (len(mean),)
        assert_allclose(p.sum(1), 1.0, rtol=1e-12)
        assert_allclose(p, default, atol=0.01)
    with pytest.raises(ValueError, match="how is 'other', but must be"):
        likelihood.probabilities(mean, cov, how="other")


@likelihoods
def test_log_predictive_is_the_log_of_the_probability_unless_the_probability_is_tiny(likelihood):
    mean, cov = points(n_functions(likelihood))
    p, _ = likelihood.probabilities(mean, cov)
    for y in range(likelihood.n_classes(n_functions(likelihood))):
        labels = np.full(len(mean), y)
        assert_allclose(log_predictive(likelihood, mean, cov, labels), np.log(p[:, y]), atol=1e-12)
        assert_allclose(likelihood.log_tail(mean, cov, labels), np.log(p[:, y]), atol=0.03)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: likelihood.name)
def test_default_guide_of_a_likelihood_is_a_valid_guide(likelihood):
    guides = [kind.name for kind in APPROXIMATIONS if kind.approximates(likelihood) and whitens(kind().site_form)]
    assert likelihood.guide in [*guides, "prior"]


@likelihoods
def test_each_method_name_of_a_likelihood_has_one_approximation(likelihood):
    names = [kind.name for kind in APPROXIMATIONS if kind.approximates(likelihood)]
    assert len(names) == len(set(names))


@likelihoods
def test_missing_computation_raises_type_error(likelihood):
    assert not likelihood.offers(int)
    with pytest.raises(ValueError, match=f"A {likelihood.name} likelihood has no int. Its local computations are"):
        likelihood.computation(int)


@likelihoods
@pytest.mark.parametrize("of_type", [np.asarray, np.float64, np.int8, list], ids=lambda of_type: of_type.__name__)
def test_checked_labels_have_the_type_and_memory_order_for_kernels(likelihood, of_type):
    labels = observed(likelihood)
    classes = likelihood.check(of_type(labels), n_functions(likelihood), N)
    assert (classes.shape, classes.dtype, classes.flags.c_contiguous) == ((N,), np.int64, True)
    assert (classes == labels).all()


@likelihoods
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y[:3], r"labels must be \(6,\).*have shape \(3,\)"),
        (lambda y: y[:, None], r"labels must be \(6,\)"),
        (lambda y: y + 1, r"labels must be .*0.*, but .* 1.* (2|3)"),
        (lambda y: y - 1, r"labels must be .*0.*, but .* -1"),
        (lambda y: y / 2, "labels must be"),
        (lambda y: ["a"] * N, "labels must be"),
    ],
)
def test_invalid_labels_are_refused(likelihood, change, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check(change(observed(likelihood)), n_functions(likelihood), N)


@likelihoods
def test_invalid_numbers_of_functions_are_refused(likelihood):
    wrong, message = (1, "c ≥ 2") if likelihood.function_axis else (2, "has one latent function.*the model has 2")
    with pytest.raises(ValueError, match=message):
        likelihood.check(np.zeros(N, int), wrong, N)


@likelihoods
def test_average_at_zero_variance_equals_the_density(likelihood):
    if not (likelihood.offers(ScalarDensity) and likelihood.offers(GaussianAverage)):
        pytest.skip("a density without an average, or an average without a density")
    f, parameters = np.linspace(-4.0, 4.0, N), np.empty((0, 0))
    found, expected = np.zeros((2, 5, N))
    average = of_width_zero(likelihood.computation(ScalarDensity).derivatives)
    average(f, np.zeros(N), LABELS[2], parameters, found)
    likelihood.computation(GaussianAverage).terms(f, np.zeros(N), LABELS[2], parameters, expected)
    assert_allclose(found[:4], expected[:4], rtol=1e-9, atol=1e-12)
    assert not found[4].any()
