"""Factors of a point's likelihood as expressions: one file for each way to take it apart."""
