"""How each kind of method is fitted: what it takes, the log posterior that it makes, and how that is searched."""
