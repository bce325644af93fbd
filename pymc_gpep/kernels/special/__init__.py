"""Special functions, and integrals over normal distributions.

normal: standard normal distribution, accurate in both tails
tabulated_normal: standard normal distribution by tables, faster
unimodal_average: average of exp of a concave function over a normal variable, with Poisson counts
logistic_average: averages of the logistic function, and a mixture of normals for it
probit: averages of products of normal distribution functions over a normal variable
orthant: probabilities that two, three and more jointly normal variables are below bounds
largest_of_independent: probability that each of several independent normals is the largest
common_factors: probability that each of several dependent normals is the largest, by common factors
softmax_average: softmax averaged over normal latent values

Rules for averages over one normal variable g, with accuracy (digits) and time (microseconds) of one average:

E Φ : closed form; 15 digits, 0.03 μs
E of an interval of Φ or σ : `pymc_gpep.kernels.scalar.ordinal`, by log E Φ and log E σ; 15 digits, 0.1 and 1.6 μs
Asymmetric Laplace, and its log : `pymc_gpep.kernels.scalar.asymmetric_laplace`; 15 digits, 0.24 and 0.04 μs
E log Φ : `probit.log_probit_normal`; 14 digits, 1 μs
E σ, both classes : `logistic_average.logistic_normal`; 15 digits, 0.4 μs
log E σ : `logistic_average.log_logistic_normal`, four derivatives; 15 digits, 1 μs
log E σ, many times : `logistic_average.log_logistic_mixture`, two derivatives; 10 digits, 0.2 μs
E log σ : `logistic_average.average_log_logistic`; 15 digits, 0.9 μs
Powers of σ, binomial counts : `unimodal_average`, LOGISTIC; 15 digits, 6 μs
Powers of Φ : `unimodal_average`, NORMAL; 15 digits, 23 μs
Poisson counts and times : `unimodal_average`, RATE; 15 digits, 3 μs
The same, two derivatives : `unimodal_average.log_rate_normal`; 10 digits, 1.1 μs
Poisson P, count above 0 : `unimodal_average`, SOME, 15 digits, 10 μs, and SOME_AND_NONE, 14 digits, 13 μs
E log P, count above 0 : `pymc_gpep.kernels.scalar.log_rate.average_log_some`; 15 digits, 2 μs
Any log concave density : `pymc_gpep.likelihoods.averages_over_cells`, one cell; 15 digits, 17 μs
E log of a log concave density : the same module; 15 digits, 10 μs
Any other density : the same module, several cells; 14 digits, 26 μs
E log of any other density : the same module; 14 digits, 16 μs

Fourth derivatives for counts have about 13 digits, and by cells about ten. Times are for an average, in a call for
1,000 averages with variances from 0.01 to 10, on one core. The density of the last four lines is σ in plain NumPy.

Softmax of c dependent latent values: `pymc_gpep.kernels.moments.softmax_quadrature` has a rule in c − 2 dimensions for
a label, and in c − 1 for votes. A label of two classes takes 2 μs, of three 80 μs; votes take 30 and 430 μs.
"""
