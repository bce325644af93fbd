"""Table of the posteriors, by the forms of prior and sites."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.coupled import CoupledPosterior
from pymc_gpep.gaussians.independent import IndependentPosterior
from pymc_gpep.gaussians.posterior import DensePosterior, Posterior
from pymc_gpep.gaussians.prior import DensePrior, Prior
from pymc_gpep.gaussians.row_posterior import (
    BlockPosterior,
    BlockRowPosterior,
    CoupledRowPosterior,
    PrecisionPosterior,
    RootedPosterior,
    RowPosterior,
    SignedPosterior,
    SignedRowPosterior,
)
from pymc_gpep.gaussians.row_prior import NormalsPrior, PrecisionPrior, RootedPrior, RowPrior
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.gaussians.whitening import NormalsWhitening, Sampled, Whitening
from pymc_gpep.registry import Registry


class PosteriorOf(NamedTuple):
    """The type of posterior that a type of prior has with a form of sites."""

    prior: type[Prior]
    form: SiteForm
    posterior: type[DensePosterior]

    @property
    def name(self) -> str:
        """Prior and form, as messages have them."""
        return f"{self.prior.__name__} with {self.form} sites"


_OWN = (
    PosteriorOf(DensePrior, SiteForm.COUPLED, CoupledPosterior),
    PosteriorOf(DensePrior, SiteForm.BLOCK, BlockPosterior),
    PosteriorOf(DensePrior, SiteForm.SIGNED, SignedPosterior),
    PosteriorOf(DensePrior, SiteForm.INDEPENDENT, IndependentPosterior),
    PosteriorOf(RowPrior, SiteForm.INDEPENDENT, RowPosterior),
    PosteriorOf(RootedPrior, SiteForm.INDEPENDENT, RootedPosterior),
    PosteriorOf(RowPrior, SiteForm.COUPLED, CoupledRowPosterior),
    PosteriorOf(RowPrior, SiteForm.BLOCK, BlockRowPosterior),
    PosteriorOf(RowPrior, SiteForm.SIGNED, SignedRowPosterior),
    PosteriorOf(PrecisionPrior, SiteForm.INDEPENDENT, PrecisionPosterior),
)
POSTERIORS: Registry[PosteriorOf] = Registry("posterior", _OWN, of=PosteriorOf, classes=False)
"""Types of posteriors by the types of their priors, and the forms of their sites."""


_SCALAR = (SiteForm.COUPLED, SiteForm.INDEPENDENT)
"""Forms of sites that have a number π for each function of a point."""


def posterior_class(prior: type[Prior], form: SiteForm) -> type[DensePosterior]:
    """The posterior of a prior of some type with sites of some form.

    Raises
    ------
    ValueError
        If there is no such posterior.
    """
    for each in POSTERIORS:
        if each.prior is prior and each.form == form:
            return each.posterior
    known = ", ".join(POSTERIORS.names)
    raise ValueError(f"There is no posterior of {prior.__name__} with {form} sites; there are those of {known}.")


def make_posterior(
    prior: DensePrior, form: SiteForm, precision: Array, weights: Array, mean: Array | None = None
) -> DensePosterior:
    """The posterior whose sites have these precisions and pull with these weights, see `Posterior`."""
    own = _with_signs(prior, form, precision)
    return posterior_class(type(own), form)(own, precision, weights, mean)


def posterior_of(prior: DensePrior, sites: Sites) -> DensePosterior:
    """The posterior that sites make of a prior.

    Raises
    ------
    NotPositiveDefiniteError
        If a matrix has no Cholesky factor to working precision.
    """
    own = _with_signs(prior, sites.form, sites.precision)
    return posterior_class(type(own), sites.form).of(own, sites)


def _with_signs(prior: DensePrior, form: SiteForm, precision: Array) -> DensePrior:
    """The same prior in a form that takes negative precisions, where there are any."""
    if form is not SiteForm.INDEPENDENT or prior.takes_signs or not (precision < 0.0).any():
        return prior
    return RootedPrior(prior)


def whitens(prior: type[Sampled], form: SiteForm) -> bool:
    """Whether sites of some form have a map from standard normals to what is sampled."""
    return posterior_class(DensePrior, form).whitens if prior is not NormalsPrior else form in _SCALAR


def whitening_of(prior: Sampled, sites: Sites) -> Whitening:
    """The map from standard normals under which prior times sites are standard normal.

    Negative precisions are taken for 0.

    Raises
    ------
    NotPositiveDefiniteError
        If a matrix has no Cholesky factor to working precision.
    """
    if sites.form in _SCALAR:
        sites = type(sites)(np.maximum(sites.precision, 0.0), sites.location)
    return NormalsWhitening(prior, sites) if isinstance(prior, NormalsPrior) else posterior_of(prior, sites).whitening()


class SampledPosterior(NamedTuple):
    """The posterior of what samplers move: latent values, or the standard normals that they are made of."""

    mean: Array
    """Its mean, (c, n) or (1, q)."""
    draw: Callable[[np.random.Generator, int], Array]
    """Draws (count, c, n) or (count, 1, q), less the mean."""
    values: Callable[[Array], Array]
    """Latent values less their prior mean (c, n), of what is sampled less its prior mean."""


def sampled_posterior(posterior: Posterior[Any], prior: Sampled | None = None) -> SampledPosterior:
    """Return the posterior of what a prior is of, given the posterior of latent values; that one without a prior."""
    if isinstance(prior, NormalsPrior):
        normals, whitening = prior, NormalsWhitening(prior, posterior.sites)

        def draw(rng: np.random.Generator, count: int) -> Array:
            return np.stack([whitening.latent(z) for z in normals.draw(rng, count)]) - whitening.centre

        return SampledPosterior(whitening.centre, draw, normals.moved)
    return SampledPosterior(posterior.mean, lambda rng, count: posterior.draw(rng, count) - posterior.mean, lambda x: x)
