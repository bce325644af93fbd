"""Prior moments of the latent functions of a model, as functions of the hyperparameters.

prior_functions: compiled prior moments at the rows of the data
inducing_blocks: prior moments with inducing inputs, by blocks of rows, compiled once for each form
effects_beside: one Gaussian process plus effects, for methods with inducing inputs
inducing_sum: one Gaussian process by inducing inputs plus effects, as rows with residuals at places
precision_sum: sums of effects with a sparse precision
neighbour_sum: one nearest-neighbour Gaussian process plus effects, with a sparse precision
proper_posteriors: refusal of models whose posterior is improper under flat priors
"""
