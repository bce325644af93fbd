"""Gaussian priors and sites, and the posteriors that they imply.

prior: prior of latent values with a covariance matrix, and the contract of all priors
row_prior: prior of sums of effects, by rows of coefficients
sites: sites in their forms: diagonal, one block a point, or of any sign
whitening: latent values as a function of independent standard normals
posterior: the contract of a posterior, and posteriors with a covariance matrix
independent: posterior whose sites leave the latent functions independent
coupled: posterior whose sites couple the latent functions of a point
row_posterior: posterior by rows of coefficients; posteriors with block sites or sites of any sign
inducing_posterior: posterior at any inputs, from inducing values
posteriors: table of posteriors by the forms of prior and sites
ellipse: elliptical slice sampling of a Gaussian vector
given_utilities: latent values given the utilities of a probit, for Gibbs sampling
"""
