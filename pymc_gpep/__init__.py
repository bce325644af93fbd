"""Gaussian process classification in PyMC: accurate approximations to the posterior, on the model's own graph.

Importing the package lets `pm.fit` know its methods. All else is imported when first used. The compiled parts need
numba, which takes longer to import than all of this package; PyMC itself imports it late as well.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymc_gpep.registration import register

if TYPE_CHECKING:
    from pymc_gpep import plots
    from pymc_gpep.approximations import (
        EP,
        GFITC,
        IEP,
        IVM,
        KL,
        QEP,
        QIEP,
        FactorialVariational,
        InducedArrays,
        LabelRegression,
        Laplace,
        LaplaceProbit,
        NaiveTAP,
        NestedEP,
        NoisyNestedEP,
        NoisyQIEP,
        QEPSoftmax,
        QIEPSoftmax,
        QuadraticVB,
        ScalarLaplace,
        SparseEP,
        SparseVI,
        VariationalBayes,
    )
    from pymc_gpep.approximations.selection.selection import DenseRows
    from pymc_gpep.checks.annealed_evidence import AnnealedEvidence, annealed_evidence
    from pymc_gpep.checks.corrected_evidence import CorrectedEvidence
    from pymc_gpep.checks.importance import ImportanceCheck
    from pymc_gpep.checks.left_out import CavityELPD
    from pymc_gpep.comparison.bootstrap import bayesian_bootstrap
    from pymc_gpep.comparison.draw_prediction import predict_draws
    from pymc_gpep.comparison.evidence_grid import evidence_grid
    from pymc_gpep.comparison.table import compare_methods
    from pymc_gpep.fits.checkpoint import Checkpoint
    from pymc_gpep.fits.fit import Fit
    from pymc_gpep.fits.held_out_rows import HeldOut
    from pymc_gpep.fits.learning_curve import learning_curve
    from pymc_gpep.fits.reading import from_datatree
    from pymc_gpep.fits.recover import recover
    from pymc_gpep.graph.marginal_model import MarginalModel, marginalize
    from pymc_gpep.likelihoods.multinomial_probit.distribution import MultinomialProbit
    from pymc_gpep.likelihoods.multinomial_probit.predictive import class_probabilities
    from pymc_gpep.likelihoods.probit.distribution import Probit
    from pymc_gpep.likelihoods.robust_max.distribution import RobustMax
    from pymc_gpep.priors import default_priors
    from pymc_gpep.rows.errors import RowError
    from pymc_gpep.rows.open_rows import rows_of
    from pymc_gpep.sampling.elliptical_slice import EllipticalSlice
    from pymc_gpep.sampling.guided_hmc import GuidedHMC
    from pymc_gpep.sampling.probit_gibbs import ProbitGibbs
    from pymc_gpep.sampling.pseudo_marginal import PseudoMarginal
    from pymc_gpep.sampling.scaled_metropolis import ScaledMetropolis
    from pymc_gpep.sampling.sparse_model import SparseModel, sparsify
    from pymc_gpep.streaming.falling import falling_adam
    from pymc_gpep.structure import GPClassifier, StructureError, read_classifier
    from pymc_gpep.structure.lowered_dims import lower_dims
    from pymc_gpep.structure.sparse_normal import SparseNormal
    from pymc_gpep.tables.columns import Columns, columns
    from pymc_gpep.tables.spline import spline
    from pymc_gpep.variational.class_centres import class_centres

_HOME = {
    "AnnealedEvidence": "checks.annealed_evidence",
    "CavityELPD": "checks.left_out",
    "Checkpoint": "fits.checkpoint",
    "Columns": "tables.columns",
    "CorrectedEvidence": "checks.corrected_evidence",
    "DenseRows": "approximations.selection.selection",
    "EP": "approximations",
    "EllipticalSlice": "sampling.elliptical_slice",
    "FactorialVariational": "approximations",
    "Fit": "fits.fit",
    "GFITC": "approximations",
    "GPClassifier": "structure",
    "GuidedHMC": "sampling.guided_hmc",
    "HeldOut": "fits.held_out_rows",
    "IEP": "approximations",
    "IVM": "approximations",
    "ImportanceCheck": "checks.importance",
    "InducedArrays": "approximations",
    "KL": "approximations",
    "LabelRegression": "approximations",
    "Laplace": "approximations",
    "LaplaceProbit": "approximations",
    "MarginalModel": "graph.marginal_model",
    "MultinomialProbit": "likelihoods.multinomial_probit.distribution",
    "NaiveTAP": "approximations",
    "NestedEP": "approximations",
    "NoisyNestedEP": "approximations",
    "NoisyQIEP": "approximations",
    "Probit": "likelihoods.probit.distribution",
    "ProbitGibbs": "sampling.probit_gibbs",
    "PseudoMarginal": "sampling.pseudo_marginal",
    "QEP": "approximations",
    "QEPSoftmax": "approximations",
    "QIEP": "approximations",
    "QIEPSoftmax": "approximations",
    "QuadraticVB": "approximations",
    "RobustMax": "likelihoods.robust_max.distribution",
    "RowError": "rows.errors",
    "ScalarLaplace": "approximations",
    "ScaledMetropolis": "sampling.scaled_metropolis",
    "SparseEP": "approximations",
    "SparseVI": "approximations",
    "SparseNormal": "structure.sparse_normal",
    "SparseModel": "sampling.sparse_model",
    "StructureError": "structure",
    "VariationalBayes": "approximations",
    "annealed_evidence": "checks.annealed_evidence",
    "bayesian_bootstrap": "comparison.bootstrap",
    "class_centres": "variational.class_centres",
    "class_probabilities": "likelihoods.multinomial_probit.predictive",
    "columns": "tables.columns",
    "compare_methods": "comparison.table",
    "default_priors": "priors",
    "evidence_grid": "comparison.evidence_grid",
    "falling_adam": "streaming.falling",
    "from_datatree": "fits.reading",
    "learning_curve": "fits.learning_curve",
    "lower_dims": "structure.lowered_dims",
    "marginalize": "graph.marginal_model",
    "plots": "plots",
    "predict_draws": "comparison.draw_prediction",
    "read_classifier": "structure",
    "recover": "fits.recover",
    "rows_of": "rows.open_rows",
    "sparsify": "sampling.sparse_model",
    "spline": "tables.spline",
}
"""Public name → the module that defines it, or that it is."""

__all__ = [
    "EP",
    "GFITC",
    "IEP",
    "IVM",
    "KL",
    "QEP",
    "QIEP",
    "AnnealedEvidence",
    "CavityELPD",
    "Checkpoint",
    "Columns",
    "CorrectedEvidence",
    "DenseRows",
    "EllipticalSlice",
    "FactorialVariational",
    "Fit",
    "GPClassifier",
    "GuidedHMC",
    "HeldOut",
    "ImportanceCheck",
    "InducedArrays",
    "LabelRegression",
    "Laplace",
    "LaplaceProbit",
    "MarginalModel",
    "MultinomialProbit",
    "NaiveTAP",
    "NestedEP",
    "NoisyNestedEP",
    "NoisyQIEP",
    "Probit",
    "ProbitGibbs",
    "PseudoMarginal",
    "QEPSoftmax",
    "QIEPSoftmax",
    "QuadraticVB",
    "RobustMax",
    "RowError",
    "ScalarLaplace",
    "ScaledMetropolis",
    "SparseEP",
    "SparseModel",
    "SparseNormal",
    "SparseVI",
    "StructureError",
    "VariationalBayes",
    "annealed_evidence",
    "bayesian_bootstrap",
    "class_centres",
    "class_probabilities",
    "columns",
    "compare_methods",
    "default_priors",
    "evidence_grid",
    "falling_adam",
    "from_datatree",
    "learning_curve",
    "lower_dims",
    "marginalize",
    "plots",
    "predict_draws",
    "read_classifier",
    "recover",
    "rows_of",
    "sparsify",
    "spline",
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
