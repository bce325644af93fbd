"""Plans of fits: the options, the log posterior and the search of each kind of method.

plan: the protocol of a plan
all_rows: methods that use the covariance of all rows
batches: methods with inducing inputs, by batches of rows
inducing_inputs: methods with inducing inputs, by sweeps over all rows
plans: table of plans, and the plan of a method
"""
