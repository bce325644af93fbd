"""Rows of data wherever they are: in memory, or read chunk by chunk."""
