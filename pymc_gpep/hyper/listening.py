"""Work in other threads that calls back to the one that waits for it: what users are called with runs in theirs."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

__all__ = ["Listener"]

_MOMENT = 0.5  # seconds after which somebody who waits looks whether all is over


class Listener:
    """A thread that answers calls of others until their work is done.

    Whatever a call raises ends the work, and so does an interrupt (Ctrl-C), which only the main thread is told of.

    Parameters
    ----------
    answer : callable
        What calls are for, one at a time, in the thread that listens.

    Attributes
    ----------
    ended_by : BaseException or None
        What ended the work before it was done.
    """

    def __init__(self, answer: Callable[..., None]) -> None:
        self._answer = answer
        self._calls: SimpleQueue[tuple[tuple[Any, ...], Future[None]] | None] = SimpleQueue()
        self._over = Event()
        self.ended_by: BaseException | None = None

    def check(self) -> None:
        """In any thread: raise a KeyboardInterrupt if the work has been ended."""
        if self._over.is_set():
            raise KeyboardInterrupt

    def call(self, *arguments: Any) -> None:
        """In another thread: have `answer(*arguments)` called, and raise a KeyboardInterrupt where that ends the work.

        A StopIteration of the answer's is raised as such.
        """
        answered: Future[None] = Future()
        self.check()
        self._calls.put((arguments, answered))
        while not answered.done():
            self.check()
            wait([answered], _MOMENT)
        answered.result()

    def during[R](self, work: Callable[[], R]) -> R:
        """Run `work` in another thread and answer its calls; it may share itself out over more threads.

        Returns
        -------
        What the work does, which is to come to an end where a call or `check` raises.

        Raises
        ------
        BaseException
            What the work raises, or what the answer to a call raised; but not StopIteration and KeyboardInterrupt of
            the answer, which end the work like an interrupt.
        """
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(copy_context().run, work)
            done.add_done_callback(lambda _: self._calls.put(None))
            while True:
                # An interrupt can come between any two steps, and leave a call without an answer; `call` sees to that.
                try:
                    while not done.done():
                        self._listen()
                    break
                except KeyboardInterrupt as interrupt:
                    self.end(interrupt)
        if self.ended_by is not None and not isinstance(self.ended_by, StopIteration | KeyboardInterrupt):
            raise self.ended_by
        return done.result()

    def end(self, by: BaseException) -> None:
        """In any thread: end the work, unless it has been."""
        if self.ended_by is None:
            self.ended_by = by
        self._over.set()

    def _listen(self) -> None:
        try:
            call = self._calls.get(timeout=_MOMENT)
        except Empty:
            return
        if call is None:
            return
        arguments, answered = call
        if self._over.is_set():
            answered.set_exception(KeyboardInterrupt())
            return
        try:
            self._answer(*arguments)
        except BaseException as error:
            self.end(error)
            answered.set_exception(error if isinstance(error, StopIteration) else KeyboardInterrupt())
        else:
            answered.set_result(None)
