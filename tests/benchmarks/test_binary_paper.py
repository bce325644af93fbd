"""Parts of the experiments of the binary paper: covariances, exact integrals of two points, grids, counts."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import erf

from benchmarks.binary_paper.annealing import EXPERIMENT as ANNEALING
from benchmarks.binary_paper.covariances import COVARIANCES, JITTER, Priors
from benchmarks.binary_paper.figures2_5 import FOOTNOTE
from benchmarks.binary_paper.figures9_11 import EXPERIMENT as FIGURES_9_TO_11
from benchmarks.binary_paper.methods import AUTHORS, EVERY, LINKS, METHODS, log_link, printed_bound
from benchmarks.binary_paper.paths import RIDGES, STEPPED, Programs, Steps, at_held_out
from benchmarks.binary_paper.regimes import LABELS, REGIMES, covariance, effective, exact
from benchmarks.binary_paper.summary import EXPERIMENT as SUMMARY
from benchmarks.binary_paper.summary import MIXED, SWEPT, below
from benchmarks.binary_paper.sweep import MEASURES, gathered, grid, log_density, nested, sweep_split
from benchmarks.paper.data import Split
from pymc_gpep.comparison.held_out_scores import information
from pymc_gpep.graphs.interpreted import evaluate

OF_PYMC = {
    "linear": lambda ls: pm.gp.cov.Linear(3, c=np.zeros(3)) * ls**-2,
    "polynomial 1": lambda ls: pm.gp.cov.Linear(3, c=np.zeros(3)) * ls**-2 + 1.0,
    "polynomial 2": lambda ls: pm.gp.cov.Polynomial(3, c=np.zeros(3), d=2, offset=ls**2) * ls**-4,
    "polynomial 3": lambda ls: pm.gp.cov.Polynomial(3, c=np.zeros(3), d=3, offset=ls**2) * ls**-6,
    "Matérn 3/2": lambda ls: pm.gp.cov.Matern32(3, ls=ls),
    "Matérn 5/2": lambda ls: pm.gp.cov.Matern52(3, ls=ls),
    "squared exponential": lambda ls: pm.gp.cov.ExpQuad(3, ls=ls),
}
"""PyMC's covariances at σ_f = 1. PyMC has no arcsine covariance."""


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(3)
    X, Xnew = rng.standard_normal((7, 3)), rng.standard_normal((4, 3))
    return Split(X, np.array([0, 1, 1, 0, 1, 0, 1]), Xnew, np.array([0, 1, 1, 0]))


@pytest.mark.parametrize("name", OF_PYMC)
def test_covariances_match_pymc(split, name):
    prior = Priors(split, name).at(0.3, 0.7)
    kernel = OF_PYMC[name](np.exp(0.3))
    k, cross, variance = evaluate([kernel(split.X), kernel(split.Xnew, split.X), kernel(split.Xnew, diag=True)])
    scale = np.exp(1.4)
    np.testing.assert_allclose(prior.k, scale * k + JITTER * np.eye(7), rtol=1e-6)
    np.testing.assert_allclose(prior.cross, scale * cross, rtol=1e-8)
    np.testing.assert_allclose(prior.variance, scale * variance, rtol=1e-8)


