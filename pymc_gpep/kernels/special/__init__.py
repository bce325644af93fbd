"""Special functions, and integrals over normal distributions."""
