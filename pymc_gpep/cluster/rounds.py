"""Rounds of work on the parts of a fit, by a client of `dask.distributed`: what is sent, where, and how sums come back.

Each part stays with a worker. A round sends one message to all workers, and every part does something with it. The
round adds what they return in a tree whose order depends on nothing. A worker that is gone takes its parts with it.
Other workers make them anew, and the caller learns which ones.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle

from pymc_gpep.cluster.part import Part, Recipe, Sums, Task, added

if TYPE_CHECKING:
    from distributed import Client, Future

_TOGETHER = 8  # sums that are added at a time
_PATIENCE = 1.0  # seconds after which somebody looks whether workers are still there
_TRIES = 20


class LostPartsError(RuntimeError):
    """Parts whose worker is gone, and that have been made anew."""

    def __init__(self, parts: Sequence[int]) -> None:
        super().__init__(f"Parts {list(parts)} were lost.")
        self.parts = tuple(parts)


class Rounds:
    """The parts of a fit, and what they are asked for.

    Parameters
    ----------
    client : distributed.Client
    recipes : sequence of Recipe
        One for each part.
    """

    def __init__(self, client: "Client", recipes: Sequence[Recipe]) -> None:
        self._client = client
        # A copy for each part: graphs keep what they compute in storage of their own.
        self._recipes = [cloudpickle.dumps(recipe) for recipe in recipes]
        self._parts: dict[int, Future[Any]] = {}
        self._homes = [""] * len(recipes)
        self._make(range(len(recipes)))
        self.number = 0
        """Of the last round."""

    def _make(self, parts: Sequence[int]) -> None:
        """Have parts made, by workers in turn, and see where they are."""
        workers = sorted(self._workers())
        while not workers:
            self._client.wait_for_workers(1)
            workers = sorted(self._workers())
        for part in parts:
            self._parts[part] = self._client.submit(
                _made, part, self._recipes[part], workers=[workers[part % len(workers)]], allow_other_workers=True,
                pure=False,
            )  # fmt: skip
        found = [self._parts[part] for part in parts]
        self._wait(found)
        homes = self._client.who_has(found)
        for part in parts:
            if self._parts[part].status == "error":
                self._parts[part].result()  # raises what was raised there
            self._homes[part] = next(iter(homes.get(self._parts[part].key, ())), "")

    def _workers(self) -> set[str]:
        # `Client.scheduler_info` sometimes names no worker: a client asks for it without them now and then, beside us.
        return set(self._client.nthreads())

    def _wait(self, futures: Sequence["Future[Any]"], homes: Sequence[str] = ()) -> bool:
        """Wait for futures; False as soon as one of the workers that are to make them is gone."""
        from distributed import CancelledError, wait

        while True:
            try:
                wait(list(futures), timeout=_PATIENCE)
            except TimeoutError:
                if set(homes) - self._workers():
                    return False
            except CancelledError:
                return False
            else:
                return True

    def ask(self, task: Task) -> Sums:
        """Have every part do the next thing.

        Raises
        ------
        LostPartsError
            If there are parts that could not, and that have been made anew.
        """
        self.number += 1
        return self._sum(range(len(self._parts)), _Act(self.number, task))

    def tell(self, parts: Sequence[int], task: Task) -> Sums:
        """Have some parts do something, whatever they have done before."""
        return self._sum(parts, task)

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def _sum(self, parts: Sequence[int], task: Task) -> Sums:
        # The result of a task, not scattered: what goes with a worker is made again, and nobody waits for it.
        message = self._client.submit(_carried, cloudpickle.dumps(task), pure=False)
        found = [
            self._client.submit(_done, self._parts[part], message, workers=[self._homes[part]], pure=False)
            for part in parts
        ]
        level = found
        while len(level) > 1:
            level = [
                self._client.submit(added, *level[start : start + _TOGETHER], pure=False)
                for start in range(0, len(level), _TOGETHER)
            ]
        if self._wait(level, [self._homes[part] for part in parts]) and level[0].status == "finished":
            total: Sums = level[0].result()
            if not total.lost:
                return total
            lost = total.lost
        else:
            here = self._workers()
            living = [place for place, part in enumerate(parts) if self._homes[part] in here]
            self._wait([found[place] for place in living], [self._homes[parts[place]] for place in living])
            self._raise_what_was_raised(found)
            here = self._workers()
            lost = tuple(
                part for part in parts if self._homes[part] not in here or self._parts[part].status != "finished"
            )
        self._client.cancel([*found, *level, message])
        self._make(lost)
        raise LostPartsError(lost)

    @staticmethod
    def _raise_what_was_raised(futures: Sequence["Future[Any]"]) -> None:
        for future in futures:
            if future.status == "error":
                error = future.exception()
                if not type(error).__module__.startswith("distributed"):
                    future.result()

    def until_done(self, work: Callable[[], Any], mend: Callable[[tuple[int, ...]], None]) -> Any:
        """Return what `work` returns; where parts are lost meanwhile, `mend` them and begin again.

        Raises
        ------
        RuntimeError
            If they are lost again and again.
        """
        lost: tuple[int, ...] = ()
        for attempt in range(_TRIES):
            try:
                if lost:
                    mend(lost)
                    lost = ()
                return work()
            except LostPartsError as error:
                lost = tuple(sorted({*lost, *error.parts}))
                time.sleep(0.1 * attempt)
        raise RuntimeError(f"Workers were lost {_TRIES} times. Look at their memory, and at their logs.")


class _Act:
    def __init__(self, number: int, task: Task) -> None:
        self._number, self._task = number, task

    def __call__(self, part: Part) -> Sums:
        return part.act(self._number, self._task)


def _made(number: int, recipe: bytes) -> Part:
    return Part(number, cloudpickle.loads(recipe))


def _carried(task: bytes) -> bytes:
    return task


def _done(part: Part, message: bytes) -> Sums:
    """A task is in bytes, so that each part has a copy of its own."""
    task: Task = cloudpickle.loads(message)
    return task(part)
