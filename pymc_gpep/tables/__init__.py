"""Columns of a data frame as inputs of a Gaussian process, or as a smooth term.

table: data frames and arrays as lists of columns, and the encoding of a column
columns: covariance function and priors for the columns of a table
spline: a column of numbers as a smooth term
"""
