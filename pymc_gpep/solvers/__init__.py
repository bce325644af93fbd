"""Solvers: iterations in plain Python over kernels, from a prior and labels to a posterior.

An iteration takes some tens of microseconds longer than in compiled code. It can be interrupted, and shared out over
threads.

team: threads for BLAS and for independent work
problem: the contract of a solver, its problem, and its result
prior_form: the contract of a prior covariance in a solver
coefficients: rows of coefficients, dense or sparse
dense_form: prior covariance as a matrix
row_form: prior covariance by rows of coefficients
sparse_precision: factor of a sparse precision
precision_form: prior covariance by a sparse precision
newton: Newton's method for the mode of the latent values
scalar_bound: iteration that maximises a variational bound
accelerated_ep: iteration of EP with acceleration, and its fallback sequence
block_ep: nested EP: the posterior that inner sites imply
inducing: features of rows with respect to inducing values
whitened_posterior: posterior of the inducing values
common_shift: shift of all latent functions, which labels do not see, solved for
sparse_sweeps: the contract of a sweep over sites with inducing inputs
sparse_ep: sweep of EP with scalar sites
coupled_sparse_ep: sweep of nested EP
sparse_vi: sweep of variational inference
step_blocks: prior moments that a step over a batch uses
step_algebra: algebra of a step over a batch
batch_sites: sites of a batch
relay: solvers as C functions, for graphs that numba compiles
"""
