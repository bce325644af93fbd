"""Choice of active rows: the few rows whose labels a fit uses.

row_site_rules: sites of chosen rows, scores of candidate rows, and the bound over all rows
greedy: greedy choice of the row with the best score, as the posterior grows
"""
