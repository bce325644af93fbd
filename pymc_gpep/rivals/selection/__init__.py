"""Choice of active rows: the few rows whose labels a fit uses.

bound: variational bound over all rows, given the active ones
row_site_rules: sites of chosen rows, and scores of candidate rows
growth: posterior of candidate rows as active rows are added, with EP over the latest of these
greedy: greedy choice of the row with the best score
separate: active rows that each latent function chooses for itself
"""
