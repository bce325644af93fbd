"""What backends of PyTensor need installed, asked before any work: PyTensor itself asks when it compiles."""

from importlib.util import find_spec
from typing import Any

from pytensor.compile.mode import get_mode
from pytensor.link.jax import JAXLinker

__all__ = ["check_installed"]


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
    if isinstance(get_mode(compile_kwargs.get("mode")).linker, JAXLinker) and find_spec("jax") is None:
        raise ModuleNotFoundError(
            'The backend "jax" needs JAX, which is not installed: pip install jax. Or leave it out: then graphs are '
            "interpreted."
        )
