"""Checks of a model and of its fits that are not members of a fit."""

from pymc_gpep.checks.annealed_evidence import annealed_evidence
from pymc_gpep.comparison.evidence_grid import evidence_grid
from pymc_gpep.comparison.held_out_scores import bayesian_bootstrap
from pymc_gpep.fits.learning_curve import learning_curve

__all__ = ["annealed_evidence", "bayesian_bootstrap", "evidence_grid", "learning_curve"]
