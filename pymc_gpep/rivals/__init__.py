"""Other methods of papers, registered by the same calls as methods of a user's own package.

The approximations are active rows, class-independent EP, EP of a probit by quadrature, and GFITC. Three are for two
classes: the factorial bound, label regression and naive TAP. A treatment is the mean field of the hyperparameters, and
samplers are pseudo-marginal and scaled Metropolis. The kernels that these methods ask of the softmax and of the
multinomial probit are registered too (`computations.py`). A module is imported when its table is first read.
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
register("sparse_approximation", "pymc_gpep.rivals.gfitc:GFITC")
register("method", "pymc_gpep.rivals.ivm:IVM")
register(
    "computation",
    "pymc_gpep.rivals.computations:PROBIT_FACTORS",
    "pymc_gpep.rivals.computations:PROBIT_QUADRATURE",
    "pymc_gpep.rivals.computations:PROBIT_DIFFERENCES",
    "pymc_gpep.rivals.computations:PROBIT_INFORMATION",
    "pymc_gpep.rivals.computations:PROBIT_NORMALISER",
    "pymc_gpep.rivals.computations:PROBIT_DENSITY",
    "pymc_gpep.rivals.computations:SOFTMAX_QUADRATURE",
    "pymc_gpep.rivals.computations:SOFTMAX_INFORMATION",
    "pymc_gpep.rivals.computations:SOFTMAX_SITES",
)
register("posterior", "pymc_gpep.rivals.factorial_posterior:FACTORIAL")
register("plan", "pymc_gpep.rivals.active_log_posterior:ActiveRows")
register("file", "pymc_gpep.rivals.active_log_posterior:ActiveLogPosterior")
register("hyper", "pymc_gpep.rivals.mean_field:MeanField")
register(
    "sampler",
    "pymc_gpep.rivals.pseudo_marginal:PseudoMarginal",
    "pymc_gpep.rivals.scaled_metropolis:ScaledMetropolis",
)
register("diagnostic", "pymc_gpep.rivals.learning_curve:learning_curve")
register("plot", "pymc_gpep.rivals.plot_active:plot_active", "pymc_gpep.rivals.plot_active:plot_learning_curve")
