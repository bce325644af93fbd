"""Ordered classes by one latent function, `pm.OrderedProbit` and `pm.OrderedLogistic`."""
