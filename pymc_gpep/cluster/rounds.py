"""Rounds of tasks on parts of the rows. The workers of a Dask client store the parts.

A part runs numbered tasks in order. If the last task is requested again, the part returns the stored result, so no task
runs twice. If the worker of a part is lost, the part is restarted and reports that it lost its sites.

Each part stays on one worker. A round sends one message to all workers, and every part runs its task. The results are
added in a tree of fixed order. If a worker is lost, other workers restart its parts, and the caller gets their numbers.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
from pymc.blocking import PointType

from pymc_gpep.approximations.approximator import sites_between
from pymc_gpep.approximations.site_rules import SiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.log_posteriors.hyperparameters import checked_labels
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.solvers.common_shift import CommonShift
from pymc_gpep.solvers.inducing import Block, InducingWhitening, RowFeatures
from pymc_gpep.solvers.site_ep import SiteVector
from pymc_gpep.solvers.sparse_sweeps import SiteSweeps
from pymc_gpep.solvers.team import ALONE, one_blas_thread
from pymc_gpep.solvers.whitened_posterior import Whitened

if TYPE_CHECKING:
    from distributed import Client, Future


_GRAPHS = threading.Lock()  # Compiled functions are not thread-safe: a call writes into the storage of the function.
_KEPT = 4  # A part stores the sites of this number of former solves, as starts of later solves.
_RECOVERED = 1e-13  # Lost sites count as recovered if the largest scaled change in an iteration is below this.
_ATTEMPTS = 200  # Largest number of iterations to recover sites.


class PartRecipe(NamedTuple):
    """Arguments from which a `WorkerPart` is built."""

    blocks: InducingBlocks
    """Blocks with the rows of the part."""
    likelihood: Likelihood
    rule: SiteRule
    depth: int


class Begin(NamedTuple):
    """Start of a solve: hyperparameters `point`, inducing inputs `z`, and a combination of sites of former solves."""

    point: PointType
    z: Array
    whitening: InducingWhitening
    start: Array


class Sums(NamedTuple):
    """Results of a task on a part: values to sum over parts, and `largest`, to be maximised over parts."""

    added: tuple[Any, ...]
    largest: float = 0.0
    lost: tuple[int, ...] = ()
    """Parts that have lost their sites."""

    def __add__(self, other: object) -> "Sums":
        assert isinstance(other, Sums)
        if self.lost or other.lost:
            return Sums((), np.nan, self.lost + other.lost)
        both = tuple(a + b for a, b in zip(self.added, other.added, strict=True))
        return Sums(both, float(np.maximum(self.largest, other.largest)))


def added(*sums: Sums) -> Sums:
    """Add the sums of several parts, in their order."""
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total


type Task = Callable[["WorkerPart"], Sums]


class _Prior(PriorAt):
    """A prior at a point. Only one thread at a time evaluates its graphs."""

    def block(self, rows: slice) -> Block:
        with _GRAPHS:
            return super().block(rows)

    def slopes(self, rows: slice, bars: Block) -> tuple[Array, Array]:
        with _GRAPHS:
            return super().slopes(rows, bars)


class WorkerPart:
    """A part of the rows with its sites.

    Parameters
    ----------
    number : int
        Index of the part.
    recipe : PartRecipe
    """

    def __init__(self, number: int, recipe: PartRecipe) -> None:
        self.number = number
        self._recipe = recipe
        rows, c = recipe.blocks.rows, recipe.blocks.n_functions
        labels = checked_labels(rows, recipe.likelihood, c)
        self._factors = recipe.rule.factors(recipe.likelihood, labels, c)
        self._prior: _Prior | None = None
        self._sweeps: SiteSweeps[Any, Any] | None = None
        self._vector = self._new(np.zeros((2, *self._factors.shape)))
        self._past = False
        self._done = -1
        self._last = Sums((), lost=(number,))
        self._ends: dict[int, Array] = {}

    def _new(self, sites: Array) -> SiteVector:
        vector = SiteVector(sites, self._recipe.depth)
        vector.rest()
        return vector

    def act(self, number: int, task: Task) -> Sums:
        """Run a task, or return the stored result of the last task. If tasks are missing, report lost sites."""
        if number == self._done:
            return self._last
        if number != self._done + 1 or self._sweeps is None:
            return Sums((), lost=(self.number,))
        with one_blas_thread(), np.errstate(all="ignore"):
            self._last = task(self)
        self._done = number
        return self._last

    def begin(self, number: int, what: Begin, posterior: Whitened | None = None) -> Sums:
        """Begin a solve. A part that lost its sites computes them from `posterior`, if it is given."""
        self._prior = _Prior(self._recipe.blocks, what.point, what.z)
        self._sweeps, self._past = self._factors.sweeps(RowFeatures(self._prior, what.whitening), ALONE), False
        sites = np.zeros((2, *self._factors.shape))
        if what.start.size:
            sites[:] = self._start(what.start).reshape(sites.shape)
        self._vector = self._new(sites)
        with one_blas_thread(), np.errstate(all="ignore"):
            if posterior is not None:
                self._recover(posterior)
                self._vector.rest()
            self._done, self._last = number, self.natural()
        return self._last

    def _start(self, start: Array) -> Array:
        nearest, rest = int(start[0]), start[1:]
        numbers, weights = np.split(rest, 2)
        ends = [self._ends.get(int(number)) for number in numbers]
        if any(end is None for end in ends):
            return np.zeros(self._vector.sites.size)
        return sites_between(np.array(ends), weights, nearest)

    def _recover(self, posterior: Whitened) -> None:
        """Repeat EP's update of the sites at a fixed posterior, until the sites do not change."""
        sites = self._vector.sites
        for _ in range(_ATTEMPTS):
            _, residual = self.sweeps.match(sites, posterior, None, self._vector.target, self._vector.scale)
            if not np.isfinite(residual):
                sites[:] = 0.0
                return
            sites[:] = self._vector.target
            if residual < _RECOVERED:
                return

    @property
    def sweeps(self) -> SiteSweeps[Any, Any]:
        """Sweeps at the prior of the last `begin`."""
        assert self._sweeps is not None
        return self._sweeps

    def natural(self) -> Sums:
        """Return the precision S and the location h that the sites of this part add to the posterior."""
        return Sums(self.sweeps.natural(self._vector.sites))

    def over_blocks(self, work: Callable[[Any], tuple[Array, ...]]) -> Sums:
        """Return the results of `work`, summed over all blocks of the part."""
        found = self.sweeps.over_blocks(self._vector.sites, work)
        return Sums(tuple(sum(column[1:], column[0]) for column in zip(*found, strict=True)))

    def match(self, posterior: Whitened, shift: CommonShift | None) -> Sums:
        """Compute target sites. Return terms of the evidence, the squared norm and the largest entry of the change."""
        vector = self._vector
        terms, residual = self.sweeps.match(vector.sites, posterior, shift, vector.target, vector.scale)
        return Sums((terms, vector.norm()), residual)

    def products(self, slot: int | None, used: int) -> Sums:
        """Store the last change of the sites in `slot`, unless it is None. Return inner products of stored changes."""
        if slot is not None and self._past:
            self._vector.remember(slot)
        elif slot is not None:
            self._vector.forget(slot)
        return Sums(self._vector.products(used))

    def combine(self, gamma: Array, mixing: float, damping: float, interval: tuple[float, float]) -> Sums:
        """Take an accelerated step of the sites. Return the sums S and h of `natural`."""
        self._vector.combine(gamma, mixing, damping, interval)
        self._past = True
        return self.natural()

    def damp(self, damping: float) -> Sums:
        """Move the sites by a share of the way to the target sites. Return the sums S and h of `natural`."""
        self._vector.damp(damping)
        self._past = True
        return self.natural()

    def clear(self) -> Sums:
        """Set all sites to 0. Return the sums S and h of `natural`."""
        self._vector.clear()
        return self.natural()

    def end(self, number: int) -> Sums:
        """Store the sites under the number of the solve. Return the sums S and h of `natural`."""
        self._ends[number] = self._vector.sites.ravel().copy()
        for old in list(self._ends)[:-_KEPT]:
            del self._ends[old]
        return self.natural()

    def slopes(self, posterior: Whitened) -> Sums:
        """Return the share of this part in the derivatives of the log evidence, see `PriorAt.row_slopes`."""
        assert self._prior is not None
        return Sums(self._prior.row_slopes(self.sweeps.bars(self._vector.sites, posterior)))


