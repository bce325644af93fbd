"""Results of slow references that never change, stored in `numbers.json`, and the command that makes them.

The following command computes the values that tests use and the file lacks, and adds them to the file:

    cd tests
    export STORE_NUMBERS=1
    ../.venv/bin/python -m pytest -m "" approximations checks fits kernels likelihoods reference samplers

To make the whole file again, delete the file first. Without the variable, each run computes missing values again.
"""

import atexit
import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FILE", "stored"]

FILE = Path(__file__).parent / "numbers.json"
_numbers: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
_new: dict[str, Any] = {}


def _key(name: str, arguments: tuple[Any, ...]) -> str:
    # `repr` of a float has all digits
    text = repr([np.asarray(each).tolist() for each in arguments])
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _store() -> None:
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted((kept | _new).items()))
    FILE.write_text(f"{{\n{lines}\n}}\n")


def stored(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that looks up its result in the file, and computes results that the file lacks.

    Arguments are numbers, arrays and names. A result is a number or an array. The attribute `__wrapped__` is the
    original function.
    """
    name = f"{function.__module__.removeprefix('tests.')}.{function.__name__}"

    @functools.wraps(function)
    def look_up(*arguments: Any) -> Any:
        key = _key(name, arguments)
        if key not in _numbers:
            _numbers[key] = _new[key] = np.asarray(function(*arguments), dtype=float).tolist()
            if "STORE_NUMBERS" in os.environ and len(_new) == 1:
                atexit.register(_store)
        value = _numbers[key]
        return np.array(value) if isinstance(value, list) else value

    return look_up
