"""`pm.fit` with these approximations, in PyMC's own terms: inference, approximation, group."""
