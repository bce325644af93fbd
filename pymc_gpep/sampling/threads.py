"""One BLAS thread for a step: chains run side by side, and more threads than processors cost more than they bring."""

from contextlib import nullcontext
from functools import cache
from multiprocessing import parent_process
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


@cache
def _controller() -> ThreadpoolController:
    # Looking for the libraries takes longer than a step.
    return ThreadpoolController()


@cache
def _limited_for_good() -> bool:
    _controller().limit(limits=1, user_api="blas")
    return True


def one_thread() -> Any:
    """A context in which BLAS and LAPACK use one thread.

    A process that was started to run a chain keeps to one: raising the number after every step would wake threads that
    wait for work busily, beside the other chains.
    """
    if parent_process() is not None and _limited_for_good():
        return nullcontext()
    return _controller().limit(limits=1, user_api="blas")
