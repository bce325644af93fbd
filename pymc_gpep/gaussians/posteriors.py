"""The posteriors by the forms of prior and sites that they are of."""

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.block import BlockPosterior
from pymc_gpep.gaussians.coupled import CoupledPosterior
from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.factorial import FactorialPosterior
from pymc_gpep.gaussians.independent import IndependentPosterior
from pymc_gpep.gaussians.prior import Prior
from pymc_gpep.gaussians.row_posterior import BlockRowPosterior, CoupledRowPosterior, RowPosterior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import SiteForm, Sites

__all__ = ["make_posterior", "posterior_class", "posterior_of"]


_POSTERIORS: dict[tuple[type[Prior], SiteForm], type[DensePosterior]] = {
    (DensePrior, SiteForm.COUPLED): CoupledPosterior,
    (DensePrior, SiteForm.BLOCK): BlockPosterior,
    (DensePrior, SiteForm.INDEPENDENT): IndependentPosterior,
    (DensePrior, SiteForm.FACTORIAL): FactorialPosterior,
    (RowPrior, SiteForm.INDEPENDENT): RowPosterior,
    (RowPrior, SiteForm.COUPLED): CoupledRowPosterior,
    (RowPrior, SiteForm.BLOCK): BlockRowPosterior,
}


def posterior_class(prior: type[Prior], form: SiteForm) -> type[DensePosterior]:
    """The posterior of a prior of some type with sites of some form.

    Raises
    ------
    ValueError
        If there is none.
    """
    if (prior, form) not in _POSTERIORS:
        known = ", ".join(f"{own.__name__} with {sites} sites" for own, sites in _POSTERIORS)
        raise ValueError(f"There is no posterior of {prior.__name__} with {form} sites; there are those of {known}.")
    return _POSTERIORS[prior, form]


def make_posterior(
    prior: DensePrior, form: SiteForm, precision: Array, weights: Array, mean: Array | None = None
) -> DensePosterior:
    """The posterior whose sites have these precisions and pull with these weights, see `Posterior`."""
    return posterior_class(type(prior), form)(prior, precision, weights, mean)


def posterior_of(prior: DensePrior, sites: Sites) -> DensePosterior:
    """The posterior that sites make of a prior.

    Raises
    ------
    NotPositiveDefiniteError
        If a matrix has no Cholesky factor to working precision.
    """
    return posterior_class(type(prior), sites.form).of(prior, sites)
