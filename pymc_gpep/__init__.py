"""Gaussian process classification in PyMC: accurate approximations to the posterior, on the model's own graph.

Importing the package lets `pm.fit` know its methods. All else is imported when first used: numba, which the compiled
parts need, takes longer to import than all of this package, and PyMC itself waits with it.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymc_gpep.registration import register

if TYPE_CHECKING:
    from pymc_gpep import plots
    from pymc_gpep.approximation import GPApproximation
    from pymc_gpep.approximations import IEP, QEP, QIEP, Laplace, LaplaceProbit, NestedEP, VariationalBayes
    from pymc_gpep.bootstrap import bayesian_bootstrap
    from pymc_gpep.comparison import compare_methods
    from pymc_gpep.draw_prediction import predict_draws
    from pymc_gpep.grid import evidence_grid
    from pymc_gpep.importance import ImportanceCheck
    from pymc_gpep.leave_one_out import CavityELPD
    from pymc_gpep.likelihoods import MultinomialProbit
    from pymc_gpep.marginal import MarginalModel, marginalize, recover
    from pymc_gpep.probabilities import class_probabilities
    from pymc_gpep.sampling.annealed_evidence import AnnealedEvidence, annealed_evidence
    from pymc_gpep.sampling.elliptical_slice import EllipticalSlice
    from pymc_gpep.sampling.guided_hmc import GuidedHMC
    from pymc_gpep.sampling.probit_gibbs import ProbitGibbs
    from pymc_gpep.sampling.pseudo_marginal import PseudoMarginal
    from pymc_gpep.sampling.scaled_metropolis import ScaledMetropolis
    from pymc_gpep.saving import from_datatree
    from pymc_gpep.structure import GPClassifier, StructureError, read_classifier

_HOME = {
    "AnnealedEvidence": "sampling.annealed_evidence",
    "CavityELPD": "leave_one_out",
    "EllipticalSlice": "sampling.elliptical_slice",
    "GPApproximation": "approximation",
    "GPClassifier": "structure",
    "GuidedHMC": "sampling.guided_hmc",
    "IEP": "approximations",
    "ImportanceCheck": "importance",
    "Laplace": "approximations",
    "LaplaceProbit": "approximations",
    "MarginalModel": "marginal",
    "MultinomialProbit": "likelihoods",
    "NestedEP": "approximations",
    "ProbitGibbs": "sampling.probit_gibbs",
    "PseudoMarginal": "sampling.pseudo_marginal",
    "QEP": "approximations",
    "QIEP": "approximations",
    "ScaledMetropolis": "sampling.scaled_metropolis",
    "StructureError": "structure",
    "VariationalBayes": "approximations",
    "annealed_evidence": "sampling.annealed_evidence",
    "bayesian_bootstrap": "bootstrap",
    "class_probabilities": "probabilities",
    "compare_methods": "comparison",
    "evidence_grid": "grid",
    "from_datatree": "saving",
    "marginalize": "marginal",
    "plots": "plots",
    "predict_draws": "draw_prediction",
    "read_classifier": "structure",
    "recover": "marginal",
}
"""Public name → the module that defines it, or that it is."""

__all__ = [
    "IEP",
    "QEP",
    "QIEP",
    "AnnealedEvidence",
    "CavityELPD",
    "EllipticalSlice",
    "GPApproximation",
    "GPClassifier",
    "GuidedHMC",
    "ImportanceCheck",
    "Laplace",
    "LaplaceProbit",
    "MarginalModel",
    "MultinomialProbit",
    "NestedEP",
    "ProbitGibbs",
    "PseudoMarginal",
    "ScaledMetropolis",
    "StructureError",
    "VariationalBayes",
    "annealed_evidence",
    "bayesian_bootstrap",
    "class_probabilities",
    "compare_methods",
    "evidence_grid",
    "from_datatree",
    "marginalize",
    "plots",
    "predict_draws",
    "read_classifier",
    "recover",
]

__version__ = version("pymc_gpep")

register()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME[name]}")
    value = module if _HOME[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
