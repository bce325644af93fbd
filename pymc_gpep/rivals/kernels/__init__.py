"""Compiled loops of the methods in this room.

quadrature_ep: EP of a multinomial probit by quadrature
class_independent: EP whose sites leave the classes independent
active_rows: scores of candidate rows, and the posterior with one more row
"""
