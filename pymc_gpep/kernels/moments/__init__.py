"""Moments of tilted distributions, and the sites that match them.

inner_ep: inner EP of a point under a multinomial probit
full_sites: sites of a point with a full precision matrix
softmax_quadrature: moments under a softmax by quadrature
predictor_sites: cavities, tilted moments and sites of several predictors
coupled_projection: nearest site of the form that couples classes
"""
