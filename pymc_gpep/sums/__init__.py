"""Latent functions that are sums of effects, as affine functions of standard normals."""
