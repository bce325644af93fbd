"""Which name was meant by one that there is not."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> str:
    """A question for the end of a message, from names that there are not and those that there are; or nothing."""
    there = sorted(set(known))
    meant = (_nearest(name.lower(), there) for name in names)
    found = dict.fromkeys(repr(each) for one in meant for each in one)
    return f" Did you mean {' and '.join(found)}?" if found else ""


def _nearest(name: str, known: list[str]) -> list[str]:
    """One that differs little, or else the first that begins like it: half a name is not close to the whole."""
    return get_close_matches(name, known, n=1) or [each for each in known if name and each.startswith(name)][:1]
