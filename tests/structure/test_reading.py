"""The number of files that a reader of one task opens is small. Lower the figures whenever you can."""

import pytest

from tests.structure.reading import form_of_prior, length, mixed_model, probit_ep


def test_probit_ep_is_read_in_few_files():
    files = probit_ep()
    assert {"approximations/ep.py", "solvers/site_ep.py", "kernels/scalar/probit.py"} <= files.keys()
    assert len(files) <= 16, sorted(files)
    assert sum(map(length, files)) <= 4670


def test_mixed_model_by_rows_is_read_in_few_files():
    fit, prediction = mixed_model(probit_ep())
    assert {"gaussians/row_prior.py", "sums/effect_sum.py", "reading/model_reading.py"} <= fit.keys()
    assert len(fit) <= 24, sorted(fit)
    assert "sums/sum_at_new_rows.py" in prediction
    assert len(prediction) <= 6, sorted(prediction)


@pytest.mark.parametrize("kind", ["Row", "Precision"])
def test_each_form_of_prior_is_named_in_few_files(kind):
    files = form_of_prior(kind)
    assert {f"gaussians/{kind.lower()}_prior.py", "gaussians/posterior.py"} <= files.keys()
    assert len(files) <= 5, sorted(files)
