"""Plots of the Gaussian sites that approximate likelihoods."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr

from pymc_gpep.plots import plot_effective_likelihoods
from tests import models
from tests.likelihoods.with_parameters import CASES, model_of

PAIR = (104, 124)
AT = [4, 24]


@pytest.mark.variation
def test_plot_shows_sites_over_likelihood_and_prior(one_function, given):
    axes = given(1, 2)
    assert (plot_effective_likelihoods(one_function, PAIR, levels=[0.5], axes=axes) == axes).all()
    for ax, (name, fit) in zip(axes, one_function.items(), strict=True):
        assert (ax.get_title(), ax.get_xlabel()) == (name, "latent value, flower 104")
        prior, sites = ax.lines
        at = fit.log_posterior.classifier.groups.of[AT]  # rows with equal inputs are one point
        k = fit.solution.posterior.prior.k[0][np.ix_(at, at)]
        ellipse = prior.get_xydata() + 0.5  # the prior mean is −0.5
        assert_allclose(np.einsum("si,ij,sj->s", ellipse, np.linalg.inv(k), ellipse), -2 * np.log(0.1), rtol=1e-6)
        # Contour where the product of both sites is half of its maximum.
        f = sites.get_xydata()
        precision, location = (values[0, at] for values in (fit.solution.posterior.precision, _location(fit)))
        assert_allclose((f * location - 0.5 * precision * f**2).sum(1), np.log(0.5) + _peak(precision, location))
        # Likelihood contour of one flower that is not virginica, and of one virginica.
        (contour,) = ax.collections[0].get_paths()
        p = ndtr(-contour.vertices[:, 0]) * ndtr(contour.vertices[:, 1])
        assert_allclose(p / p.max(), 1.0, atol=0.02)


def _location(fit):
    return fit.solution.posterior.sites.location


def _peak(precision, location):
    return (0.5 * location**2 / precision).sum()


def test_posterior_is_the_prior_times_the_drawn_sites(one_function):
    """The sites of all points equal the difference of posterior and prior precision, equation 7 of the paper."""
    for fit in one_function.values():
        posterior = fit.solution.posterior
        k = posterior.prior.k[0]
        cov = posterior.joint_covariance(k[None], k[None])[0, :, 0]
        precision = posterior.sites.precision[0]
        # Computed without the inverse of the nearly singular prior covariance.
        expected = k - k @ np.linalg.solve(k + np.diag(1.0 / precision), k)
        assert_allclose(cov, expected, rtol=1e-6, atol=1e-6 * k.max())


def test_plot_shows_sites_of_counts():
    model, _ = model_of(CASES["poisson"].observe)
    with model:
        fit = pm.fit(method="laplace", progressbar=False)
    (ax,) = plot_effective_likelihoods(fit, (0, 6), contour_kwargs={"color": "red"})
    assert ax.get_title() == "fit"
    assert ax.lines[1].get_color() == "red"


@pytest.mark.parametrize(
    ("points", "options", "error", "message"),
    [
        ((104, 104), {}, ValueError, "two different points, but are 104 twice"),
        ((104, 4), {}, ValueError, "4 is not a point"),
        (PAIR, {"levels": [2.0]}, ValueError, r"levels must be in \(0, 1\)"),
    ],
)
def test_invalid_points_and_levels_raise_errors(one_function, points, options, error, message):
    with pytest.raises(error, match=message):
        plot_effective_likelihoods(one_function, points, **options)


def test_results_without_sites_raise_errors(one_function, shared):
    with pytest.raises(TypeError, match="'MCMC' has no sites on latent values"):
        plot_effective_likelihoods({"MCMC": one_function["ep"].sample(3, random_seed=1)}, PAIR)
    with pytest.raises(TypeError, match="'EP' has 3 latent values at each point"):
        plot_effective_likelihoods({"EP": shared.fit}, PAIR)
    model, _ = models.bernoulli_probit()
    with model, pytest.warns(UserWarning, match="learned next to nothing"):
        fv = pm.fit(method="fv", progressbar=False, random_seed=1)
    with pytest.raises(ValueError, match="Some sites of 'FV' depend on several points"):
        plot_effective_likelihoods({"FV": fv}, PAIR)
