"""Any univariate likelihood of PyMC, from its log density.

row_cut: graphs with one number for each row, as functions of arrays
outcomes: moments of an observation, by formulas or by integrals
density: log density of an observed variable in each row
kept_nodes: averages of densities whose values at nodes are kept between sweeps
likelihood: likelihood of one linear predictor, made from that density
predictors: likelihood of several linear predictors
prior_factor: the prior of an effect that is not normal, as a factor of EP
local_scales: the prior of an effect with local scales, as a factor of EP
"""
