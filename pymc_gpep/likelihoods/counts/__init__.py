"""Counts by the logarithm of their odds or their rate: `pm.Binomial`, `pm.NegativeBinomial`."""
