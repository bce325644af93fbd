"""Compiled inner loops, called kernels: serial numba on NumPy arrays, without PyMC and PyTensor.

compile: compiler of kernels, and their cache on disk
external: SciPy's special functions, BLAS and LAPACK for compiled code
status: status codes of a solver
linalg: factors of dense, small and sparse matrices
special: normal distribution functions, and integrals over normal variables
scalar: likelihoods of one latent function
likelihoods: likelihoods of several latent functions
gaussians: Gaussian posteriors, by the structure of their sites
moments: moments of tilted distributions, and sites that match these moments
methods: updates of the sites of all points, by method
acceleration: Anderson acceleration of a fixed-point iteration
sampling: draws of utilities and latent values
"""
