"""Labels of which a part ε has nothing to do with the latent values: each class is as likely as any other."""
