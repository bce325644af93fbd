"""Linear algebra for kernels.

lapack: BLAS and LAPACK on matrices
small_matrices: factors of matrices with a few rows
sparse_factor: factor of a sparse symmetric matrix, and entries of its inverse
"""
