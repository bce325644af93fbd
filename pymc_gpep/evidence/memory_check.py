"""Check that the matrices of a dense method fit into memory before they are allocated."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pymc_gpep.approximations.methods import FURTHER_METHODS, SPARSE_APPROXIMATIONS
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.reading.classifier import GPClassifier, ReadModel

try:
    import resource
except ImportError:  # Windows does not have this module.
    resource = None  # type: ignore[assignment]

_GIGABYTE = 1e9


def least_memory(prior_type: type[PriorForm], c: int, n: int, q: int, learned: bool) -> float:
    """Return a lower bound of the bytes that the matrices of a fit take; see `PriorForm.matrices`."""
    matrices, columns = prior_type.matrices(c, n, q, learned)
    return 8.0 * matrices * n * columns


def check_memory(
    read: ReadModel, what: str, *, learned: bool = False, prior_type: type[PriorForm] = DensePrior
) -> None:
    """Raise a MemoryError, with a remedy, if matrices of all rows of a model cannot fit into memory.

    A lower bound of the memory is compared with the available memory, so only impossible fits are refused.

    Parameters
    ----------
    read : GPClassifier or GPModel
    what : str
        Name of the caller or computation, for the message.
    learned : bool
        Whether derivatives with respect to hyperparameters are computed.
    prior_type : type, optional
        Form of the prior, which determines the number of matrices and of their columns.
    """
    prior = read.prior
    c, n = prior.n_functions, prior.n_points  # Equal rows may be grouped: a point is a group.
    size = c, n, prior.n_normals, learned and bool(prior.hyperparameters)
    matrices, columns = prior_type.matrices(*size)
    needed, there = least_memory(prior_type, *size), available_memory()
    if needed <= there:
        return
    ways = []
    if isinstance(read, GPClassifier):
        likelihood = read.likelihood_model
        sparse = [kind.name for kind in SPARSE_APPROXIMATIONS if kind.approximates(likelihood)]
        ways += [f'pm.fit(method="{name}", inducing=100), with inducing inputs' for name in sparse[:1]]
        further = [kind for kind in FURTHER_METHODS if kind.approximates(likelihood)]
        ways += [f'pm.fit(method="{kind.name}", {kind.example}), with {kind.by}' for kind in further]
        if not ways and prior_type.square and c == 1 and prior.processes:
            ways = [f'pm.fit(method="{likelihood.method}", inducing=200), with inducing inputs']
    held, takes = ("matrices", "They take") if matrices > 1 else ("matrix", "It takes")
    raise MemoryError(
        f"{what} works on at least {matrices} {held} of {n} × {columns} numbers for {c} latent "
        f"function{'s' * (c > 1)}. {takes} {needed / _GIGABYTE:.1f} GB, and {there / _GIGABYTE:.1f} GB of memory are "
        "free. "
        + (f"Use a method without such matrices: {', or '.join(ways)}. " if ways else "")
        + f"{'Or give' if ways else 'Give'} the model fewer rows."
    )


def available_memory() -> float:
    """Return the bytes that this process can still allocate; infinite if the system does not report them."""
    return min(_limits(), default=np.inf)


def _limits() -> Iterator[float]:
    if (free := _numbers("/proc/meminfo").get("MemAvailable")) is not None:
        yield 1024.0 * free
    resident = 1024.0 * _numbers("/proc/self/status").get("VmRSS", 0.0)
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text(limit).strip()
        if text.isdigit():
            yield float(text) - resident
    if resource is not None:
        of_addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
        if of_addresses != resource.RLIM_INFINITY:
            yield of_addresses - 1024.0 * _numbers("/proc/self/status").get("VmSize", 0.0)


def _numbers(path: str) -> dict[str, float]:
    """Read a file of lines `name: number unit`. Return numbers by name; empty if the file does not exist."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0].rstrip(":"): float(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