def test_neural_network_covariance_is_an_average_over_erf_networks():
    """Williams (1998) with weights of variance 1 / (2 ℓ²): E[erf(wᵀx) erf(wᵀx′)] is 2/π times the arcsine."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2, 1))
    split = Split(X, np.array([0, 1]), X, np.array([0, 1]))
    prior = Priors(split, "neural network").at(0.2, 0.0)
    weights = rng.standard_normal((400_000, 2)) * np.exp(-0.2) / np.sqrt(2.0)
    outputs = erf(weights @ np.column_stack([np.ones(2), X]).T)
    np.testing.assert_allclose(prior.cross, np.pi / 2.0 * (outputs.T @ outputs) / len(outputs), atol=6e-3)


@pytest.mark.parametrize("name", COVARIANCES)
def test_variances_at_new_points_are_the_diagonal(split, name):
    own = split._replace(Xnew=split.X)
    prior = Priors(own, name).at(-0.2, 0.4)
    np.testing.assert_allclose(prior.variance, prior.cross.diagonal(), rtol=1e-12)


@pytest.mark.parametrize(("regime", "probit", "logit"), [(1, -1.397464, -1.396419), (5, -1.594506, -1.491547)])
def test_evidence_of_two_points_equals_an_orthant_probability(regime, probit, logit):
    """The probit evidence is the probability that two normals of correlation ρ are positive: 1/4 + asin(ρ) / 2π."""
    K = covariance(*REGIMES[regime])
    orthant = 0.25 + np.arcsin(-K[0, 1] / (1.0 + K[0, 0])) / (2.0 * np.pi)
    assert np.log(orthant) == pytest.approx(probit, abs=1e-6)
    for name, value in (("probit", probit), ("logit", logit)):
        assert exact(K, LABELS, LINKS[name], 401).evidence == pytest.approx(value, abs=2e-6)


def test_precision_of_footnote_2_matches_the_paper():
    true = exact(FOOTNOTE, np.array([1, 1]), LINKS["probit"], 401)
    precision, location = effective(true.mean, true.cov, FOOTNOTE)
    np.testing.assert_allclose(precision, [[0.1416, -0.0168], [-0.0168, 0.1416]], atol=1e-4)
    np.testing.assert_allclose(np.linalg.inv(FOOTNOTE) @ true.mean, precision @ (location - true.mean))


@pytest.mark.parametrize("name", AUTHORS)
def test_bound_of_the_authors_variants_is_below_the_bound_of_kl(name):
    rng = np.random.default_rng(4)
    root = rng.standard_normal((12, 12))
    k, labels, mean = 0.3 * root @ root.T, rng.integers(0, 2, 12), np.zeros((1, 12))
    solution = AUTHORS[name].solve(k, mean, labels, likelihood=LINKS["probit"])
    assert solution.convergence.converged
    np.testing.assert_allclose(solution.mean[0], k @ solution.posterior.weights[0], atol=1e-8)
    best = EVERY["KL"].solve(k, mean, labels, likelihood=LINKS["probit"])
    assert solution.lower_bound < best.evidence


def test_printed_formula_for_the_bound_of_fv_exceeds_the_exact_evidence():
    K = covariance(*REGIMES[1])
    solution = EVERY["FV"].solve(K, np.zeros((1, 2)), LABELS, likelihood=LINKS["probit"])
    assert printed_bound(solution, LINKS["probit"]) == pytest.approx(-0.485, abs=1e-3)
    assert solution.evidence < exact(K, LABELS, LINKS["probit"], 401).evidence


@pytest.mark.parametrize("likelihood", LINKS)
@pytest.mark.parametrize("covariance", ["polynomial 2", "squared exponential"])
def test_path_with_loose_tolerances_has_the_digits_of_separate_solves(likelihood, covariance):
    """The path uses looser tolerances, predicted starts and eigenvectors. The digits of the table do not change."""
    rng = np.random.default_rng(5)
    X, noise = rng.standard_normal((60, 3)), rng.standard_normal(60)
    y = (np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * noise > 0.0).astype(np.int64)
    split, link = Split(X[:30], y[:30], X[30:], y[30:]), LINKS[likelihood]
    points = [[ls, magnitude] for ls in (0.0, 0.8) for magnitude in (-0.5, 0.3, 1.1, 1.9)]
    found = sweep_split(split, likelihood, covariance, points, list(EVERY), rough=True)
    priors, zero = Priors(split, covariance), np.zeros((1, 30))
    for j, point in enumerate(points):
        prior = priors.at(*point)
        for i, method in enumerate(EVERY):
            single = EVERY[method].solve(prior.k, zero, split.y, likelihood=link)
            assert single.convergence.converged == found["converged"][i, j]
            if not single.convergence.converged:
                continue
            mean, variance = at_held_out(single, prior)
            density = log_density(link, mean, variance, split.ynew)
            assert found["information"][i, j] == pytest.approx(information(density, split.ynew, split.y, 2), abs=2e-4)
            assert found["errors"][i, j] == np.count_nonzero((mean > 0.0) != split.ynew)
            assert found["evidence"][i, j] == pytest.approx(single.evidence, abs=1e-4)
            assert found["bound"][i, j] == pytest.approx(single.lower_bound, abs=5e-3)


@pytest.mark.parametrize("name", STEPPED)
@pytest.mark.parametrize("likelihood", LINKS)
def test_solve_by_fixed_steps_needs_many_steps_to_converge(name, likelihood):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((60, 2))
    y = (np.sin(2.0 * X[:, 0]) + 0.5 * rng.standard_normal(60) > 0.0).astype(np.int64)
    split, link, method = Split(X[:30], y[:30], X[30:], y[30:]), LINKS[likelihood], STEPPED[name]
    prior = Priors(split, "squared exponential").at(0.0, 1.0)
    single = EVERY[method].solve(prior.k, np.zeros((1, 30)), split.y, likelihood=link)
    mean, variance = at_held_out(single, prior)
    all_steps, few = (Steps(method, split, link, steps).at((0.0, 1.0), prior) for steps in (10_000, 3))
    assert all_steps.iterations > few.iterations == 3
    np.testing.assert_allclose(all_steps.mean, mean, atol=2e-3)
    np.testing.assert_allclose(all_steps.variance, variance, atol=2e-3)
    assert np.abs(few.mean - mean).max() > 0.05


@pytest.mark.parametrize("likelihood", LINKS)
@pytest.mark.parametrize("magnitude", [0.5, 1.5])
def test_published_programs_match_quadrature_for_independent_latent_values(likelihood, magnitude):
    """FV is exact here. Naive TAP has tilted moments with the cavity variance K_ii − 1, and W of equation (11)."""
    X = np.arange(6.0)[:, None]
    y = np.array([0, 1, 1, 0, 1, 0])
    split, link = Split(X, y, X, y), LINKS[likelihood]
    prior = Priors(split, "squared exponential").at(-4.0, magnitude)
    own = np.exp(2.0 * magnitude)

    def tilted(variance):
        """Mean and variance of p(y = 1 | f) N(f | 0, variance)."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(150)
        f = np.sqrt(variance) * nodes
        weights = weights * np.exp(log_link(link, f))
        mean = weights @ f / weights.sum()
        return mean, weights @ (f - mean) ** 2 / weights.sum()

    sign = 2.0 * y - 1.0
    found = Programs("FV", split, link).at((-4.0, magnitude), prior)
    mean, variance = tilted(own)
    np.testing.assert_allclose(found.mean, sign * mean, atol=0.01)
    np.testing.assert_allclose(found.variance, variance, atol=0.01)
    found = Programs("TAPnaive", split, link).at((-4.0, magnitude), prior)
    alpha = tilted(own - 1.0)[0] / (own - 1.0)
    np.testing.assert_allclose(found.mean, sign * own * alpha, atol=0.03)
    spread = abs(own * (1.0 / (own * alpha**2) - 1.0))
    np.testing.assert_allclose(found.variance, own - own**2 / (own + spread), rtol=0.05)


