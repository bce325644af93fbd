"""Gaussian processes of a model, with prior moments at any inputs.

process_functions: covariance and mean of a process at any inputs, as graphs
stationary: stationary covariances, with length scales and profile read from the graph
processes: the Gaussian processes of a model as the prior of its latent functions
neighbours: nearest neighbours of places, and regressions of a process on its values at neighbours
inducing_rows: latent values as functions of standard normals of inducing values, plus residuals
"""
