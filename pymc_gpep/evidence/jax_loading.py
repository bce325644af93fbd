"""Rewrite that imports `jax_dispatch` if JAX compiles an Op of this package.

Rewrites tagged "jax" run only for JAX, so JAX is not imported without need. Ops of this package are identified by the
name of their module, since importing them would import numba.
"""

from importlib import import_module

from pytensor.compile import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import graph_rewriter
from pytensor.tensor.blockwise import Blockwise

_PACKAGE = __name__.partition(".")[0]
_DISPATCH = f"{_PACKAGE}.evidence.jax_dispatch"
_POSITION = 100  # Position after all other rewrites.


def _is_ours(op: Op) -> bool:
    """Return whether an Op, its scalar or core Op, or an Op of its inner graph belongs to this package."""
    if isinstance(op, Blockwise):
        return _is_ours(op.core_op)
    if isinstance(op, HasInnerGraph) and any(_is_ours(node.op) for node in op.fgraph.apply_nodes):
        return True
    return type(op).__module__.partition(".")[0] == _PACKAGE


@graph_rewriter
def load_jax_dispatch(fgraph: FunctionGraph) -> None:
    """Import JAX support if the graph has an Op of this package. The graph does not change."""
    if any(_is_ours(node.op) for node in fgraph.apply_nodes):
        import_module(_DISPATCH)


optdb.register("load_jax_dispatch_of_pymc_gpep", load_jax_dispatch, "jax", position=_POSITION)
