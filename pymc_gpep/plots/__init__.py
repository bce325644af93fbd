"""Pictures of fits, with matplotlib.

Each function draws on the given axes, or creates a figure, and returns the axes. Pictures are not shown or saved.
Matplotlib is imported by the first call of a function.

canvas: axes, colours, markers and limits, for all pictures
probabilities: class probabilities over one or two inputs
latent: marginals of one or two latent values, by several methods
effective: Gaussians that replace the likelihood of two points in an approximation
effects: effects with intervals: of groups, along an input, on a map
hyperparameters: relevance of inputs, and sensitivity to the priors
evidence: evidence and held-out scores over a grid of hyperparameters
convergence: convergence of a fit
"""

from pymc_gpep.plots.convergence import plot_convergence
from pymc_gpep.plots.effective import plot_effective_likelihoods
from pymc_gpep.plots.effects import plot_effects
from pymc_gpep.plots.evidence import plot_evidence_grid, plot_scores
from pymc_gpep.plots.hyperparameters import plot_relevance, plot_sensitivity
from pymc_gpep.plots.latent import plot_latent_comparison, plot_latent_pair, plot_latent_pairs
from pymc_gpep.plots.probabilities import input_grid, plot_probabilities, plot_probability_comparison
from pymc_gpep.registry import Registry

__all__ = [
    "input_grid",
    "plot_convergence",
    "plot_effective_likelihoods",
    "plot_effects",
    "plot_evidence_grid",
    "plot_latent_comparison",
    "plot_latent_pair",
    "plot_latent_pairs",
    "plot_probabilities",
    "plot_probability_comparison",
    "plot_relevance",
    "plot_scores",
    "plot_sensitivity",
]

PLOTS = Registry("plot", (globals()[name] for name in __all__), named="__name__")
__getattr__, __dir__ = PLOTS.face(__name__)
