"""Methods for batch fits, and their starts."""

from typing import Any, NamedTuple

import numpy as np

import pymc_gpep as gpep
from benchmarks.paper.data import Split
from benchmarks.scalable_paper.models import inducing_rows

Array = np.ndarray

INDUCING, BATCH = 200, 200  # as in the paper


class Start(NamedTuple):
    """Initial hyperparameters and inducing inputs."""

    length: float
    """Length scales, in root median squared distances."""
    amplitude: float
    """Variance."""
    centres: bool
    """Whether inducing inputs are k-means centres of the classes instead of random rows."""
    held: bool = False
    """Whether the variance is fixed."""

    def inducing(self, split: Split, size: int, shared: bool) -> Array:
        """Inducing inputs (c, M, d), or (M, d) where classes share them."""
        if self.centres:
            return gpep.class_centres((split.X, split.y), size, classes=split.classes, shared=shared)
        rows = inducing_rows(split.X, split.classes, size, 0)
        return rows[0] if shared else rows


RANDOM = Start(1.0, 10.0, centres=False)
CENTRES = Start(0.5, 100.0, centres=True)
HELD = Start(0.5, 50.0, centres=True, held=True)


class Method(NamedTuple):
    """A method as options of `pm.fit`."""

    title: str
    options: dict[str, Any]
    shared: bool = False
    """Whether classes share a covariance and inducing inputs."""
    inducing: int = INDUCING
    batch: int = BATCH
    epochs: int | None = None
    """Number of epochs, if it differs from the experiment's."""
    relevances: bool = True
    """Whether each column has a length scale, instead of one for all columns."""
    start: Start = RANDOM
    step: bool = False
    """Whether the likelihood is the paper's step with label noise, with noise of its own for each class."""


_EXACT = {"method": "sparse_ep", "sites": "quadrature"}
METHODS = {
    "ep": Method("EP without stored sites", {"method": "sparse_ep", "sites": "pairwise"}),
    "ep-sites": Method("EP with stored sites", {"method": "sparse_ep", "sites": "pairwise", "memory": "sites"}),
    "sep": Method("SEP", {"method": "sparse_sep", "sites": "pairwise"}),
    "vi": Method("VI of the product of probits", {"method": "sparse_vi", "sites": "pairwise"}),
    "vi-step": Method("VI of the step with label noise", {"method": "sparse_vi"}, step=True),
    "sep-step": Method("SEP of the step", {"method": "sparse_sep", "sites": "pairwise"}, step=True),
    "exact-each": Method("EP, exact factor", _EXACT),
    "exact": Method("EP, exact factor, shared covariance", _EXACT, shared=True),
    "exact-500": Method(
        "EP, exact factor, M = 500 shared, batches of 500", _EXACT, shared=True, inducing=500, batch=500
    ),
}
"""The paper's methods are `vi-step` and `sep-step`.

All other methods have the multinomial probit or its product (6), with noise of variance 1 instead of a step and learned
noise. `ep-sites` stores sites like the paper's EP. Exact factors are not in the paper.
"""
SHORT = 12
METHODS |= {
    f"{name}-short": METHODS[name]._replace(title=f"{METHODS[name].title}, {SHORT} epochs", epochs=SHORT)
    for name in ("ep", "ep-sites", "sep", "vi", "vi-step", "sep-step", "exact-each", "exact", "exact-500")
}
"""The same with less time: how methods compare at equal epochs, where an hour for each is too much."""
EPOCHS = 24
LONGER = f"vi-step-{EPOCHS}"
METHODS[LONGER] = METHODS["vi-step"]._replace(title=f"{METHODS['vi-step'].title}, {EPOCHS} epochs", epochs=EPOCHS)
"""A fit from random rows in less time, in place of the 60 epochs of `vi-step`."""
METHODS |= {
    f"{name}-one": METHODS[name]._replace(title=f"{METHODS[name].title}, one length scale", relevances=False)
    for name in ("sep", "exact-500", "sep-short", "exact-500-short")
}
"""The same without relevances, of which pixels have hundreds for each class."""
HOUR = 45  # epochs in an hour of one core
METHODS |= {
    f"{name}-centres": METHODS[name]._replace(
        title=f"{METHODS[name].title}, from centres", start=CENTRES, epochs=METHODS[name].epochs or HOUR
    )
    for kind in ("ep", "ep-sites", "sep", "sep-step", "vi", "vi-step", "exact-each", "exact-500")
    for name in (kind, f"{kind}-short")
}
"""The same from centres of k-means, with shorter length scales at first."""
HELD_EPOCHS = 24  # epochs in half an hour
METHODS |= {
    f"{kind}-held": METHODS[kind]._replace(
        title=f"{METHODS[kind].title}, from centres, variance held", start=HELD, epochs=HELD_EPOCHS
    )
    for kind in ("ep-sites", "sep", "sep-step", "vi", "vi-step")
}
METHODS["vi-held-400"] = METHODS["vi-held"]._replace(
    title="VI, from centres, variance held, M = 400, 10 epochs", inducing=400, epochs=10
)
"""Started at centres with a fixed variance. The bound would decrease the variance, which makes predictions worse."""
METHODS["sep-400"] = METHODS["sep-short-centres"]._replace(
    title="SEP, from centres, M = 400, 8 epochs", inducing=400, epochs=8
)
"""The variance is learned, since the objective does not decrease it."""
