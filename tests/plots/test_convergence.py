"""Plots of the convergence of fits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.plots import plot_convergence


def test_plot_shows_iterations_of_the_optimiser(shared, shared_iep, given):
    axes = given(1, 2)
    drawn = plot_convergence({"EP": shared.fit, "IEP": shared_iep}, axes=axes, line_kwargs={"alpha": 0.5})
    assert (drawn == axes).all()
    for i, fit in enumerate((shared.fit, shared_iep)):
        assert_allclose(axes[0].lines[i].get_ydata(), fit.history["evidence"])
        slopes = axes[1].lines[i].get_ydata()
        assert len(slopes) == fit.history.sizes["iteration"]
        assert slopes[-1] < 1e-2 * slopes[0]
        assert axes[0].lines[i].get_alpha() == 0.5
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["EP", "IEP"]
    assert axes[1].get_yscale() == "log"


def test_plotted_iterations_begin_at_a_cold_start(shared):
    axes = plot_convergence(shared.fit, "sites")
    evidence, residual = (ax.lines[0].get_xydata() for ax in axes)
    assert len(evidence) > shared.fit.convergence.iterations
    assert evidence[0, 0] == 1
    assert evidence[-1, 1] == pytest.approx(shared.fit.log_evidence, abs=1e-5)
    tolerance = shared.fit.convergence.tolerance
    assert residual[-1, 1] < tolerance < residual[0, 1]
    assert_allclose(axes[1].lines[1].get_ydata(), tolerance)
    assert axes[0].get_legend() is None


def test_given_solutions_and_convergence_records_are_drawn(shared):
    solution = shared.fit.solution
    for result in (solution, solution.convergence):
        axes = plot_convergence(result, "sites")
        assert_allclose(axes[0].lines[0].get_ydata(), solution.convergence.evidence)
        assert_allclose(axes[1].lines[0].get_ydata(), solution.convergence.residual)


def test_invalid_arguments_raise_errors(shared):
    with pytest.raises(ValueError, match=r"of is .*, but must be 'hyperparameters' or 'sites'"):
        plot_convergence(shared.fit, "site")
    with pytest.raises(TypeError, match=r"results must be a fit by pm\.fit, not a Solution"):
        plot_convergence(shared.fit.solution)
    with pytest.raises(TypeError, match=r"'EP' must be a fit, a solution"):
        plot_convergence({"EP": np.zeros(3)}, "sites")
