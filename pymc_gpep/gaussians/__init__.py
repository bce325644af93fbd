"""Gaussian priors and sites, and the posteriors that they imply.

sites: sites in their forms: diagonal, a block for each point, or of any sign
prior_form: base classes of priors, and of the linear algebra with a prior and sites
dense_algebra: linear algebra with a dense prior covariance
prior: prior with a covariance matrix, and the posterior of a single function
row_prior: prior by rows of coefficients of standard normals, and its algebra
place_prior: prior by rows of coefficients with a residual at each place, and its algebra
precision_prior: prior with a sparse precision, or with nearest neighbours, and its algebra
posterior: the posterior of latent functions, and the table of algebras by forms of prior and sites
whitening: latent values as functions of standard normals, and draws given utilities of a probit
inducing_posterior: posterior at any inputs, from inducing values
ellipse: elliptical slice sampling of a Gaussian vector
"""
