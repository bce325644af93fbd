"""Solvers as C functions, so that code which PyTensor compiles with numba can call them.

Compiled code names a solver by a symbol, which is independent of its address in a process. The function
behind it takes the interpreter's lock and runs the solver like any other caller.
"""

import _thread
import ctypes
import hashlib
import threading
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from numba.core import types

from pymc_gpep.kernels.status import CONVERGED, OUT_OF_MEMORY
from pymc_gpep.solvers.problem import Outcome

REFUSED = -1
"""Status where a solver raised a ValueError, which cannot go through compiled code."""

_int = types.int64
_ints = types.CPointer(types.int64)
_double = types.float64
_doubles = types.CPointer(_double)


def signature(observed_dtype: str) -> Any:
    """The type of such a function, for observations of a type.

    Arrays are C-ordered. The solver writes results into the last five and the start, NaN unless it converged.
    """
    observed = _ints if observed_dtype == "int64" else _doubles
    return types.void(
        _int, _int, _int, _int, _int,  # matrices of the prior (1 or c), c, n, columns of a matrix, p
        _doubles, _doubles, observed, _doubles,  # array of the prior, its mean, observations, parameters
        _doubles, _int,  # what to start from, overwritten, and how many numbers that is
        _double,  # factor on the tolerance
        _doubles, _doubles, _doubles, _doubles, _ints,  # evidence, its derivatives; status and iterations
    )  # fmt: skip


_C_TYPES: dict[Any, Any] = {
    _int: ctypes.c_int64,
    _ints: ctypes.POINTER(ctypes.c_int64),
    _double: ctypes.c_double,
    _doubles: ctypes.POINTER(ctypes.c_double),
}

_MOMENT = 0.01  # seconds

_made: dict[str, Any] = {}
"""Symbol → C function, which must live as long as code that calls it."""


def external(name: str, solve: Callable[..., Outcome], observed_dtype: str = "int64", observed_axes: int = 1) -> Any:
    """Return the function that compiled code calls to run a solver.

    It runs `solve(k, mean, labels, start, looseness, parameters, gradient=True)`.

    Parameters
    ----------
    name : str
        Name that tells this solver, with its options, from all others, in every process alike.
    solve : callable
    observed_dtype : {"int64", "float64"}
        Type of the labels.
    observed_axes : int
        Number of their axes: (n,), or (n, c) with two.
    """
    kind = signature(observed_dtype)
    symbol = f"pymc_gpep_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    if symbol not in _made:
        _made[symbol] = ctypes.CFUNCTYPE(None, *(_C_TYPES[each] for each in kind.args))(
            _on_pointers(solve, observed_axes)
        )
        llvmlite.binding.add_symbol(symbol, ctypes.cast(_made[symbol], ctypes.c_void_p).value)
    return types.ExternalFunction(symbol, kind)


def _on_pointers(solve: Callable[..., Outcome], observed_axes: int) -> Callable[..., None]:
    def call(
        matrices: int, c: int, n: int, columns: int, p: int, k_: Any, mean_: Any, labels_: Any, parameters_: Any,
        start_: Any, size: int, looseness: float,
        evidence_: Any, gradient_: Any, gradient_mean_: Any, gradient_parameters_: Any, outcome_: Any,
    ) -> None:  # fmt: skip
        array = np.ctypeslib.as_array
        evidence, outcome, start = array(evidence_, (1,)), array(outcome_, (2,)), array(start_, (size,))
        gradient, gradient_mean = array(gradient_, (matrices, n, columns)), array(gradient_mean_, (c, n))
        parameters, gradient_parameters = (
            array(values, (p, n)) if p else np.empty((0, n)) for values in (parameters_, gradient_parameters_)
        )
        evidence[:] = gradient[:] = gradient_mean[:] = gradient_parameters[:] = np.nan
        outcome[:] = OUT_OF_MEMORY, 0
        try:
            k, mean = array(k_, (matrices, n, columns)), array(mean_, (c, n))
            labels = array(labels_, (n, c)[:observed_axes])
            found = solve(k, mean, labels, start, looseness, parameters, gradient=True)
        except KeyboardInterrupt:
            # Nothing can be raised through compiled code: interrupt again in a moment, when it will have returned.
            threading.Timer(_MOMENT, _thread.interrupt_main).start()
            return
        except ValueError:
            outcome[:] = REFUSED, 0
            return
        outcome[:] = found.status, found.iterations
        start[:] = found.start
        if found.status == CONVERGED:
            evidence[:], gradient[:], gradient_mean[:] = found.evidence, found.gradient, found.gradient_mean
            if p:
                gradient_parameters[:] = found.gradient_parameters

    return call
