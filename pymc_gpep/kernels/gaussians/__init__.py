"""Gaussian posteriors implied by sites, by the structure of the sites.

independent: one latent function under scalar sites, from its covariance matrix; Newton's direction
coupled: several functions under sites that couple the classes of a point
block_sites: several functions under sites with any precision matrix a point
whitening: map from standard normals to latent values with a coupled posterior
neighbours: nearest neighbours of places, and regressions of each place on its neighbours
sparse_rows: products with rows that have few coefficients
"""
