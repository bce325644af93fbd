"""Keywords that a distribution does not have, which PyMC would leave out without a word."""

from collections.abc import Collection

_OF_PYMC = {"shape", "size", "rng", "dtype", "name", "return_next_rng"}


def refuse_others(keywords: Collection[str], written: str, advice: str = "") -> None:
    """Raise a TypeError that names keywords which are neither PyMC's nor those of a distribution, with some advice."""
    others = sorted(set(keywords) - _OF_PYMC)
    if others:
        raise TypeError(f"{written} has no argument {', '.join(map(repr, others))}.{advice and ' '}{advice}")
