"""Any univariate likelihood of PyMC, by its own log density."""
