"""Comparisons of fits and draws, and the evidence over a grid.

held_out_scores: Bayesian bootstrap of scores on held-out points
fits_and_draws: functions that read fits and draws of samplers in the same way
table: table of methods with distances from a reference and scores of predictions
evidence_grid: evidence and held-out scores over a grid of hyperparameters
"""
