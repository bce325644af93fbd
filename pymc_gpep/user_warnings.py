"""Warnings that point at the user's line, however deep in the package they arise."""

import contextlib
import os
import warnings
from pathlib import Path

import pymc as pm

_NOT_THE_USER = (
    str(Path(__file__).parent) + os.sep,
    str(Path(pm.__file__).parent) + os.sep,
    str(Path(contextlib.__file__).with_suffix("")),  # decorators' frames; a full path is not its own prefix here
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither this package's nor PyMC's."""
    warnings.warn(message, category, skip_file_prefixes=_NOT_THE_USER)
