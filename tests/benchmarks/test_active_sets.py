"""The toy data of Girolami and Rogers, and the report on artificial runs."""

from itertools import islice

import numpy as np
import pytest
from scipy.stats import expon, gamma

from benchmarks.active_sets.alpha import most_likely_alpha, relevances
from benchmarks.active_sets.toy import DATA_SETS, VARIANTS, Toy, covariance, draw_data, model_of
from pymc_gpep.approximations import VariationalBayes
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.mean_field import mean_field_steps


def run(accuracy: float) -> dict[str, np.ndarray]:
    phi = np.full((3, 10), 0.02)
    phi[-1, :2] = 4.0, 3.0
    bounds = np.array([-9.0, -3.0, -5.0])
    return {"bound": bounds, "phi": phi, "accuracy": np.array([0.3, 0.8, accuracy]), "effective": np.array([1, 2, 9.0])}


def test_classes_are_placed_as_in_the_paper() -> None:
    X, y = draw_data(3000, np.random.default_rng(0))
    squared = (X[:, :2] ** 2).sum(axis=1)
    for label, (low, high) in enumerate([(0.1, 0.5), (0.6, 1.0)]):
        own = squared[y == label]
        assert low < own.min() < low + 0.01
        assert high - 0.01 < own.max() < high
        assert own.mean() == pytest.approx(0.5 * (low + high), abs=0.02)  # uniform over the area
    assert squared[y == 2].mean() == pytest.approx(0.02, rel=0.1)
    assert X[:, 2:].std(axis=0) == pytest.approx(np.ones(8), abs=0.06)
    assert np.bincount(y) / 3000 == pytest.approx(np.full(3, 1 / 3), abs=0.03)


def test_model_has_the_covariance_of_the_paper() -> None:
    X, y = draw_data(12, np.random.default_rng(1))
    phi = np.linspace(0.2, 2.0, 10)
    moments = prior_moments(read_classifier(model_of(X, y)))
    k = moments({"psi_log__": np.zeros(10), "phi_log__": np.log(phi)}).k[0]
    np.testing.assert_allclose(k, covariance(X, X, phi) + 1e-6 * np.eye(12), atol=1e-12)


def test_report_has_a_row_for_each_variant() -> None:
    name = next(iter(VARIANTS))
    record, text = Toy().report({f"{name} {seed}": run(accuracy) for seed, accuracy in enumerate((0.9, 0.7, 0.95))})
    assert (
        f"| {name} | 3 | 0.9000 (0.7000 to 0.9500) | 0.8000 | -9.0, -3.0 (2), -5.0 | 4, 3 | 0.02 | 150 | 2.0 |" in text
    )
    assert text.count("not computed") == 7 * len(VARIANTS)
    assert len(record[name]) == 3
    assert Toy().draw({}) is None
    figure = Toy().draw({f"{name} 0": run(0.9)})
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == [f"{name}: bound", "φ: relevant in blue", "accuracy"]


def test_experiment_has_a_cell_for_each_variant_and_data_set() -> None:
    cells = Toy().cells("", quick=False)
    assert len({cell.name for cell in cells}) == DATA_SETS * len(VARIANTS)
    assert {cell.arguments["draws"] for cell in cells} == {500}
    assert {cell.arguments["steps"] for cell in cells} == {50}


def test_alpha_maximises_the_density_of_relevances() -> None:
    """The density with ψ integrated out is computed by quadrature."""
    phi = np.array([0.3, 1.2, 0.1, 2.5, 0.02, 0.7])
    log_psi, width = np.linspace(-25.0, 25.0, 20_001, retstep=True)
    psi = np.exp(log_psi)

    def log_density(shape: float, rate: float) -> float:
        return sum(
            np.log((expon(scale=1.0 / psi).pdf(x) * gamma(shape, scale=1.0 / rate).pdf(psi) * psi).sum() * width)
            for x in phi
        )

    shape, rate = most_likely_alpha(phi)
    best = log_density(shape, rate)
    for one, other in ((1.02, 1.0), (0.98, 1.0), (1.0, 1.02), (1.0, 0.98)):
        assert log_density(shape * one, rate * other) < best


def test_relevances_for_a_vague_alpha_match_the_mean_field() -> None:
    X, y = draw_data(40, np.random.default_rng(1))
    *_, (phi, _, alpha) = islice(relevances(X, y, np.inf, 20, seed=0), 2)
    log_posterior = DenseLogPosterior(read_classifier(model_of(X, y)), VariationalBayes())
    theta = log_posterior.space.initial_point({"phi": np.ones(10)})
    step = next(mean_field_steps(log_posterior, theta, draws=20, weights="authors", random_seed=0))
    np.testing.assert_allclose(phi, log_posterior.space.natural(step.theta[None])["phi"][0])
    assert alpha == (1e-3, 1e-3)
