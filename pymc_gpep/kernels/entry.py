"""One compiled function per approximation, with a C signature, called from Python and from PyTensor's numba graphs.

numba would otherwise compile the whole solver anew into every graph that holds it, for seconds each time. Here the
machine code is made once, kept on disk, and reached through its address: under a symbol's name from compiled code,
through ctypes (which lets go of the interpreter's lock) from Python.
"""

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
from numba.core import types
from numba.core.ccallback import CFunc
from numpy.typing import NDArray

from pymc_gpep.kernels.compile import follow_source
from pymc_gpep.kernels.status import OUT_OF_MEMORY

__all__ = ["SIGNATURE", "Entry", "Outcome"]

_int = types.int64
_ints = types.CPointer(types.int64)
_doubles = types.CPointer(types.float64)

SIGNATURE = types.void(
    _int, _int, _int,  # covariance matrices (1 or c), c, n
    _doubles, _doubles, _ints,  # prior covariance, prior mean, labels
    _doubles,  # sites, to start from and overwritten; zeros are a cold start
    _doubles,  # options
    _int,  # whether the gradient is wanted
    _doubles, _doubles, _doubles,  # evidence, its derivatives with respect to prior covariance and mean
    _doubles, _doubles, _doubles, _doubles,  # weights, posterior mean, marginal covariances, site precisions
    _doubles, _int, _ints,  # history (iterations, 2) and its length; status, iterations and rung
)  # fmt: skip
"""Arrays are C-ordered; what is computed is written into them."""


_C_TYPES: dict[Any, Any] = {
    _int: ctypes.c_int64,
    _ints: ctypes.POINTER(ctypes.c_int64),
    _doubles: ctypes.POINTER(ctypes.c_double),
}


class Outcome(NamedTuple):
    """What a solver computed."""

    evidence: float
    gradient: NDArray[np.float64]
    """d evidence / d prior covariance, (1 or c, n, n); empty unless it was wanted."""
    gradient_mean: NDArray[np.float64]
    """d evidence / d prior mean, (c, n); empty unless it was wanted."""
    weights: NDArray[np.float64]
    """K⁻¹ (posterior mean − prior mean), (c, n)."""
    mean: NDArray[np.float64]
    cov: NDArray[np.float64]
    precision: NDArray[np.float64]
    """Site precisions, in the shape of the approximation's posterior."""
    sites: NDArray[np.float64]
    history: NDArray[np.float64]
    """Evidence and residual at each iteration, (iterations, 2)."""
    status: int
    iterations: int
    rung: int
    """Which of the solver's schemes had the last word, 0 for its first."""


class Entry:
    """A solver with the C signature above, compiled when first used.

    Parameters
    ----------
    function : callable
        Body, in the subset of Python that numba compiles.
    calls : tuple of Entry
        Those whose `external` the body calls.
    late : bool
        Whether to compile not when loaded but when first called, even from compiled code.
    """

    def __init__(self, function: Callable[..., None], calls: tuple["Entry", ...] = (), late: bool = False) -> None:
        self._function = function
        self._calls = calls
        self._late = late
        self.symbol = f"pymc_gpep_{function.__name__}"
        self.external: Any = types.ExternalFunction(self.symbol, SIGNATURE)
        """What compiled code calls, once `load` has run in its process."""

    @cached_property
    def _compiled(self) -> Any:
        for entry in self._calls:
            entry.load()
        compiled = CFunc(self._function, (SIGNATURE.args, SIGNATURE.return_type), {}, {"error_model": "numpy"})
        compiled.enable_caching()
        follow_source(compiled)
        compiled.compile()
        return compiled

    def load(self) -> None:
        """Compile, or read from disk, and give the symbol its address in this process."""
        address = ctypes.cast(self._relay, ctypes.c_void_p).value if self._late else self._compiled.address
        llvmlite.binding.add_symbol(self.symbol, address)

    @cached_property
    def _relay(self) -> Any:
        """A C function that calls Python, which compiles the body and calls that."""
        return ctypes.CFUNCTYPE(None, *(_C_TYPES[kind] for kind in SIGNATURE.args))(
            lambda *arguments: self._compiled.ctypes(*arguments)
        )

    def __call__(
        self,
        k: NDArray[np.float64],
        prior_mean: NDArray[np.float64],
        labels: NDArray[np.int64],
        sites: NDArray[np.float64],
        options: tuple[float, ...],
        max_iterations: int,
        precision_shape: tuple[int, ...],
        gradient: bool,
    ) -> Outcome:
        """Run the solver on C-ordered arrays of the right shapes; `sites` is not overwritten."""
        c, n = prior_mean.shape
        sites = sites.copy()
        evidence = np.full(1, np.nan)
        slope = np.full(k.shape if gradient else 0, np.nan)
        slope_mean = np.full((c, n) if gradient else 0, np.nan)
        weights, mean = np.full((2, c, n), np.nan)
        precision = np.full(precision_shape, np.nan)
        cov = np.full((n, c, c), np.nan)
        history = np.empty((max_iterations, 2))
        status = np.array([OUT_OF_MEMORY, 0, 0])
        arrays = (evidence, slope, slope_mean, weights, mean, cov, precision, history)
        pointers = [_double_pointer(array) for array in arrays]
        self._compiled.ctypes(
            len(k), c, n, _double_pointer(k), _double_pointer(prior_mean), _int_pointer(labels),
            _double_pointer(sites), _double_pointer(np.array(options, float)), gradient,
            *pointers, max_iterations, _int_pointer(status),
        )  # fmt: skip
        code, iterations, rung = map(int, status)
        history = history[:iterations]
        return Outcome(
            float(evidence[0]), slope, slope_mean, weights, mean, cov, precision, sites, history, code, iterations, rung
        )


def _double_pointer(array: NDArray[np.float64]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_double))


def _int_pointer(array: NDArray[np.int64]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
