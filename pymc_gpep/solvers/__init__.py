"""Solvers: iterations in plain Python over kernels, from a prior and labels to a posterior.

An iteration takes some tens of microseconds longer than in compiled code, but a user can interrupt it, and several
threads can share its work.

team: threads for BLAS and for independent work
site_algebra: base class of the algebra of sites that couple functions
problem: interface of a solver: prior, problem, result; posterior of one function
coefficients: rows of coefficients, dense or sparse
dissection: order of a sparse matrix whose rows have places
sparse_precision: factor of a sparse precision
neighbour_precision: precision of a nearest-neighbour process
newton: Newton's method for the mode of the latent values
scalar_bound: iteration that maximises a variational bound
site_ep: EP as a fixed point of sites: sweep, iteration, fallback sequence
inducing: features of rows with respect to inducing values
whitened_posterior: posterior of the inducing values
common_shift: shift of all latent functions that does not change the likelihood
sparse_sweeps: base classes of sweeps over sites with inducing inputs
sparse_ep: sweeps of EP, of nested EP and of variational inference
step_arrays: array library of a step: NumPy, BLAS and kernels
step_algebra: prior moments and algebra of a step over a batch
"""
