"""Moments of tilted distributions, and sites that match these moments.

inner_ep: inner EP of a point under a multinomial probit
full_sites: sites of a point with a full precision matrix
softmax_quadrature: moments under a softmax by quadrature
predictor_sites: cavities, tilted moments and sites of several predictors
coupled_projection: the site with coupled classes that is nearest to a tilted distribution
"""
