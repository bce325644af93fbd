"""Likelihoods, one file for each family, and the table of all of them.

local_computations: computations at one point that a likelihood offers, and the table of added ones
links: readings of observed variables, and link functions in graphs
local_likelihood: observations and computations of a likelihood, as approximations use them
observed: checks of observed variables, counts and numbers
likelihood: base class of likelihoods: reading from a model, densities, predictions
log_probabilities: log probabilities of observations and of censored ranges, as graphs
cell_rules: quadrature rules for a normal density times any density of one latent value
averages_over_cells: averages of a density of one latent value, from its logarithm alone
one_function: base classes of likelihoods of one latent function, or of one for each class
standard_density: base class of likelihoods with a standard density
bernoulli: two classes: probit, logistic, complementary log-log
ordered: ordered classes: probit, logistic, stopping ratios
counts: Poisson, binomial with three links, negative binomial
positive: gamma, Weibull, exponential
real: normal, log-normal, logistic, Laplace
factor_averages: class probabilities of dependent utilities
tilted_rows: tilted distributions of rows with several latent values, by quadrature
multinomial_probit_distribution: multinomial probit and step likelihood as PyMC distributions
multinomial_probit: the multinomial probit as a likelihood
label_noise: multinomial probit and step likelihood with label noise
softmax: the softmax of a label, and of several votes a point
all_likelihoods: table of likelihoods, in the order in which a model is compared with them
stacked: likelihoods of several observed variables together
grouped: likelihood of groups of rows that have one latent value
pooled_rows: sufficient statistics of such groups
"""
