"""The log posterior of hyperparameters for fixed active rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.active_log_posterior import ActiveLogPosterior, climb_in_rounds
from pymc_gpep.rivals.ivm import IVM
from tests import models


def log_posterior(make, **options):
    model, _ = make()
    space = Hyperparameters(read_classifier(model))
    classifier = space.classifier
    ivm = IVM(**options).named(classifier.likelihood_model)
    blocks = InducingBlocks(classifier, None, space.data)
    return ActiveLogPosterior(space, ivm, blocks, 0), space.initial_point()


@pytest.mark.variation(but=["softmax-20"])
@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (models.shared, None), (models.per_class, None), (models.softmax, 20), (models.bernoulli_logit, None),
        (models.flat_prior, None),
    ],
)  # fmt: skip
def test_gradient_matches_differences(make, rows):
    whole, theta = log_posterior(make, active=7, rows=rows)
    held = whole.holding(whole.choose(theta))
    theta = theta + 0.2
    step = 1e-5 * np.random.default_rng(2).normal(size=theta.size)
    difference = (held(theta + step).log_posterior - held(theta - step).log_posterior) / 2
    assert_allclose(held(theta).gradient @ step, difference, rtol=1e-6, atol=1e-11)


def test_log_posterior_of_selected_rows_is_their_bound():
    whole, theta = log_posterior(models.shared, active=7)
    solution = whole.choose(theta)
    evaluation = whole.holding(solution)(theta)
    assert_allclose(evaluation.evidence, solution.bound, rtol=1e-10)
    assert_allclose(evaluation.log_posterior, solution.bound + whole.space.log_prior(theta), rtol=1e-10)


def test_best_round_is_kept():
    whole, theta = log_posterior(models.softmax, active=8)
    seen = []
    optimum, solution = climb_in_rounds(whole, theta, 12, 3, lambda history, held: seen.append(len(history) - 1))
    assert seen == list(range(1, len(seen) + 1))
    assert len(optimum.history) == len(seen) + 1 <= 13
    first = whole.holding(whole.choose(theta))(theta)
    assert optimum.best.log_posterior > first.log_posterior
    assert_allclose(optimum.best.evidence, solution.bound)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StopIteration(), "Stopped by a callback."),
        (StopIteration("enough"), "enough"),
        (KeyboardInterrupt(), "Interrupted."),
    ],
)
def test_callback_stops_the_search(error, message):
    whole, theta = log_posterior(models.softmax, active=8)

    def stop(history, held):
        raise error

    optimum, _ = climb_in_rounds(whole, theta, 50, 5, stop)
    assert not optimum.converged
    assert optimum.message == message
    assert optimum.interrupted == isinstance(error, KeyboardInterrupt)
    assert len(optimum.history) == 2


@pytest.mark.parametrize(
    ("fails", "message"), [("interrupted", "Interrupted."), ("not finite", "the best earlier round is kept")]
)
def test_failed_selection_keeps_earlier_rounds(monkeypatch, fails, message):
    whole, theta = log_posterior(models.softmax, active=8)
    holding, rounds = ActiveLogPosterior.holding, 0

    def failing(self, solution):
        nonlocal rounds
        rounds += 1
        if rounds > 1 and fails == "interrupted":
            raise KeyboardInterrupt
        held = holding(self, solution)
        return held if rounds == 1 else lambda at: held(at)._replace(log_posterior=np.nan)

    monkeypatch.setattr(ActiveLogPosterior, "holding", failing)
    optimum, solution = climb_in_rounds(whole, theta, 50, 5, lambda history, held: None)
    assert (rounds, optimum.converged, optimum.interrupted) == (2, False, fails == "interrupted")
    assert message in optimum.message
    assert_allclose(optimum.best.evidence, solution.bound)
    assert_allclose(optimum.best.theta, theta)


@pytest.mark.variation
def test_search_without_rounds_keeps_hyperparameters():
    whole, theta = log_posterior(models.softmax, active=8)
    optimum, solution = climb_in_rounds(whole, theta, 50, 0, lambda history, held: None)
    assert optimum.converged
    assert optimum.message == "Hyperparameters were kept at their initial values."
    assert_allclose(optimum.best.theta, theta)
    assert_allclose(optimum.best.evidence, solution.bound)
