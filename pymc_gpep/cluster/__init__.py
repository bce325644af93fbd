"""EP with inducing inputs on several machines, by Dask."""
