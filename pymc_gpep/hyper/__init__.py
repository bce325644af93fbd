"""Treatments of the hyperparameters once their maximum is known: kept there, or integrated over."""

from pymc_gpep.hyper.contract import HyperMethod
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.registry import HYPER, Maximum, hyper_method

__all__ = ["HYPER", "HyperMethod", "HyperPosterior", "Maximum", "hyper_method"]
