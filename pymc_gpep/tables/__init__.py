"""Columns of a table as inputs of a Gaussian process: numbers that are standardised, and categories."""
