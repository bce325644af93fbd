"""The functions of `pymc_gpep.methods`, with arrays as arguments."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_gpep import methods

N = 12
X = np.linspace(0.0, 3.0, N)
K = np.exp(-((X[:, None] - X) ** 2)) + 1e-6 * np.eye(N)
COUNTS = np.array([0, 1, 0, 2, 3, 2, 5, 4, 3, 6, 2, 1])
OFFSET = np.full((1, N), 0.4)


def test_parameter_rows_have_the_order_in_the_docstring():
    """Infinite bounds do not censor: the evidence of a normal likelihood has a closed form."""
    parameters = np.array([[0.5] * N, [-np.inf] * N, [np.inf] * N])
    assert "normal: sigma, lower, upper" in methods.ep.__doc__
    found = methods.ep(K, np.zeros(N), 0.5 * COUNTS, "normal", parameters=parameters)
    exact = multivariate_normal.logpdf(0.5 * COUNTS, np.zeros(N), K + 0.25 * np.eye(N))
    assert found.log_evidence == pytest.approx(exact, abs=1e-8)


def test_one_method_name_fits_several_likelihoods():
    one = methods.laplace(K, np.zeros(N), COUNTS, "poisson", parameters=OFFSET)
    several = methods.laplace(K, np.zeros((3, N)), COUNTS % 3, "softmax")
    assert one.converged
    assert several.converged
    assert several.mean.shape == (3, N)


@pytest.mark.parametrize(
    ("likelihood", "options", "error", "message"),
    [
        ("poisson", {"parameters": OFFSET[0]}, ValueError, r"these rows: offset\. But they have shape \(12,\)"),
        ("poisson", {"parameters": OFFSET.T}, ValueError, r"array with 12 columns .* have shape \(12, 1\)"),
        ("poisson", {"parameters": np.tile(OFFSET, (2, 1))}, ValueError, r"have shape \(2, 12\)"),
        ("poisson", {"parameters": np.nan * OFFSET}, ValueError, "12 of them are NaN"),
        ("poisson", {}, ValueError, r"these rows: offset\. Give them as parameters="),
        (
            "negative_binomial",
            {"parameters": [[0.0] * N, [-1.0] * N]},
            ValueError,
            "alpha of labels must be a positive",
        ),
        ("binomial", {"parameters": np.full((1, N), 5.0)}, ValueError, "more successes than trials in row 9"),
        ("ordered_probit", {"parameters": np.empty((0, N))}, ValueError, "cutpoints in rising order"),
        ("poison", {}, ValueError, "Did you mean 'poisson'"),
        ("softmax", {}, ValueError, "method 'ep' supports these likelihoods: probit, .* of the model is softmax"),
        ("poisson", {"parameters": OFFSET, "dampin": 0.5}, TypeError, "Did you mean 'damping'"),
    ],
)
def test_error_for_invalid_input_names_the_input(likelihood, options, error, message):
    with pytest.raises(error, match=message):
        methods.ep(K, np.zeros(N), COUNTS, likelihood, **options)


def test_likelihoods_without_parameters_refuse_parameters():
    with pytest.raises(ValueError, match="A probit likelihood has no parameters"):
        methods.ep(K, np.zeros(N), COUNTS > 2, "probit", parameters=OFFSET)


def test_error_for_options_of_another_likelihood_names_the_option():
    with pytest.raises(TypeError, match="nested_ep has the option max_size for noisy_multinomial_probit, robust_max"):
        methods.nested_ep(K, np.zeros((3, N)), COUNTS % 3, "multinomial_probit", max_size=5)


def test_sparse_ep_with_label_noise_and_all_points_as_inducing_inputs_equals_qiep():
    """All points are inducing inputs, and sites leave the functions independent: the reference is `"qiep"`."""
    noise = {"parameters": np.full((1, N), 0.05), "tolerance": 1e-9}
    given = np.zeros((3, N)), COUNTS % 3, "noisy_multinomial_probit"
    sparse = methods.sparse_ep(K, K, K.diagonal(), *given, sites="quadrature", jitter=1e-12, **noise)
    assert sparse.log_evidence == pytest.approx(methods.qiep(K, *given, **noise).log_evidence, abs=1e-4)


def test_small_candidate_pool_gives_the_requested_number_of_active_rows():
    found = methods.ivm(K, np.zeros((3, N)), COUNTS % 3, "multinomial_probit", active=7, pool=1)
    assert len(found.selection.rows) == 7
