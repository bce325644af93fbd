"""Votes for several classes at each point, against one row for each vote, binomial counts, and integrals."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import gammaln, softmax

import pymc_gpep as gpep
from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.laplace import Laplace, tierney_kadane_probabilities
from pymc_gpep.approximations.nested_ep import QEPSoftmax
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.likelihoods.counts import BinomialLikelihood
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.likelihoods.local_computations import CoupledCurvature
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood, VotesLikelihood
from pymc_gpep.reading import read_classifier

VOTES = VotesLikelihood()
N, C = 6, 3
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 1))
K = 2.0 * np.exp(-0.5 * (X - X.T) ** 2) + 1e-8 * np.eye(N)
MEAN = RNG.normal(size=(C, N))
Y = np.array([[2, 1, 0], [0, 0, 5], [1, 0, 0], [3, 2, 4], [0, 1, 1], [12, 30, 3]])
WAYS = (gammaln(Y.sum(axis=1) + 1.0) - gammaln(Y + 1.0).sum(axis=1)).sum()


def single(votes):
    """Point and class of each vote."""
    points, classes = np.nonzero(votes)
    times = votes[points, classes]
    return np.repeat(points, times), np.repeat(classes, times)


def test_density_equals_the_multinomial_density():
    f = RNG.normal(size=(2, C, N))
    expected = [stats.multinomial.logpmf(Y[i], Y[i].sum(), softmax(f[:, :, i], axis=1)) for i in range(N)]
    assert_allclose(VOTES.log_densities(f, Y), np.transpose(expected), rtol=1e-12)
    far = np.array([[0.0], [-800.0], [-800.0]])
    assert VOTES.log_density(far, np.array([[4, 0, 0]])) == 0.0


def test_curvatures_and_slopes_match_differences_of_the_density():
    curvature, f = VOTES.computation(CoupledCurvature), 1.5 * RNG.normal(size=(C, N))
    root = RNG.normal(size=(N, C, C))
    cov, direction = root @ root.swapaxes(1, 2), RNG.normal(size=(C, N))
    pi, gradient, slope = np.empty((3, C, N))

    def w(f):
        pi, _ = np.empty((2, C, N))
        curvature.log_density(f, Y, pi, np.empty((C, N)))
        return np.einsum("ai,ab->iab", pi, np.eye(C)) - np.einsum("ai,bi->iab", pi, pi) / pi.sum(0)[:, None, None]

    def change(function, step=1e-4):
        return (function(f + step * direction) - function(f - step * direction)) / (2 * step)

    assert curvature.log_density(f, Y, pi, gradient) == pytest.approx(VOTES.log_density(f, Y), rel=1e-13)
    assert_allclose(pi, Y.sum(1) * softmax(f, axis=0), rtol=1e-12)
    first = change(lambda f: VOTES.log_density(f, Y))
    assert (gradient * direction).sum() == pytest.approx(first, abs=1e-6)
    second = np.einsum("iab,ai,bi", w(f), direction, direction)
    assert_allclose(curvature.along_line(f, Y, direction, 0.0), (first, second), atol=1e-6)
    ahead = curvature.along_line(f - 0.3 * direction, Y, direction, 0.3)
    assert_allclose(ahead, (first, second), atol=1e-6)
    curvature.curvature_slope(pi, cov, slope)
    assert (slope * direction).sum() == pytest.approx(-0.5 * (change(w) * cov).sum(), abs=1e-5)


def test_laplace_of_votes_equals_a_row_for_each_vote():
    points, classes = single(Y)
    found = Laplace().solve(K, MEAN, Y, likelihood=VOTES)
    rows = Laplace().solve(K[np.ix_(points, points)], MEAN[:, points], classes, likelihood=SoftmaxLikelihood())
    first = np.searchsorted(points, np.arange(N))
    assert found.convergence.converged
    assert found.evidence == pytest.approx(rows.evidence + WAYS, abs=1e-8)
    assert_allclose(found.mean, rows.mean[:, first], atol=1e-8)
    assert_allclose(found.cov, rows.cov[first], atol=1e-8)
    new = 1.5 * np.exp(-0.5 * (np.array([[0.3], [1.0]]) - X.T) ** 2)[None], np.full((1, 2), 2.0), np.zeros((C, 2))
    corrected = tierney_kadane_probabilities(found, *new)
    assert_allclose(corrected, tierney_kadane_probabilities(rows, new[0][:, :, points], *new[1:]), atol=1e-6)


def test_ep_of_two_classes_equals_a_binomial():
    method, two = QEPSoftmax(tolerance=1e-10), Y[:, :2]
    found = method.solve(K, MEAN[:2], two, likelihood=VOTES)
    trials = two.sum(axis=1)[None].astype(float)
    one = EP(tolerance=1e-10).solve(
        2.0 * K, MEAN[:1] - MEAN[1:2], two[:, 0], likelihood=BinomialLikelihood(), parameters=trials
    )
    assert found.evidence == pytest.approx(one.evidence, abs=1e-8)
    contrast = np.array([1.0, -1.0])
    assert_allclose(contrast @ found.mean, one.mean[0], atol=1e-6)
    assert_allclose(np.einsum("a,iab,b->i", contrast, found.cov, contrast), one.cov[:, 0, 0], atol=1e-6)


def test_ep_of_one_vote_per_point_equals_ep_of_classes():
    method, classes = QEPSoftmax(tolerance=1e-9), np.array([0, 1, 2, 1, 0, 2])
    found = method.solve(K, MEAN, np.eye(C, dtype=int)[classes], likelihood=VOTES)
    plain = method.solve(K, MEAN, classes, likelihood=SoftmaxLikelihood())
    assert found.evidence == pytest.approx(plain.evidence, abs=1e-7)
    assert_allclose(found.mean, plain.mean, atol=1e-6)
    assert_allclose(found.cov, plain.cov, atol=1e-6)


@pytest.mark.parametrize("method", [Laplace(), QEPSoftmax()], ids=lambda method: method.name)
def test_points_without_votes_do_not_change_the_posterior(method):
    votes, keep = Y.copy(), np.arange(N) != 3
    votes[3] = 0
    found = method.solve(K, MEAN, votes, likelihood=VOTES)
    others = method.solve(K[np.ix_(keep, keep)], MEAN[:, keep], votes[keep], likelihood=VOTES)
    assert found.evidence == pytest.approx(others.evidence, abs=1e-9)
    assert_allclose(found.mean[:, keep], others.mean, atol=1e-6)
    assert VOTES.is_uninformative(votes).tolist() == (~keep).tolist()


@pytest.mark.parametrize("method", [Laplace(tolerance=1e-11), QEPSoftmax(tolerance=1e-9)], ids=lambda one: one.name)
def test_derivatives_match_differences_of_the_evidence(method):
    step = 1e-4 * RNG.normal(size=(C, N))
    begin = np.zeros(method.start_size(C, N))

    def run(mean):
        return method.run(K[None], mean, Y, begin, True, likelihood=VOTES)

    change = run(MEAN + step).evidence - run(MEAN - step).evidence
    assert 2.0 * (run(MEAN).gradient_mean * step).sum() == pytest.approx(change, rel=1e-4)


@pytest.mark.parametrize("votes", [[3, 0, 2], [0, 0, 1], [0, 300, 200], [40, 10, 0]])
def test_predictive_densities_match_integrals(votes):
    """The reference is a fine grid over the two differences of latent values."""
    mean, root = RNG.normal(size=C), RNG.normal(size=(C, C))
    cov = root @ root.T
    contrasts = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    centre, spread = contrasts @ mean, np.linalg.cholesky(contrasts @ cov @ contrasts.T)
    z = np.linspace(-14.0, 14.0, 1401)
    noise = np.stack(np.meshgrid(z, z, indexing="ij")).reshape(2, -1)
    f = np.concatenate([centre[:, None] + spread @ noise, np.zeros((1, noise.shape[1]))])
    joint = VOTES.log_densities(f.T[:, :, None], np.array([votes]))[:, 0] - 0.5 * (noise**2).sum(axis=0)
    expected = joint.max() + np.log(np.exp(joint - joint.max()).sum() * (z[1] - z[0]) ** 2 / (2 * np.pi))
    found = log_predictive(VOTES, mean[None], cov[None], np.array([votes]))
    assert_allclose(found, expected, atol=1e-6)


def test_invalid_votes_are_refused():
    for wrong, said in (
        (Y[:3], r"must be \(6, 3\).*have shape \(3, 3\)"),
        (Y[:, 0], r"must be \(6, 3\)"),
        (Y - 1, "must be counts, .* are -1"),
        (Y / 2, "must be counts"),
    ):
        with pytest.raises(ValueError, match=said):
            VOTES.check(wrong, C, N)
    with pytest.raises(ValueError, match="c ≥ 2"):
        VOTES.check(Y[:, :1], 1, N)


PLACE = np.array([0, 0, 1, 1, 2, 2])


def model_of(votes=Y, total=None, p=lambda f: pm.math.softmax(f, axis=-1)):
    with pm.Model(coords={"party": ["a", "b", "c"], "place": range(3), "row": range(10, 10 + N)}) as model:
        x, place = pm.Data("x", X[:, 0]), pm.Data("place_of", PLACE)
        s = pm.HalfNormal("s", 1.0)
        slope = pm.Normal("slope", 0, 1, dims="party")
        u = pm.Normal("u", 0, s, dims=("place", "party"))
        total = votes.sum(axis=1) if total is None else total
        pm.Multinomial("votes", n=total, p=p(x[:, None] * slope + u[place]), observed=votes, dims=("row", "party"))
    return model


@pytest.fixture(scope="module")
def fitted():
    with model_of() as model:
        return model, pm.fit(method="laplace", hyper="map", progressbar=False)


def test_model_of_votes_equals_a_row_for_each_vote(fitted):
    _, fit = fitted
    points, classes = single(Y)
    with pm.Model(coords={"party": range(3), "place": range(3)}):
        s = pm.HalfNormal("s", 1.0)
        slope = pm.Normal("slope", 0, 1, dims="party")
        u = pm.Normal("u", 0, s, dims=("place", "party"))
        pm.Categorical("party_of", logit_p=X[points] * slope + u[PLACE[points]], observed=classes)
        rows = pm.fit(method="laplace", hyper="map", progressbar=False)
    assert fit.log_evidence == pytest.approx(rows.log_evidence + WAYS, abs=1e-5)
    assert_allclose(fit.hyperparameters["s"], rows.hyperparameters["s"], rtol=1e-4)
    assert_allclose(fit.mean_data["u"], rows.mean_data["u"], atol=1e-4)


def test_predictions_of_shares_and_votes_agree(fitted):
    model, fit = fitted
    with model:
        found = fit.predict(data={"x": X[:2, 0], "place_of": PLACE[:2]}, observed=Y[:2])
    assert found["p"].dims == ("new_point", "party")
    assert_allclose(found["p"].sum("party"), 1.0)
    expected = log_predictive(VOTES, found["mean"].values, found["cov"].values, Y[:2])
    assert_allclose(found["log_density"], expected, atol=1e-10)


def test_leave_one_out_and_files_work_with_votes(fitted):
    model, fit = fitted
    with model:
        left = fit.loo()
        again = gpep.from_datatree(fit.to_datatree(), model)
    assert left.elpd_i.dims == ("row",)
    assert again.log_evidence == pytest.approx(fit.log_evidence)
    assert fit.to_datatree()["observed_data"]["votes"].dims == ("row", "party")
    keep = np.arange(N) != 3
    with pm.Model(coords={"party": ["a", "b", "c"], "place": range(3)}):
        x, place = pm.Data("x", X[keep, 0]), pm.Data("place_of", PLACE[keep])
        slope = pm.Normal("slope", 0, 1, dims="party")
        u = pm.Normal("u", 0, float(fit.hyperparameters["s"]), dims=("place", "party"))
        f = x[:, None] * slope + u[place]
        pm.Multinomial("votes", n=Y[keep].sum(axis=1), p=pm.math.softmax(f, axis=-1), observed=Y[keep])
        refit = pm.fit(method="laplace", hyper="map", progressbar=False)
        there = refit.predict(data={"x": X[[3], 0], "place_of": PLACE[[3]]}, observed=Y[[3]])
    assert float(left.elpd_i[3]) == pytest.approx(float(there["log_density"][0]), abs=0.25)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: model_of(total=Y.sum(axis=1) + (np.arange(N) == 2)), r"in row 2: row 2 has 1 of n = 2"),
        (lambda: model_of(total=7), r"row 0 has 3 of n = 7.*n=y.sum\(axis=1\)"),
        (lambda: model_of(p=pm.math.invprobit), "not of a softmax over classes"),
    ],
)
def test_unsupported_models_of_votes_are_refused(model, said):
    with pytest.raises(StructureError, match=said):
        read_classifier(model())


def test_error_lists_methods_for_votes():
    with pytest.raises(ValueError, match="Methods for this likelihood are 'laplace', 'qep'"), model_of():
        pm.fit(method="ep")
