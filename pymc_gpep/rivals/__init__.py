"""Other methods of papers, registered by the same calls as a user's own.

The approximations are active rows, class-independent EP, EP of a probit by quadrature, and GFITC. Three are for two
classes: the factorial bound, label regression and naive TAP. A treatment is the mean field of the hyperparameters, and
samplers are pseudo-marginal and scaled Metropolis. Their modules are imported when a table is first read.
"""

from pymc_gpep.registry import register

__all__ = ()

register(
    "approximation",
    "pymc_gpep.approximations.qep:QEP",
    "pymc_gpep.approximations.iep:IEP",
    "pymc_gpep.approximations.qiep:QIEP",
    "pymc_gpep.approximations.qiep_softmax:QIEPSoftmax",
    "pymc_gpep.approximations.noisy_qiep:NoisyQIEP",
    "pymc_gpep.approximations.factorial_variational:FactorialVariational",
    "pymc_gpep.approximations.label_regression:LabelRegression",
    "pymc_gpep.approximations.naive_tap:NaiveTAP",
)
register("sparse_approximation", "pymc_gpep.approximations.gfitc:GFITC")
register("method", "pymc_gpep.approximations.ivm:IVM")
register("plan", "pymc_gpep.variational.plans.active_rows:ActiveRows")
register("file", "pymc_gpep.hyper.active_log_posterior:ActiveLogPosterior")
register("hyper", "pymc_gpep.hyper.mean_field:MeanField")
register(
    "sampler",
    "pymc_gpep.samplers.pseudo_marginal:PseudoMarginal",
    "pymc_gpep.samplers.scaled_metropolis:ScaledMetropolis",
)
register("diagnostic", "pymc_gpep.fits.learning_curve:learning_curve")
register("plot", "pymc_gpep.plots.active:plot_active", "pymc_gpep.plots.active:plot_learning_curve")
