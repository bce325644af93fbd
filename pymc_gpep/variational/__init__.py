"""`pm.fit` with the methods of this package.

method_choice: choice of `method="auto"`
class_centres: initial inducing inputs at the centres of classes
model_warnings: warnings before and after a search
fit_run: progress, compile time and callbacks of a fit
plans: options, log posterior and search of each kind of method
inference: the run of `pm.fit`: read, search, integrate, report
"""
