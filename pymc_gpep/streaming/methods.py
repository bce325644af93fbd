"""The names of fits batch by batch, and what they stand for."""

from typing import NamedTuple

from pymc_gpep.streaming.memories.contract import Memory
from pymc_gpep.streaming.memories.stateless import Stateless
from pymc_gpep.streaming.memories.stochastic import Stochastic
from pymc_gpep.streaming.memories.variational import Variational

__all__ = ["STREAMING_METHODS", "StreamingMethod"]


class StreamingMethod(NamedTuple):
    """What a name stands for."""

    memories: tuple[type[Memory], ...]
    """Ways to remember what was seen, the default first."""
    decay: float
    """By what part the step size of q falls in the first epoch, and as fast from there."""
    evidence: bool
    """Whether q has sites of EP, whose log normaliser is an evidence."""


STREAMING_METHODS = {
    "sparse_ep": StreamingMethod((Stateless,), 0.1, True),
    "sparse_sep": StreamingMethod((Stochastic,), 0.0, True),
    "sparse_vi": StreamingMethod((Variational,), 0.1, False),
}
"""For `pm.fit(method=...)`; a new one is a line here."""