def test_nested_grid_has_each_point_once():
    coarse, rest = nested(5, 4)
    assert sorted(coarse + rest) == sorted(grid(5, 4))
    assert len(coarse) == 6


def test_parts_of_a_grid_are_joined():
    parts = [
        {"points": np.array(points), "methods": np.array(["EP"]), **dict.fromkeys(
            ("evidence", "bound", "printed", "information", "errors", "iterations", "point_seconds"),
            np.arange(len(points), dtype=float)[None]), "converged": np.ones((1, len(points)))}
        for points in nested(3, 3)
    ]  # fmt: skip
    whole = gathered(parts)["EP"]
    assert bool(whole["computed"].all())
    assert gathered(parts[:1])["EP"]["computed"].shape == (2, 2)
    assert int(gathered(parts[1:])["EP"]["computed"].sum()) == 5
    for part in parts:
        for point, value in zip(part["points"], part["evidence"][0], strict=True):
            at = {"log_lengthscale": point[0], "log_magnitude": point[1]}
            assert float(whole["evidence"].sel(at)) == value


def test_trials_with_scores_below_mean_or_median_are_counted():
    names = ("LA", "EP", "KL", "VB", "FV", "LR", "TAPnaive")
    best = [dict(zip(SWEPT, (0.5, 0.7, 0.7, 0.69, 0.6, 0.1, 0.6999, 0.9, 0.9, 0.8, 0.2, 0.1, 0.65), strict=True))]
    assert dict(zip(names, below(best, "mean", "text").values(), strict=True))["LA"] == (1, 1)
    median = below(best, "median", "text")
    assert [median[name] for name in names] == [(1, 1), (0, 0), (0, 0), (0, 0), (1, 1), (1, 1), (0, 0)]
    assert below(best, "mean", "code")["LR"] == (0, 0)
    few = below(best, "mean", "code, few steps")
    assert [few[name] for name in ("FV", "LR", "TAPnaive")] == [(0, 0), (0, 0), (1, 1)]


def made_up(methods, information):
    """A part of a sweep over one point, with this information by each method."""
    part = {measure: np.ones((len(methods), 1)) for measure in MEASURES} | {"points": np.zeros((1, 2))}
    return part | {"methods": np.array(methods), "information": np.array(information, float)[:, None]}


