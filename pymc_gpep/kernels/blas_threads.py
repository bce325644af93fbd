"""One BLAS thread for small matrices: more of them cost more than they bring, and much more beside other processes.

The number of threads is a setting of the whole process. Who finds it at 1 changes nothing, and who has lowered it puts
back what it was, so however solves in several threads overlap, it ends as the user left it. OpenBLAS only; other
libraries are left alone.
"""

import ctypes

import llvmlite.binding
import numpy as np
from numba.core import types
from threadpoolctl import ThreadpoolController

from pymc_gpep.kernels.compile import kernel

__all__ = ["limit_blas_threads", "restore_blas_threads"]

_SMALL = 200  # points
_GET, _SET = "pymc_gpep_get_blas_threads", "pymc_gpep_set_blas_threads"


@ctypes.CFUNCTYPE(ctypes.c_int)
def _one():
    return 1


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _nothing(threads):
    pass


def _controls():
    """The functions of the OpenBLAS that SciPy calls which read and set its number of threads."""
    libraries = ThreadpoolController().select(internal_api="openblas").lib_controllers
    for library in sorted(libraries, key=lambda library: "scipy" not in library.filepath):
        for prefix in ("scipy_", ""):  # SciPy's wheels rename the symbols; those of NumPy's end in 64_
            get = getattr(library.dynlib, f"{prefix}openblas_get_num_threads", None)
            if get is not None:
                return get, getattr(library.dynlib, f"{prefix}openblas_set_num_threads")
    return _one, _nothing


for _name, _function in zip((_GET, _SET), _controls(), strict=True):
    llvmlite.binding.add_symbol(_name, ctypes.cast(_function, ctypes.c_void_p).value)

_get_threads = types.ExternalFunction(_GET, types.int32())
_set_threads = types.ExternalFunction(_SET, types.void(types.int32))


@kernel
def limit_blas_threads(n):
    """Go down to one thread if matrices are n × n with a small n; returns what to give to `restore_blas_threads`."""
    threads = _get_threads()
    if n > _SMALL or threads <= 1:
        return np.int32(0)
    _set_threads(np.int32(1))
    return threads


@kernel
def restore_blas_threads(threads):
    """Put back what `limit_blas_threads` changed."""
    if threads > 0:
        _set_threads(threads)
