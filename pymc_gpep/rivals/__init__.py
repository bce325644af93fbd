"""Other methods from papers, registered by the same calls as methods of a user's own package.

A module of this package is imported when the registry that names it is first read.

kernels: compiled loops of these methods
computations: computations at a point that likelihoods offer to these methods
responses: responses of means, with couplings of latent functions that a method ignores
qep: EP of a multinomial probit by quadrature
class_independent_ep: EP with latent functions that are independent in the posterior
factorial_posterior: posterior in which all latent values are independent
factorial_variational: factorial variational method for two classes
label_regression: labels of two classes as observations with normal noise
naive_tap: naive TAP, a mean field method for two classes
gfitc: EP with inducing inputs, and sites on latent values
selection: choice of a few active rows
ivm: informative vector machine: the posterior given the labels of active rows
active_log_posterior: log posterior by active rows, and the informative vector machine in `pm.fit`
learning_curve: predictions against the number of active rows, and pictures of active rows
hierarchy: hyperparameters that appear in the prior of latent values, and their parents
mean_field: variational distribution of the hyperparameters
pseudo_marginal: pseudo-marginal Metropolis-Hastings sampler
scaled_metropolis: scaled Metropolis-Hastings sampler
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
register("plot", "pymc_gpep.rivals.learning_curve:plot_active", "pymc_gpep.rivals.learning_curve:plot_learning_curve")
