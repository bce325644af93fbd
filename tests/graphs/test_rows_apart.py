"""Check that each row of a graph depends only on data of this row: proof by the graph, samples, and refusals."""

import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_gpep.graphs import rows_apart
from pymc_gpep.graphs.interpreted import interpreted
from pymc_gpep.graphs.rows_apart import check_rows_apart

N = 20
RNG = np.random.default_rng(3)
X, G, XX = RNG.normal(size=N), RNG.integers(0, 4, N), RNG.normal(size=(N, 3))
TABLE = np.array([0.5, -1.0, 2.0, 0.1])


def check(made, axis=0, processes=(), **rows):
    leaves = {name: pt.tensor(name, dtype=values.dtype, shape=(None,) * values.ndim) for name, values in rows.items()}
    output = made(**leaves)

    def function(inputs):
        return lambda *values: interpreted(inputs, [output])(*values)[0]

    check_rows_apart(
        "Values", output, axis, {v: rows[name] for name, v in leaves.items()}, function, processes=processes
    )


PROVEN = {
    "elementwise": lambda x: pt.exp(x) / 3.0,
    "standardised by constants": lambda x: (x - X.mean()) / X.std(),
    "columns of one number": lambda x: pt.stack([x, x**2], axis=1) @ np.array([1.0, 2.0]),
    "a sum over columns": lambda x: (x[:, None] * np.array([1.0, 2.0])).sum(axis=1),
    "a filled vector": lambda x: x + pt.zeros_like(x),
    "hinges": lambda x: pt.stack([pt.maximum(x - k, 0.0) for k in (0.0, 1.0)], axis=-1).sum(axis=-1),
    "a constant": lambda x: pt.constant(2.0) + 0.0 * x,
}
SAMPLED = {
    "a mean over columns": lambda x: (x[:, None] * np.array([1.0, 2.0])).mean(axis=1),
    "repeated columns": lambda x: pt.tile(x[:, None], 3).sum(axis=1),
    "columns that are set": lambda x: pt.set_subtensor(pt.zeros((x.shape[0], 2))[:, 1], x).sum(axis=1),
    "places among constants": lambda x: pt.searchsorted(pt.constant(np.array([0.0, 1.0])), x) * 1.0,
    "a diagonal matrix": lambda x: pt.diag(x) @ pt.ones(x.shape[0]),
    "a diagonal matrix of large numbers": lambda x: pt.diag(pt.exp(100 * x)) @ pt.ones(x.shape[0]),
    "a loop over rows": lambda x: pytensor.scan(lambda v: v**2, sequences=[x], return_updates=False),
}
MIXED = {
    "mean": (lambda x: x - x.mean(), "a sum over rows"),
    "standard deviation": (lambda x: x / x.std(), "a sum over rows"),
    "largest": (lambda x: x / pt.max(x), "a maximum over rows"),
    "above half of the largest": (lambda x: 1.0 * (x > x.max() / 2), "a maximum over rows"),
    "last": (lambda x: x - x[-1], "values at given positions of rows"),
    "place of the largest": (lambda x: x + pt.argmax(x), "the position of a maximum among rows"),
    "reversed": (lambda x: x[::-1], "values at given positions of rows"),
    "cumulative": (lambda x: pt.cumsum(x), "a cumulative sum over rows"),
    "lag": (lambda x: pt.concatenate([[0.0], x[:-1]]), "rows that are shifted"),
    "differences": (lambda x: pt.concatenate([[0.0], pt.diff(x)]), "rows that are shifted"),
    "sorted": (lambda x: pt.sort(x), "an order of rows"),
    "ranks": (lambda x: pt.argsort(pt.argsort(x)), "an order of rows"),
    "share of the number of rows": (lambda x: x / x.shape[0], ""),
    "place among rows": (lambda x: x + pt.arange(x.shape[0]), ""),
    "second row after a cumulative sum": (lambda x: pt.cumsum(x) * 0.0 + x - x[1], ""),
    "pairs": (lambda x: (x[:, None] - x).mean(axis=1), ""),
    "a mean at each row": (lambda x: pt.ones_like(x) * x.mean(), "a sum over rows"),
    "a mean for all rows": (lambda x: x.mean(), "a sum over rows"),
    "a matrix product": (lambda x: (x[:, None] @ x[None]) @ x, ""),
    "a loop that carries": (
        lambda x: pytensor.scan(
            lambda v, a: a / 2 + v, sequences=[x], outputs_info=pt.zeros((), dtype="float64"), return_updates=False
        ),
        "",
    ),
}


@pytest.mark.parametrize("made", PROVEN.values(), ids=PROVEN)
def test_independent_rows_are_proven_by_the_graph_without_samples(made, monkeypatch):
    monkeypatch.setattr(rows_apart, "_differs", lambda *_: True)
    check(made, x=X)


@pytest.mark.parametrize("made", SAMPLED.values(), ids=SAMPLED)
def test_independent_rows_are_recognised_by_samples(made):
    check(made, x=X)


@pytest.mark.parametrize("order", [np.sort(X), X, np.sort(X)[::-1]], ids=["ascending", "unsorted", "descending"])
@pytest.mark.parametrize(("made", "operation"), MIXED.values(), ids=MIXED)
def test_rows_that_depend_on_each_other_are_refused(made, operation, order):
    with pytest.raises(ValueError, match=rf"Values at a row depend on other rows of 'x'.*{operation}.*x_train\.mean"):
        check(made, x=np.ascontiguousarray(order))


def test_comparison_in_single_precision_has_a_larger_tolerance():
    check(lambda x: pt.tile(x[:, None], 3).sum(axis=1) * 1e3, x=X.astype("float32"))


def test_rows_that_index_a_table_are_proven_independent_by_the_graph():
    check(lambda g: pt.constant(TABLE)[g], g=G)
    check(lambda g, x: pt.constant(np.outer(TABLE, TABLE))[g, 1] * x, g=G, x=X)


def test_column_selected_by_the_row_is_accepted():
    check(lambda x, g: x[pt.arange(x.shape[0]), g], x=XX, g=G % 3)


def test_sums_by_group_are_refused():
    with pytest.raises(ValueError, match="depend on other rows"):
        check(lambda g, x: x - pt.inc_subtensor(pt.zeros(4)[g], x)[g], g=G, x=X)


def test_rows_selected_by_other_rows_are_refused():
    with pytest.raises(ValueError, match="depend on other rows of 'x'"):
        check(lambda g, x: x[g], g=G, x=X)


def test_independence_of_rows_along_the_last_axis_is_checked():
    check(lambda x: pt.stack([x, pt.exp(x)]), axis=1, x=X)
    with pytest.raises(ValueError, match="depend on other rows of 'x'"):
        check(lambda x: pt.stack([x, pt.cumsum(x)]), axis=1, x=X)


def test_large_entries_do_not_hide_dependence_of_small_entries():
    with pytest.raises(ValueError, match="depend on other rows of 'x'"):
        check(lambda x: pt.stack([x * 0.0 + pt.constant(np.float64(1e300)), x[::-1]]), axis=1, x=X)


def test_error_for_a_process_advises_to_select_rows_by_an_index():
    with pytest.raises(ValueError, match=re.escape("(f - f[:n].mean())[pm.Data('row', np.arange(n))]")):
        check(lambda f: f - f.mean(), processes=["f"], f=X)
    with pytest.raises(ValueError, match=re.escape("(f - f[:n].mean())[pm.Data('row', np.arange(n))]")):
        check(lambda x, f: x + pt.cumsum(f), processes=["f"], x=X, f=X)
