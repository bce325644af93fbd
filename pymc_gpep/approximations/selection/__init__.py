"""Choosing the rows that a posterior stands on, and what all rows have to say about it."""
