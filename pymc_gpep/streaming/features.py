"""Whitened features of a batch as a graph, from the covariance functions of a model.

Let K = L Lᵀ be the prior covariance of the inducing values of a function, and w = L⁻¹ k(x). Then f = m + wᵀv + e with
v ~ N(0, I) and e ~ N(0, s). Here s = κ − wᵀw, as in `pymc_gpep.solvers.inducing`. Coefficients of effects beside the
process stand below these features, as there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.alike_graphs import stacked
from pymc_gpep.latent.latent_prior import RowsBeside
from pymc_gpep.prior_moments.moment_functions import moment_graphs
from pymc_gpep.processes.cross_covariance import functions_of
from pymc_gpep.processes.stationary import scales_outside
from pymc_gpep.reading.classifier import GPClassifier


class PriorBlocks(NamedTuple):
    """Prior moments; q is 1 where all functions share their covariance and inducing inputs, else c."""

    inducing: TensorVariable
    """(q, M, M)."""
    cross: TensorVariable
    """(q, M, B)."""
    variance: TensorVariable
    """(q, B)."""
    mean: TensorVariable
    """(c, B)."""
    effects: TensorVariable
    """Coefficients of the p standard normals of effects, (q, p, B)."""


class BatchFeatures(NamedTuple):
    """Features of the rows of a batch, and the rest of their prior."""

    w: TensorVariable
    """(q, M + p, B)."""
    rest: TensorVariable
    """s, (q, B)."""
    mean: TensorVariable
    """m, (c, B)."""


def prior_blocks(
    classifier: GPClassifier,
    gps: Sequence[pm.gp.Latent] | None,
    data: Mapping[Variable, Variable],
    inducing: TensorVariable,
    x: TensorVariable,
    beside: RowsBeside | None = None,
) -> PriorBlocks:
    """Return prior moments in terms of value variables, inducing inputs (1 or c, M, d) and rows (B, d).

    Parameters
    ----------
    classifier, gps, data
        Parameters of `InducingBlocks`.
    inducing : TensorVariable (1 or c, M, d)
        Inducing inputs, with a known shape.
    x : TensorVariable (B, d)
        Rows, with a known shape; rows of a table with effects `beside` the process.
    beside : RowsBeside, optional
    """
    matched = functions_of(classifier, gps)
    sets, size, columns = inducing.type.shape
    z = pt.tensor("inducing_inputs_of_one", dtype="float64", shape=(size, columns))
    made = [
        scales_outside(moment_graphs(classifier.model, latent, functions, data, z, x, beside))
        for latent, functions in matched
    ]
    places = {
        k: (graphs, output)
        for graphs, (latent, _) in zip(made, matched, strict=True)
        for output, k in enumerate(latent.classes)
    }
    c = classifier.n_functions
    ordered = [places[k] for k in range(c)]
    mean = pt.stack([graphs[3][output] for graphs, output in ordered])
    own = [graphs[:3] for graphs, _ in ordered]
    if len(matched) == 1 and sets == 1:
        own = own[:1]
    count = len(own)
    along = pt.broadcast_to(inducing, (count, size, columns)) if sets < count else inducing
    rows = x.type.shape[0]
    shapes = (count, size, size), (count, size, rows), (count, rows)
    covariance, cross, variance = map(pt.specify_shape, stacked(own, {z: along}), shapes)
    effects = pt.stack(made[0][4:]) if beside else pt.zeros((count, 0, rows))
    effects = pt.specify_shape(effects, (count, beside.n_effects if beside else 0, rows))
    return PriorBlocks(covariance, cross, variance, pt.specify_shape(mean, (c, rows)), effects)


def batch_features(blocks: PriorBlocks, jitter: TensorVariable) -> BatchFeatures:
    """Features; NaN where a covariance with `jitter`, relative to its mean diagonal, has no Cholesky factor."""
    size = blocks.inducing.type.shape[1]
    diagonal = pt.diagonal(blocks.inducing, axis1=1, axis2=2).mean(axis=1)
    factor = pt.linalg.cholesky(blocks.inducing + (jitter * diagonal)[:, None, None] * pt.eye(size)[None])
    w = pt.linalg.solve_triangular(factor, blocks.cross, lower=True, b_ndim=2)
    rest = pt.maximum(blocks.variance - (w * w).sum(axis=1), 0.0)
    stacked_features = pt.concatenate([w, blocks.effects], axis=1) if blocks.effects.type.shape[1] else w
    return BatchFeatures(stacked_features, rest, blocks.mean)
