"""Other methods of papers, registered by the same calls as a user's own.

The approximations are active rows, class-independent EP, EP of a probit by quadrature, and GFITC. Three are for two
classes: the factorial bound, label regression and naive TAP. A treatment is the mean field of the hyperparameters, and
samplers are pseudo-marginal and scaled Metropolis. Their modules are imported when a table is first read.
"""

from pymc_gpep.registry import register

__all__ = ()

register(
    "approximation",
    "pymc_gpep.rivals.qep:QEP",
    "pymc_gpep.rivals.class_independent_ep:IEP",
    "pymc_gpep.rivals.class_independent_ep:QIEP",
    "pymc_gpep.rivals.class_independent_ep:QIEPSoftmax",
    "pymc_gpep.rivals.class_independent_ep:NoisyQIEP",
    "pymc_gpep.rivals.factorial_variational:FactorialVariational",
    "pymc_gpep.rivals.label_regression:LabelRegression",
    "pymc_gpep.rivals.naive_tap:NaiveTAP",
)
register(
    "computation",
    "pymc_gpep.rivals.qep:PROBIT",
    "pymc_gpep.rivals.class_independent_ep:INNER_EP",
    "pymc_gpep.rivals.class_independent_ep:QUADRATURE",
    "pymc_gpep.rivals.selection.row_site_rules:PROBIT_DENSITY",
    "pymc_gpep.rivals.selection.row_site_rules:PROBIT_INFORMATION",
    "pymc_gpep.rivals.selection.row_site_rules:PROBIT_NORMALISER",
    "pymc_gpep.likelihoods.softmax:INDEPENDENT",
    "pymc_gpep.likelihoods.softmax:INFORMATION",
    "pymc_gpep.likelihoods.softmax:ROUGH_SITES",
)
register("sparse_approximation", "pymc_gpep.rivals.gfitc:GFITC")
register("method", "pymc_gpep.rivals.ivm:IVM")
register("plan", "pymc_gpep.rivals.active_rows:ActiveRows")
register("file", "pymc_gpep.rivals.active_log_posterior:ActiveLogPosterior")
register("hyper", "pymc_gpep.rivals.mean_field:MeanField")
register(
    "sampler",
    "pymc_gpep.rivals.pseudo_marginal:PseudoMarginal",
    "pymc_gpep.rivals.scaled_metropolis:ScaledMetropolis",
)
register("diagnostic", "pymc_gpep.rivals.learning_curve:learning_curve")
register("plot", "pymc_gpep.rivals.plot_active:plot_active", "pymc_gpep.rivals.plot_active:plot_learning_curve")
