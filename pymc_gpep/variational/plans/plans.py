"""Table of the plans, and the plan of a method."""

from collections.abc import Mapping
from typing import Any

from pymc_gpep.registry import Registry
from pymc_gpep.variational.plans.all_rows import AllRows
from pymc_gpep.variational.plans.batches import ByBatches
from pymc_gpep.variational.plans.inducing_inputs import InducingInputs
from pymc_gpep.variational.plans.plan import Plan

PLANS: Registry[type[Plan]] = Registry("plan", (ByBatches, InducingInputs, AllRows), of=Plan, named="__name__")
"""All plans. The first plan that accepts a method with its options is used."""


def all_methods() -> list[str]:
    """Return the names for `pm.fit(method=...)`, in alphabetical order."""
    return sorted({name for plan in PLANS for name in plan.methods()})


def plan_for(method: str, options: Mapping[str, Any]) -> type[Plan]:
    """Return the plan of a method with these options. `AllRows` raises an error for an unknown method."""
    return next((plan for plan in PLANS if plan.serves(method, options)), AllRows)
