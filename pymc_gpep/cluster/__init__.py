"""EP with inducing inputs on several machines, by Dask.

rounds: tasks on parts of the data; the workers of a Dask client store the parts
cluster_log_posterior: log posterior with sites that stay on the workers
"""
