"""Compiled functions of SciPy (special functions, BLAS, LAPACK) made callable from numba kernels, and cacheable.

Kernels refer to a symbol by name, and every process registers the address of the name with LLVM. So machine code on
disk holds no address. Kernels call SciPy's own OpenBLAS, with the user's thread limits.
"""

import llvmlite.binding
from numba.core import types
from numba.core.typing.templates import Signature
from numba.extending import get_cython_function_address


def scipy_function(module: str, name: str, signature: Signature) -> types.ExternalFunction:
    """Function `name` of the Cython API of `scipy.<module>` with the given numba signature."""
    symbol = f"pymc_gpep_{name}"
    llvmlite.binding.add_symbol(symbol, get_cython_function_address(f"scipy.{module}", name))
    return types.ExternalFunction(symbol, signature)
