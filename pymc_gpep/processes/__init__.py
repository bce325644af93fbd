"""Gaussian processes of a model, with prior moments at any inputs.

process_functions: covariance and mean of a process at any inputs, as graphs
stationary: stationary covariances, with length scales and profile read from the graph
cross_covariance: covariances between the rows of the data and new inputs
processes: all Gaussian processes of a model as the prior of its latent functions
"""
