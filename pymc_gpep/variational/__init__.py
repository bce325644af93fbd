"""What `pm.fit` runs and returns, in PyMC's own terms."""
