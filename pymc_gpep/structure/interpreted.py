"""PyTensor graphs whose operations are worked off one after the other, in plain Python.

Machine code for a graph takes ten seconds or more to make, once for each model and shape. For a step of a fit batch by
batch it takes minutes. A fit evaluates a few arrays of n × n numbers some dozens of times, or products of large
matrices thousands of times. Machine code would save some milliseconds a time there. Functions that a sampler of PyMC
calls thousands of times are compiled, as PyMC does it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.pytensorf import reseed_rngs
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.vm import VMLinker
from pytensor.tensor.random.type import RandomType

from pymc_gpep.structure.alike_graphs import rewritten_once
from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.numpy_rewrites import NUMPY_REWRITES

_OF_OTHER_CODE = "fusion", "BlasOpt", "inplace", "local_pow_to_nested_squaring"
_MULTIPLIED_OUT = ("local_greedy_distributor",)
_OF_ASSUMPTIONS = (
    "dot_diag_to_elemwise",
    "orthogonal_dot_transpose_to_eye",
    "selection_dot_to_indexing",
    "useless_symmetric_transpose",
    "drain_specify_assumptions",
)

INTERPRETED = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    # All that makes graphs stable and small, so that values are those of compiled ones up to rounding. Fused operations
    # would gain nothing here, and an operation in place is one that makes an array and copies it. Rewrites by
    # assumptions take long, and models have few products of matrices that are known to be diagonal or orthogonal. The
    # search for sums that are simpler when multiplied out takes half of the rewriting of derivatives, and finds few.
    RewriteDatabaseQuery(
        include=["fast_run", "py_only"], exclude=[*_OF_OTHER_CODE, *_OF_ASSUMPTIONS, *_MULTIPLIED_OUT]
    ),
).register(*NUMPY_REWRITES)


# The C library returns the memory of freed arrays to the system, above a threshold that follows the largest of them.
# The system then clears the pages again at each evaluation, for a tenth to a fifth of the time of a fit of some hundred
# rows. So the largest array that counts, one of 32 MB, is made and freed. Nobody writes to it: it takes no memory.
np.empty(2**25 - 2**13, dtype=np.uint8)


def without_c_compiler() -> Any:
    """Keep PyTensor from C while an interpreted graph is made.

    PyTensor would link graphs within the graph, which distributions have, by C, and the compiler takes a second for
    each operation.
    """
    return pytensor.config.change_flags(cxx="")


def without_traces() -> Any:
    """Make variables without a note of the code that made them, which takes as long as a third of all else.

    Messages of PyTensor do not name a line then: this is for graphs that no user has written.
    """
    return pytensor.config.change_flags(traceback__limit=0)


class GraphFunction:
    """A function of a model's graph; a class, so that it can be pickled.

    NumPy would warn of what overflows at hyperparameters far out; compiled code says nothing, and neither does this.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def copy(self) -> "GraphFunction":
        """The same function for another thread: one keeps the values of an evaluation."""
        return GraphFunction(self._function.copy())

    def seed(self, seed: int) -> None:
        """Seed the random variables that are drawn."""
        reseed_rngs([v for v in self._function.get_shared() if isinstance(v.type, RandomType)], seed)

    def __call__(self, *values: Any) -> Any:
        with np.errstate(all="ignore"):
            return self._function(*values)


def graph_function(
    model: pm.Model,
    inputs: Sequence[Variable],
    outputs: Any,
    *,
    trust_input: bool = False,
    draws: bool = False,
    further: Callable[[], Sequence[Variable]] | None = None,
    **kwargs: Any,
) -> GraphFunction:
    """Make a function of variables of a model's graph.

    Parameters
    ----------
    model : pm.Model
    inputs : sequence of Variable
        Its arguments; some may be of no use.
    outputs : sequence of Variable or Variable
    trust_input : bool
        Whether arguments have the right types, and need not be looked at.
    draws : bool
        Whether random variables that are not given may be drawn, at each call.
    further : function, optional
        Function that makes further outputs, such as derivatives, of `outputs`, which are a sequence then. It is not
        called where a graph like that of `outputs` has been rewritten with its results.
    **kwargs
        For `pytensor.function`. Without a `mode` the graph is interpreted.

    Raises
    ------
    StructureError
        If a random variable would be drawn, and may not be.
    """
    settings = {"mode": INTERPRETED, "on_unused_input": "ignore"} | kwargs

    def make() -> Any:
        whole = outputs if further is None else [*outputs, *further()]
        return model.compile_fn(whole, inputs=inputs, point_fn=False, **settings)

    made_by = None if further is None else further.__qualname__
    with without_c_compiler() if settings["mode"] is INTERPRETED else nullcontext():
        if draws or settings["mode"] is not INTERPRETED or not set(kwargs) <= {"mode"}:
            function = make()
        else:
            function = rewritten_once(make, inputs, outputs, INTERPRETED, model.check_bounds, made_by)
    if not draws:
        refuse_draws(function)
    function.trust_input = trust_input
    return GraphFunction(function)


def interpreted(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Any:
    """Return the interpreted function of any graph, as PyTensor makes it; some inputs may be of no use."""
    settings = {"mode": INTERPRETED, "on_unused_input": "ignore", "allow_input_downcast": True}
    make = partial(pytensor.function, list(inputs), list(outputs), **settings)
    with without_c_compiler():
        return rewritten_once(make, inputs, outputs, INTERPRETED)


def evaluate(outputs: Sequence[Variable], given: Mapping[Any, NDArray[Any]] | None = None) -> list[NDArray[Any]]:
    """Compute variables from the values of others, which may stand anywhere in the graph.

    A StructureError is raised if they depend on random variables that are not given.
    """
    if all(isinstance(each, Constant) for each in outputs):
        return [np.asarray(each.data) for each in outputs]
    given = given or {}
    function = interpreted(list(given), outputs)
    refuse_draws(function)
    return [np.asarray(value) for value in GraphFunction(function)(*given.values())]


def refuse_draws(function: Any) -> None:
    """Raise a StructureError if a function of PyTensor draws random variables, so that no two calls agree."""
    drawn = [
        output
        for node in function.maker.fgraph.toposort()
        if any(isinstance(output.type, RandomType) for output in node.outputs)
        for output in node.outputs
        if not isinstance(output.type, RandomType)
    ]
    if drawn:
        names = ", ".join(repr(each.name) for each in drawn if each.name) or "one without a name"
        raise StructureError(
            f"A random variable would be drawn anew at each evaluation: {names}. Inputs, labels and numbers in the "
            "model must be data, constants or made of hyperparameters. Declare each distribution as a variable of the "
            "model with a name, pm.Normal('name', ...), and inputs as pm.Data."
        )
