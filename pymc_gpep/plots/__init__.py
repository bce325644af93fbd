"""The pictures that people of this field draw, with matplotlib, which is needed only once one is drawn.

Every function takes the axes to draw on, or makes a figure, and returns the axes. Nothing is shown or saved.
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

PLOTS = Registry("plot", (globals()[name] for name in __all__), name_of=lambda plot: plot.__name__)
__getattr__, __dir__ = PLOTS.face(__name__)