def test_tables_count_trials_with_other_ridges_offsets_and_programs():
    bits = dict.fromkeys(SWEPT, 0.5) | {"LR, code": 0.1, "FV, program": 0.6}
    offset = bits | {"EP": 0.2}
    found = {
        f"crabs.0.probit.{covariance}.coarse": made_up(list(own), list(own.values()))
        for covariance, own in (("linear", bits), ("polynomial-1", offset))
    }
    found["crabs.0.probit.linear.ridges"] = made_up(list(RIDGES), [0.3, 0.6, 0.6])
    tables = SUMMARY.tables(found)
    rows = {row[:3]: dict(zip(METHODS, row[3:], strict=True)) for row in tables["ridges"].rows}
    assert rows["median", "ridge 1e-06", 1]["FV"] == "0"
    assert rows["median", "ridge 1e-08", 1]["FV"] == "1"
    assert rows["median", "ridge 0.0001", 1] == rows["median", "ridge 1e-06", 1]
    assert rows["mean", "linear covariance with an offset", 2]["EP"] == "2"
    programs = {row[:3]: row[3:] for row in tables["programs"].rows}
    assert programs["median", "program: Crabs, 1 points", 2] == programs["median", MIXED, 2]
    found["crabs.0.probit.neural-network.coarse"] = made_up(list(bits), list((bits | {"FV, program": 0.3}).values()))
    changed = {row[:3]: row[3:] for row in SUMMARY.tables(found)["programs"].rows}
    assert changed["median", "program: Crabs, 1 points", 3][list(METHODS).index("FV")] == "1"
    assert changed["median", MIXED, 3][list(METHODS).index("FV")] == "0"
    assert programs["mean", "program: Crabs, 1 points", 2][list(METHODS).index("EP")] == "1"


def test_joined_table_counts_trials_of_all_data_sets_together():
    bits = dict.fromkeys(SWEPT, 0.5) | {"LR, code": 0.1, "FV, program": 0.2, "EP": 0.4}
    found = {
        f"{data}.0.probit.{covariance}.quarter": made_up(list(own), list(own.values()))
        for data, covariance, own in (
            ("pima", "linear", bits),
            ("usps35", "linear", bits | {"FV, program": 0.9}),
            ("usps35", "neural-network", bits | {"EP": 0.6}),
        )
    }
    apart = {
        key: own.cells
        for data in ("pima", "usps35")
        for key, own in SUMMARY.tables({name: part for name, part in found.items() if data in name}).items()
    }
    ((_, joined),) = SUMMARY.joined_tables(apart).values()
    together = {(row[0], row[1].removesuffix(": all")): row[2:] for row in SUMMARY.tables(found)["programs"].cells}
    assert len(joined.cells) == 12
    assert all(together[row[0], row[1]] == row[2:] for row in joined.cells)
    assert SUMMARY.joined_tables({"programs": apart["programs"]}) == {}


def test_annealed_evidences_of_data_have_as_many_digits_as_their_errors():
    short = np.array([[-66.4, 0.51, 3], [-61.9931, 0.0221, 20], [-757.8, 1.2, 2]])
    long = np.array([[-61.98, 1e-4, 49.6]])
    found = {"sonar (2, 0)": short, "sonar (2, 0) long": long, "sonar (2, 2)": short, "usps35 (3, 0.5)": short}
    cells = {name: {"EP": np.array(-61.98712), "found": runs} for name, runs in found.items()}
    (row,) = ANNEALING.tables(cells)["data"].cells
    first, *others = "-66.40 ± 0.51", "-61.993 ± 0.022", "-757.8 ± 1.2", "-61.980 ± 0.000", "50"
    assert row == ["Sonar (2, 0), probit", "-61.987", first, *others]


def test_table_of_a_point_of_figure_9_has_the_values_at_this_point_alone():
    points = np.array([[1.75, 4.0], [2.0, 4.0]])
    measures = ("evidence", "bound", "information", "errors")
    part = {name: np.array([[1.0, 10.0 + i], [2.0, 20.0 + i]]) for i, name in enumerate(measures)}
    part |= {"points": points, "methods": np.array(["LA", "EP"])}
    table = FIGURES_9_TO_11.tables({"sonar.logit.coarse.0": part, "usps35.logit.coarse.0": part})["at (2, 4)"]
    assert table.columns == ("", "LA", "EP")
    assert [row[1:] for row in table.cells] == [
        ["10.00", "20.00"],
        ["11.0", "21.0"],
        ["12.000", "22.000"],
        ["13", "23"],
    ]
    assert FIGURES_9_TO_11.tables({"usps35.logit.coarse.0": part | {"points": points[:, ::-1]}}) == {}
