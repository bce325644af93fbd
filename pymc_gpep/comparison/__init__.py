"""Fits and draws side by side, and evidence over a grid."""
