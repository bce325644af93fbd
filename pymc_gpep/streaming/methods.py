"""The names of fits batch by batch, and what they stand for."""

from pymc_gpep.streaming.memories.memory import Memory
from pymc_gpep.streaming.memories.stateless import Stateless
from pymc_gpep.streaming.memories.stochastic import Stochastic
from pymc_gpep.streaming.memories.stored import StoredMemory
from pymc_gpep.streaming.memories.variational import Variational

STREAMING_METHODS: dict[str, tuple[type[Memory], ...]] = {
    "sparse_ep": (Stateless, StoredMemory),
    "sparse_sep": (Stochastic,),
    "sparse_vi": (Variational,),
}
"""For `pm.fit(method=...)`, the ways to remember what was seen that each has, its default first."""
