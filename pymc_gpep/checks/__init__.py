"""Checks of a fit: importance sampling, leave-one-out, annealing, corrections of the evidence."""
