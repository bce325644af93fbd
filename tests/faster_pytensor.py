"""PyTensor's own work at less cost and with the same results, which was a sixth of the time of the tests."""

import functools
from typing import Any

from pytensor.graph import utils
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting import basic
from pytensor.scalar.basic import ScalarOp, get_scalar_type
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

__all__ = ["made_faster"]

_make_type = TensorType.__init__
_types: dict[Any, dict[str, Any]] = {}


def made_faster() -> None:
    """Change PyTensor to the end of the process. All that is kept depends on types alone."""
    # Tags are copied with each variable.
    utils.Scratchpad.__getattribute__ = object.__getattribute__
    utils.Scratchpad.__copy__ = _copied_tag
    # No variable keeps the lines that made it, where `traceback__limit` is 0, but they were sought.
    utils.simple_extract_stack = lambda *_, **__: []
    # Questions for a type go through abstract classes, though PyTensor's have no virtual subclasses.
    utils.MetaType.__instancecheck__ = type.__instancecheck__
    # Each function that is made orders anew the types that rewrites ask for.
    ordered = functools.cache(basic._compose_mro)
    basic._compose_mro = lambda kind, types: ordered(kind, frozenset(types))
    # Each elementwise operation makes one of numbers, whose types are those of its results.
    Elemwise.make_scalar_node = lambda op, *inputs: _scalar_node(op.scalar_op, *(each.type.dtype for each in inputs))
    # Names of types of numbers are asked of NumPy for each variable.
    TensorType.__init__ = _make_type_once


def _copied_tag(tag: Any) -> Any:
    copy = object.__new__(type(tag))
    vars(copy).update(vars(tag))
    return copy


@functools.cache
def _scalar_node(op: ScalarOp, *dtypes: str) -> Apply:
    return op.make_node(*(get_scalar_type(dtype=dtype).make_variable() for dtype in dtypes))


def _make_type_once(kind: TensorType, dtype: Any, shape: Any = None, *others: Any, **named: Any) -> None:
    if type(kind) is not TensorType or type(dtype) is not str or not isinstance(shape, tuple | list) or others or named:
        _make_type(kind, dtype, shape, *others, **named)
        return
    key = dtype, *shape, *map(type, shape)  # a length of 1 is not True, nor 0 False
    if key not in _types:
        _make_type(kind, dtype, shape)
        _types[key] = dict(vars(kind))
    vars(kind).update(_types[key])
