"""Which plan fits a method."""

from collections.abc import Mapping
from typing import Any

from pymc_gpep.approximations import METHODS
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.variational.plans.active_rows import ACTIVE_METHODS, ActiveRows
from pymc_gpep.variational.plans.all_rows import AllRows
from pymc_gpep.variational.plans.batches import ByBatches
from pymc_gpep.variational.plans.inducing_inputs import SPARSE_METHODS, InducingInputs
from pymc_gpep.variational.plans.plan import Plan

PLANS: tuple[type[Plan], ...] = (AllRows, InducingInputs, ActiveRows, ByBatches)
"""All there are."""

ALL_METHODS = tuple(dict.fromkeys([*METHODS, *ACTIVE_METHODS, *SPARSE_METHODS, *STREAMING_METHODS]))
"""Names for `pm.fit(method=...)`."""


def plan_for(method: str, options: Mapping[str, Any]) -> type[Plan]:
    """Return the plan of a method, which takes batches where there is a `batch_size` or nothing else."""
    batches = options.get("batch_size") is not None
    if method in STREAMING_METHODS and (batches or method not in SPARSE_METHODS):
        return ByBatches
    if method in SPARSE_METHODS:
        return InducingInputs
    return ActiveRows if method in ACTIVE_METHODS else AllRows
