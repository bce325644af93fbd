"""Store the numbers of all fits anew: `python -m tests.golden.make`."""

import json
import math
from pathlib import Path
from typing import Any

from tests.golden.fits import FITS, summary

__all__ = ["FILE", "make"]

FILE = Path(__file__).parent / "numbers.json"


def _without_nan(value: Any) -> Any:
    """Return the value with null for NaN, which JSON lacks."""
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def make() -> None:
    """Write a line for each number, list or text of each fit, with all digits."""
    fits = []
    for name in FITS:
        kept = summary(name)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(_without_nan(kept[key]))}" for key in kept)
        fits.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    FILE.write_text("{\n" + ",\n".join(fits) + "\n}\n")


if __name__ == "__main__":
    make()
