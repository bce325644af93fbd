"""Likelihoods of one latent function: values, derivatives and averages at each point.

probit: two classes by the normal distribution function
logit: two classes by the logistic function
ordinal: ordered classes
log_rate: Poisson and exponential log densities in a log rate
powers: several rows of two classes; binomial, negative binomial and logistic densities
normal_sides: normal density, and the probability of either side of a bound
normal_mixture: quotient of a mixture of normal densities and a normal density
asymmetric_laplace: asymmetric Laplace density, for quantiles
"""
