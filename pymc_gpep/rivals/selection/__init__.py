"""Choice of active rows: the few rows whose labels a fit uses.

bound: variational bound over all rows, given the active ones
row_site_rules: sites of chosen rows, and scores of candidate rows
growth: posterior moments of candidate rows as active rows are added
liquid: EP over the latest active rows before their sites are fixed
greedy: greedy choice of the row with the best score
separate: active rows that each latent function chooses for itself
"""
