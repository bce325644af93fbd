"""What is done about the hyperparameters once their maximum is known: kept there, or integrated over."""

from pymc_gpep.hyper.base import HyperMethod
from pymc_gpep.hyper.map import Maximum
from pymc_gpep.hyper.posterior import HyperPosterior, Node
from pymc_gpep.hyper.registry import HYPER, hyper_method

__all__ = ["HYPER", "HyperMethod", "HyperPosterior", "Maximum", "Node", "hyper_method"]
