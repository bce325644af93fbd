"""Latent functions that are sums of effects. They are computed as affine functions of standard normals.

affine_map: expressions as affine functions of standard normals and of values of processes
row_parts: coefficients of rows in parts, and Gaussian processes as terms of a sum
effect_sum: sums of effects at the rows of the data, with their prior moments
sum_values: the variables of a model as functions of standard normals, for fits and samplers
new_data: data of new rows, and the levels that an index selects
sum_at_new_rows: sums at new rows, also with levels that are not in the model
latent_sum: the prior of a sum, and variables of the model at new data
row_groups: rows that have the same latent value
effects_of_rows: coefficients of selected rows, for batches
"""
