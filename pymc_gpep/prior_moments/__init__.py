"""Prior moments of the latent functions of a model, as functions of the hyperparameters.

prior_functions: compiled prior moments at the rows of the data
moment_functions: compiled moments with inducing inputs, shared by models of one form
inducing_blocks: prior moments with inducing inputs, a block of rows at a time
effects_beside: one Gaussian process plus effects, for methods with inducing inputs
precision_sum: sums of effects with a sparse precision
drawn_sums: latent functions from draws of the model's variables
"""
