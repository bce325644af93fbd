"""Warnings that point at a line of the user's code."""

import contextlib
import os
import warnings
from pathlib import Path

import pymc as pm

_NOT_THE_USER = (
    str(Path(__file__).parent) + os.sep,
    str(Path(pm.__file__).parent) + os.sep,
    # Frames of decorators. The suffix is removed, since a prefix must be shorter than the path.
    str(Path(contextlib.__file__).with_suffix("")),
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside this package and PyMC."""
    warnings.warn(message, category, skip_file_prefixes=_NOT_THE_USER)
