"""Prior moments of the latent functions of a model, as functions of the hyperparameters."""
