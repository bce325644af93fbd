"""Log probabilities of labels at many points, and their derivatives in the latent values."""
