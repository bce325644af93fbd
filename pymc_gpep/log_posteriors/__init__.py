"""Log posteriors of the hyperparameters, and the latent functions at given hyperparameters.

evaluation: values of a log posterior at one point, and the trace of a search
latent_functions: latent functions at given hyperparameters, from the posterior of all rows
quasi_newton: quasi-Newton steps, and a line search
hyperparameters: hyperparameters of a model as an unconstrained vector and on their natural scale
log_posterior: base class of log posteriors of the hyperparameters
dense_log_posterior: log posterior from the covariance of all rows
sparse_log_posterior: log posterior with inducing inputs
"""
