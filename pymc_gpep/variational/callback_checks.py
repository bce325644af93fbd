"""What `callbacks` may be, looked at before any work."""

from typing import Any

from pymc_gpep.fits.callback import Callback

__all__ = ["check_callbacks"]


def check_callbacks(callbacks: Any, method: str, batches: bool) -> None:
    """Raise a TypeError unless callbacks are functions, and fit the fit; tell each `Callback` that this begins.

    Parameters
    ----------
    callbacks : list of functions of (fit, losses, iteration), or None
    method : str
        Of the fit.
    batches : bool
        Whether it goes batch by batch.
    """
    if callbacks is None:
        return
    if not isinstance(callbacks, list | tuple):
        what = f"the class {callbacks.__name__}" if isinstance(callbacks, type) else f"a {type(callbacks).__name__}"
        raise TypeError(
            f"callbacks must be a list of functions of (fit, losses, iteration), but is {what}. Put it into a list."
        )
    for each in callbacks:
        if isinstance(each, type) or not callable(each):
            what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
            raise TypeError(f"callbacks has {what}, and needs functions of (fit, losses, iteration).")
        if isinstance(each, Callback):
            each.begin(method, batches)
