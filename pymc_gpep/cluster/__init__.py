"""EP with inducing inputs on several machines, by Dask.

rounds: rounds of tasks on parts of the data, which the workers of a Dask client store
cluster_log_posterior: log posterior with sites that stay on the workers
"""
