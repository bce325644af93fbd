"""Gaussian latent models in PyMC: accurate approximations to the posterior, on the model's own graph.

Importing the package adds its methods to `pm.fit`. All other modules are imported at their first use: compiled kernels
need numba, whose import takes longer than the import of all of this package. PyMC also delays this import.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymc_gpep import rivals  # noqa: F401  # it registers methods
from pymc_gpep.registration import patch

if TYPE_CHECKING:
    from pymc_gpep import diagnostics, methods, plots, samplers
    from pymc_gpep.comparison.fits_and_draws import predict_draws
    from pymc_gpep.comparison.table import compare_methods
    from pymc_gpep.evidence.marginal_model import marginalize
    from pymc_gpep.fits.callbacks import Checkpoint, EarlyStopping
    from pymc_gpep.fits.fit import Fit
    from pymc_gpep.fits.loading import from_datatree, load
    from pymc_gpep.fits.recover_latent import recover_latent
    from pymc_gpep.likelihoods.bernoulli import Probit
    from pymc_gpep.likelihoods.multinomial_probit import inner_ep
    from pymc_gpep.likelihoods.multinomial_probit_distribution import MultinomialProbit, RobustMax
    from pymc_gpep.priors import default_priors
    from pymc_gpep.reading import StructureError
    from pymc_gpep.recipes.sparse_normal import SparseNormal
    from pymc_gpep.registry import register
    from pymc_gpep.rows.rows import RowError
    from pymc_gpep.rows.storage import open_rows
    from pymc_gpep.samplers.inducing_model import inducing_model
    from pymc_gpep.tables.columns import columns
    from pymc_gpep.tables.spline import spline
    from pymc_gpep.variational.class_centres import class_centres

_HOME = {
    "Checkpoint": "fits.callbacks",
    "EarlyStopping": "fits.callbacks",
    "Fit": "fits.fit",
    "MultinomialProbit": "likelihoods.multinomial_probit_distribution",
    "Probit": "likelihoods.bernoulli",
    "RobustMax": "likelihoods.multinomial_probit_distribution",
    "RowError": "rows.rows",
    "SparseNormal": "recipes.sparse_normal",
    "StructureError": "reading",
    "class_centres": "variational.class_centres",
    "columns": "tables.columns",
    "compare_methods": "comparison.table",
    "default_priors": "priors",
    "from_datatree": "fits.loading",
    "inducing_model": "samplers.inducing_model",
    "inner_ep": "likelihoods.multinomial_probit",
    "load": "fits.loading",
    "marginalize": "evidence.marginal_model",
    "open_rows": "rows.storage",
    "predict_draws": "comparison.fits_and_draws",
    "recover_latent": "fits.recover_latent",
    "register": "registry",
    "spline": "tables.spline",
}
"""Public name → the module that defines it."""
_MODULES = ("diagnostics", "methods", "plots", "samplers")

__all__ = [
    "Checkpoint",
    "EarlyStopping",
    "Fit",
    "MultinomialProbit",
    "Probit",
    "RobustMax",
    "RowError",
    "SparseNormal",
    "StructureError",
    "class_centres",
    "columns",
    "compare_methods",
    "default_priors",
    "diagnostics",
    "from_datatree",
    "inducing_model",
    "inner_ep",
    "load",
    "marginalize",
    "methods",
    "open_rows",
    "plots",
    "predict_draws",
    "recover_latent",
    "register",
    "samplers",
    "spline",
]

__version__ = version("pymc_gpep")

patch()


def __getattr__(name: str) -> Any:
    if name in (*_MODULES, "sklearn"):  # sklearn needs scikit-learn: imported on demand
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        module = sys.modules[__name__]  # With `obj`, Python's message suggests a close name.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=module)
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
