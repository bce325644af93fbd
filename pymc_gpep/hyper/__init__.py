"""Treatments of the hyperparameters once their maximum is known: kept there, or integrated over."""

from pymc_gpep.hyper.hyper_method import HyperMethod
from pymc_gpep.hyper.hyper_methods import HYPER, Maximum, hyper_method
from pymc_gpep.hyper.hyper_posterior import HyperPosterior

__all__ = ["HYPER", "HyperMethod", "HyperPosterior", "Maximum", "hyper_method"]
