"""Which method is taken for how many rows and functions."""

import pytest

from pymc_gpep.sklearn import choice
from pymc_gpep.sklearn.choice import choose
from pymc_gpep.sklearn.response import Classes, NoisyClasses, Numbers, TwoClasses


@pytest.mark.parametrize(
    ("response", "rows", "told"),
    [
        (TwoClasses(), 1000, "ep"),
        (TwoClasses(), 1001, "sparse_ep, 100 inducing inputs"),
        (Classes(4), 1000, "nested_ep"),
        (Classes(4), 100_000, "sparse_ep, 100 inducing inputs"),
        (Classes(4), 100_001, "sparse_ep, 100 inducing inputs, 1000 steps of 500 rows"),
        (Classes(4), 1_000_000, "sparse_ep, 100 inducing inputs, 2000 steps of 500 rows"),
        (NoisyClasses(3, 0.01), 60, "sparse_ep, 60 inducing inputs"),
        (Numbers(), 1000, "ep"),
    ],
)
def test_rows_and_functions_decide(response, rows, told):
    assert str(choose("auto", response, rows, 1000)) == told


def test_few_rows_have_two_starts():
    assert choose("auto", TwoClasses(), 300, 1000).options == {"starts": 2}
    assert choose("auto", TwoClasses(), 301, 1000).options == {}


def test_memory_decides(monkeypatch):
    monkeypatch.setattr(choice, "available_memory", lambda: 1e8)
    assert choose("auto", Classes(3), 900, 1000).method == "sparse_ep"
    assert choose("auto", Classes(3), 300, 1000).method == "nested_ep"


def test_a_method_by_name_is_taken():
    assert str(choose("laplace", Classes(3), 5000, 1000)) == "laplace"
    assert str(choose("sparse_vi", TwoClasses(), 50, 1000)) == "sparse_vi, 50 inducing inputs"


def test_numbers_have_no_inducing_inputs():
    with pytest.raises(ValueError, match=r"There are 1001 rows, and max_dense_rows is 1000\."):
        choose("auto", Numbers(), 1001, 1000)
