"""Linear algebra for kernels: BLAS, LAPACK, and factors of small matrices."""
