"""Which name was meant by one that there is not."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> str:
    """A question for the end of a message, from names that there are not and those that there are; or nothing."""
    there = sorted(set(known))
    meant = (get_close_matches(name.lower(), there, n=1) for name in names)
    found = dict.fromkeys(repr(each) for one in meant for each in one)
    return f" Did you mean {' and '.join(found)}?" if found else ""
