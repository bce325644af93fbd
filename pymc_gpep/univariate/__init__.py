"""Any univariate likelihood of PyMC, from its log density.

row_cut: graphs with one number a row, as functions of arrays
outcomes: moments of an observation, by formula or by integral
density: log density of an observed variable at each row
likelihood: the likelihood made from that density
predictors: the likelihood of several linear predictors
prior_factor: the prior of an effect that is not normal, as a factor of EP
local_scales: the prior of an effect with local scales, as a factor of EP
"""
