"""The likelihoods, a folder each, and the registry by which models and approximations know them."""
