"""The rewrite that loads JAX support: where JAX compiles an Op of this package, it imports `jax_dispatch`.

Rewrites tagged "jax" run only there, so that no other user imports JAX. The name of the defining package identifies our
Ops, since importing them would import numba.
"""

from importlib import import_module

from pytensor.compile import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import graph_rewriter
from pytensor.tensor.blockwise import Blockwise

_PACKAGE = __name__.partition(".")[0]
_DISPATCH = f"{_PACKAGE}.evidence.jax_dispatch"
_POSITION = 100  # after the other rewrites


def _is_ours(op: Op) -> bool:
    """Whether an Op, the Op that it repeats, or an inner Op belongs to this package."""
    if isinstance(op, Blockwise):
        return _is_ours(op.core_op)
    if isinstance(op, HasInnerGraph) and any(_is_ours(node.op) for node in op.fgraph.apply_nodes):
        return True
    return type(op).__module__.partition(".")[0] == _PACKAGE


@graph_rewriter
def load_jax_dispatch(fgraph: FunctionGraph) -> None:
    """Import JAX support if a node belongs to this package; rewrite nothing."""
    if any(_is_ours(node.op) for node in fgraph.apply_nodes):
        import_module(_DISPATCH)


optdb.register("load_jax_dispatch_of_pymc_gpep", load_jax_dispatch, "jax", position=_POSITION)
