"""Moments of tilted distributions, and sites that match them."""
