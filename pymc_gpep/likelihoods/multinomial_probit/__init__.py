"""The multinomial probit: the largest of the latent values, each with unit normal noise."""
