"""Gaussian priors and sites, and the posteriors that they imply.

sites: sites in their forms: diagonal, one block a point, or of any sign
prior_form: the contracts of a form of prior and of its algebra
dense_algebra: algebra of a covariance matrix
prior: prior with a covariance matrix, and the posterior of one function
row_prior: prior by rows of coefficients, and its algebra
place_prior: prior by rows with a residual at each place, and its algebra
precision_prior: prior by a sparse precision, or by nearest neighbours, and its algebra
posterior: the posterior of latent functions, and its algebra by the forms of prior and sites
whitening: latent values by standard normals, and given the utilities of a probit
inducing_posterior: posterior at any inputs, from inducing values
ellipse: elliptical slice sampling of a Gaussian vector
"""
