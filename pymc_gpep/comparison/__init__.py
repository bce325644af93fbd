"""Comparisons of fits and of draws from samplers, and the evidence over a grid of hyperparameters.

held_out_scores: scores on held-out points, and their Bayesian bootstrap
fits_and_draws: latent values, hyperparameters and predictions, from fits or from draws of samplers
table: table of methods with distances from a reference and scores of predictions
evidence_grid: evidence and held-out scores over a grid of hyperparameters
"""
