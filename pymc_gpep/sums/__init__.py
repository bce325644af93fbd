"""Latent functions that are sums of effects, as affine functions of standard normals.

affine_map: expressions as affine functions of standard normals and of values of processes
row_parts: rows of a sum, as products of data with effects
effect_sum: sums of effects at the rows of the data, with their prior moments
sparse_slopes: coefficients of rows, of which few differ from zero
sum_values: standard normals of a sum, as samplers move them
levels: levels of groups in new data
new_levels: levels that the model does not have
sum_elsewhere: sums at new rows
effects_elsewhere: the model's variables at new data
latent_sum: the prior of a sum
row_groups: rows that have the same latent value
effects_of_rows: coefficients of chosen rows, for batches
"""
