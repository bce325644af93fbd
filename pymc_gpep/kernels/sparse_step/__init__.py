"""Loops over the rows of a batch, of a step that functions with common features take."""
