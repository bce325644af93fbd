"""Columns of a data frame as inputs of a Gaussian process.

table: data frames and arrays, by column
columns: covariance function and priors for the columns of a table
spline: a column as a smooth term
"""