_TOGETHER = 8  # A task adds this number of sums.
_PATIENCE = 1.0  # While the client waits, it checks every so many seconds that workers still exist.
_TRIES = 20  # A computation begins at most so many times, if workers are lost.


class LostPartsError(RuntimeError):
    """The workers of some parts are gone. These parts have been restarted without their sites."""

    def __init__(self, parts: Sequence[int]) -> None:
        super().__init__(f"Workers with the parts {list(parts)} of the rows were lost.")
        self.parts = tuple(parts)


class Rounds:
    """Send tasks to the parts of the rows, and restart lost parts.

    Parameters
    ----------
    client : distributed.Client
    recipes : sequence of PartRecipe
        Recipe of each part.
    """

    def __init__(self, client: "Client", recipes: Sequence[PartRecipe]) -> None:
        self._client = client
        # Each part needs a copy of its recipe, since compiled functions in the recipe write into their storage.
        self._recipes = [cloudpickle.dumps(recipe) for recipe in recipes]
        self._parts: dict[int, Future[Any]] = {}
        self._homes = [""] * len(recipes)
        self._make(range(len(recipes)))
        self.number = 0
        """Number of the last round."""

    def _make(self, parts: Sequence[int]) -> None:
        """Create parts on the workers in turn, and record the worker of each part."""
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
                self._parts[part].result()  # The call raises the exception with which the part failed.
            self._homes[part] = next(iter(homes.get(self._parts[part].key, ())), "")

    def _workers(self) -> set[str]:
        # `Client.scheduler_info` may be empty, since the client sometimes updates it without workers.
        return set(self._client.nthreads())

    def _wait(self, futures: Sequence["Future[Any]"], homes: Sequence[str] = ()) -> bool:
        """Wait for futures. Return False if a worker in `homes` is lost or a future is cancelled."""
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
        """Run the next task on every part.

        Raises
        ------
        LostPartsError
            If parts were lost. They have been restarted.
        """
        self.number += 1
        return self._sum(range(len(self._parts)), _Act(self.number, task))

    def tell(self, parts: Sequence[int], task: Task) -> Sums:
        """Run a task on these parts, without regard to their earlier tasks."""
        return self._sum(parts, task)

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def _sum(self, parts: Sequence[int], task: Task) -> Sums:
        # The message is the result of a dask task. Dask computes lost results again, but not lost data of `scatter`.
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
        """Return the result of `work`. If parts are lost, call `mend` and begin again.

        Raises
        ------
        RuntimeError
            If parts are lost too often.
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
        raise RuntimeError(f"Workers were lost {_TRIES} times. Check their memory and their logs.")


class _Act:
    def __init__(self, number: int, task: Task) -> None:
        self._number, self._task = number, task

    def __call__(self, part: WorkerPart) -> Sums:
        return part.act(self._number, self._task)


def _made(number: int, recipe: bytes) -> WorkerPart:
    return WorkerPart(number, cloudpickle.loads(recipe))


def _carried(task: bytes) -> bytes:
    return task


def _done(part: WorkerPart, message: bytes) -> Sums:
    """Run a pickled task on a part. Each part unpickles its own copy of the task."""
    task: Task = cloudpickle.loads(message)
    return task(part)
