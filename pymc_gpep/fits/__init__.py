"""A fit and what is made of it: moments, draws, predictions, files."""
