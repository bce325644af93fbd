"""A column of numbers as a smooth term: a straight line, and deviations from this line with a learned penalty."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pymc.pytensorf import rvs_in_graph
from pytensor.compile.mode import Mode
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import cholesky, solve_triangular

from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array

_FEWEST = 3  # Smallest number of knots, since two knots define only a line.
# Values with a smaller distance, relative to the range, count as one value.
_GAP = 1e-6


def spline(x: ArrayLike | TensorVariable, k: int = 10) -> tuple[Any, Any]:
    """Return the columns of a penalised cubic regression spline, as in mgcv's `s(x, bs="cr")`.

    A smooth term is `line * slope + bends @ bend`, with `bend = pm.Normal("bend", 0, s, shape=k - 2)`. The scale s
    controls the smoothness: as s goes to 0, the curve becomes a straight line. For a natural cubic spline f, the
    penalty ∫ f''(x)² dx is a constant times the sum of squares of `bend`.

    Each column sums to zero over the rows of `x`, so the model needs an intercept for the level of the curve. At these
    rows `bends` are orthogonal to `line`. Their scale makes s the standard deviation of the curve about its line, as a
    root mean square over the rows.

    Parameters
    ----------
    x : array (n,) or TensorVariable (n,)
        Values of a covariate. If `x = pm.Data("x", values)`, the columns are graphs of these data, and
        `fit.predict(data={"x": new})` returns the curve at new values. Knots, means and scales are computed once, from
        the values at the call.
    k : int
        Number of knots. Knots are at quantiles of the distinct values. The curve has k coefficients, including the
        intercept. If k is large enough, the smoothness depends on the penalty and hardly on k.

    Returns
    -------
    (array (n,), array (n, k − 2))
        `line`, the standardised x, and `bends`; they are graphs if `x` is a graph. Beyond the outer knots, curves
        continue as straight lines.

    Raises
    ------
    TypeError
        If `x` is not numeric, or depends on a random variable. If k is not a whole number.
    ValueError
        If `x` is not one column, is not finite, or has fewer than k distinct values. If k is less than 3.

    References
    ----------
    P. J. Green and B. W. Silverman, *Nonparametric Regression and Generalized Linear Models* (1994), sections 2.1 and
    7.1, for the spline. S. N. Wood, *Generalized Additive Models* (2017), sections 5.3.1 and 5.8, for knots and for
    penalties as random effects.

    Examples
    --------
    >>> x = np.linspace(0.0, 3.0, len(y))
    >>> with pm.Model():
    ...     line, bends = gpep.spline(pm.Data("x", x), k=8)
    ...     slope, s = pm.Normal("slope", 0, 2), pm.HalfNormal("s", 1)
    ...     bend = pm.Normal("bend", 0, s, shape=6)
    ...     gpep.Probit("setosa", line * slope + bends @ bend, observed=y == 0)
    ...     curve = pm.fit(method="ep")
    >>> curve.predict(data={"x": [1.0, 2.0]})["mean"].shape
    (2,)
    """
    check_whole("k", k, _FEWEST)
    values = _values(x)
    distinct, along_range = np.unique(values), np.linspace(0.0, 1.0, k)
    gap = _GAP * np.ptp(distinct)
    if gap > 0.0 and np.diff(np.quantile(distinct, along_range)).min() < gap:
        # Keep one value from each interval of length `gap`.
        distinct = distinct[np.unique(np.floor((distinct - distinct[0]) / gap), return_index=True)[1]]
    if distinct.size < k:
        mend = f"take k={distinct.size} at most" if distinct.size >= _FEWEST else "take the line or its levels alone"
        raise ValueError(f"x has {distinct.size} distinct values, which is too few for {k} knots: {mend}.")
    places = np.quantile(distinct, along_range)
    begin, length = places[0], places[-1] - places[0]
    knots = (places - begin) / length
    weights = _weights(knots)

    given = x if isinstance(x, TensorVariable) else values
    along, scaled = (given.astype("float64") - begin) / length, (values - begin) / length
    straight = np.column_stack([np.ones(scaled.size), scaled])
    raw = abs(scaled[:, None] - knots) ** 3 @ weights
    lines = np.linalg.lstsq(straight, raw, rcond=None)[0]
    size = np.sqrt(((raw - straight @ lines) ** 2).sum(axis=1).mean())
    bends = abs(along[:, None] - knots) ** 3 @ (weights / size) - along[:, None] * (lines[1] / size) - lines[0] / size
    return (along - scaled.mean()) / scaled.std(), bends


def _values(x: Any) -> Array:
    """Check a column of numbers, and return its values (n,) in double precision."""
    if isinstance(x, TensorVariable):
        if random := rvs_in_graph(x):
            raise TypeError(f"x must be data, but depends on the random variable {min(map(str, random))!r}.")
        found = x.eval(mode=Mode("py", None))
    else:
        found = np.asarray(x)
    if found.ndim != 1 or not found.size:
        raise ValueError(f"x must be one column with rows, (n,), but has shape {found.shape}: take X[:, 0].")
    if not np.issubdtype(found.dtype, np.number) and found.dtype != bool:
        raise TypeError(f"x must have numbers, but has values of the type {found.dtype}.")
    values = found.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"x must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not.")
    return values


def _weights(knots: Array) -> Array:
    """Return coefficients (k, k − 2) of |x − knot|³ for k − 2 splines. Their penalty is a sum of squares.

    A spline with second derivatives γ at the inner knots has the penalty γᵀRγ, where R is tridiagonal. The jump of its
    third derivative at a knot is the second divided difference of γ at this knot.
    """
    gaps = np.diff(knots)
    jumps = np.diff(np.diff(np.eye(knots.size), axis=0) / gaps[:, None], axis=0).T
    beside = np.diag(gaps[1:-1] / 6.0, 1)
    lower = cholesky(np.diag((gaps[:-1] + gaps[1:]) / 3.0) + beside + beside.T, lower=True)
    return np.asarray(solve_triangular(lower, jumps.T, lower=True).T) / 12.0
