"""Special functions, and integrals over normal distributions.

normal: standard normal distribution, accurate in both tails
tabulated_normal: standard normal distribution by tables, faster
unimodal_average: average of exp of a concave function over a normal variable, with Poisson counts
logistic_normal: average of the logistic function over a normal variable
logistic_average: logarithms of that average, and the logistic function as a normal mixture
probit: products of normal distribution functions, averaged over a normal variable
orthant: probabilities that two, three and more jointly normal variables are below bounds
largest_of_independent: probability that each of several independent normals is the largest
common_factors: the same for dependent normals, by factors that they share
softmax_average: softmax averaged over normal latent values
"""
