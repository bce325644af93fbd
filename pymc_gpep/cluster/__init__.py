"""EP with inducing inputs on several machines, by Dask.

rounds: rounds of tasks on parts of the data, which the workers of a Dask client hold
sites: sites that stay on the workers, as vectors that the EP iteration adds and scales
cluster_log_posterior: log posterior of hyperparameters and inducing inputs, by the workers
"""
