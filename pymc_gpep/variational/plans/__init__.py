"""Plans of fits: the options, the log posterior and the search of each kind of method.

plan: the contract of a plan
all_rows: methods that use the covariance of all rows
batches: methods with inducing inputs, a batch of rows at a time
inducing_inputs: methods with inducing inputs, by sweeps over all rows
plans: table of plans, and the plan of a method
"""
