"""Prior moments of the latent functions of a model, as functions of the hyperparameters.

prior_functions: prior moments at the rows of the data, compiled
inducing_blocks: prior moments with inducing inputs, by blocks of rows
effects_beside: a Gaussian process plus effects, for methods with inducing inputs
inducing_sum: a process with inducing inputs plus effects, with a residual at each place
precision_sum: sums of effects with a sparse precision
neighbour_sum: a nearest-neighbour Gaussian process plus effects, with a sparse precision
proper_posteriors: errors for models whose posterior is improper under flat priors
"""
