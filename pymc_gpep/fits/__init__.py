"""A fit, and results that are computed from a fit: moments, predictions, draws, files.

mixture: means and covariances of a mixture of Gaussians over nodes of the hyperparameters
datasets: xarray datasets with the dims and coordinates of the model
fitted: the parts of a fit: log posterior, search, and weighted nodes of the hyperparameters
marginals: marginals of effects that are not Gaussian, and draws of the variables of a model
prediction: predictions at new rows: class probabilities, intervals, quantiles of observations
effects: moments of effects, and contrasts of effects
cross_validation: leave-one-out scores of a fit
summary: tables of posterior means, intervals and skewed marginals, as in `arviz.summary`
sample: draws from a fit, and checks of it by importance sampling
saving: a fit as a DataTree for netCDF and Zarr files
fit: the object that `pm.fit` returns, with its methods
loading: read a fit from a DataTree or a file
callbacks: callbacks during a fit: checkpoints and early stopping
recover_latent: latent values for draws of a marginal model
"""
