"""Compiled loops of the methods in this package.

quadrature_ep: EP of a multinomial probit by quadrature
class_independent: EP with independent latent functions in the posterior
active_rows: scores of candidate rows, and the posterior with one more row
"""
