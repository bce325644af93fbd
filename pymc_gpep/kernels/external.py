"""Compiled functions of SciPy (special functions, BLAS, LAPACK) for numba kernels that are cached on disk.

Kernels refer to a function by name, and each process registers the address of the function with LLVM. So machine code
on disk contains no addresses. Kernels call SciPy's OpenBLAS, with the user's thread limits.
"""

import llvmlite.binding
from numba.core import types
from numba.core.typing.templates import Signature
from numba.extending import get_cython_function_address


def scipy_function(module: str, name: str, signature: Signature) -> types.ExternalFunction:
    """Return function `name` of the Cython API of `scipy.<module>`, with a numba signature."""
    symbol = f"pymc_gpep_{name}"
    llvmlite.binding.add_symbol(symbol, get_cython_function_address(f"scipy.{module}", name))
    return types.ExternalFunction(symbol, signature)
