"""Backends that compile graphs, checked before any work: PyTensor itself checks when it compiles."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pymc.pytensorf import resolve_backend_compile_kwargs
from pytensor.compile.mode import get_mode, predefined_modes
from pytensor.link.jax import JAXLinker

from pymc_gpep.argument_types import did_you_mean


def compile_options(backend: str | None, compile_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keyword arguments of `pytensor.function` for a backend, those of `compile_kwargs` among them.

    Raises
    ------
    ValueError
        If there is no such backend, or if `compile_kwargs` have a `mode` besides.
    ModuleNotFoundError
        If the backend is JAX, and JAX is not installed.
    """
    known = ["c", *(name.lower() for name in predefined_modes)]
    if backend is not None and str(backend).lower() not in known:
        raise ValueError(
            f'backend must be "numba", "jax", "c" or another mode of PyTensor, but is {backend!r}.'
            f"{did_you_mean([backend], known)}"
        )
    options = resolve_backend_compile_kwargs(backend, compile_kwargs)
    check_installed(options)
    return options


def check_installed(compile_kwargs: dict[str, Any]) -> None:
    """Check that what a mode compiles with is there.

    Parameters
    ----------
    compile_kwargs : dict
        For `pytensor.function`.

    Raises
    ------
    ModuleNotFoundError
        If the mode is one of JAX, and JAX is not installed.
    """
    if runs_in_jax(compile_kwargs) and find_spec("jax") is None:
        raise ModuleNotFoundError(
            'The backend "jax" needs JAX, which is not installed: pip install jax. Or leave it out: then graphs are '
            "interpreted."
        )


def runs_in_jax(compile_kwargs: Mapping[str, Any]) -> bool:
    """Whether JAX runs what is compiled with these arguments of `pytensor.function`."""
    return isinstance(get_mode(compile_kwargs.get("mode")).linker, JAXLinker)
