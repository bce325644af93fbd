"""Checks of a model and of its fits, for users."""

from pymc_gpep.checks.annealed_evidence import annealed_evidence
from pymc_gpep.comparison.evidence_grid import evidence_grid
from pymc_gpep.comparison.held_out_scores import bayesian_bootstrap
from pymc_gpep.registry import Registry

__all__ = ["annealed_evidence", "bayesian_bootstrap", "evidence_grid"]

DIAGNOSTICS = Registry("diagnostic", (annealed_evidence, bayesian_bootstrap, evidence_grid), named="__name__")
__getattr__, __dir__ = DIAGNOSTICS.face(__name__)
