"""Plots of pairs of latent values."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from numpy.testing import assert_allclose
from scipy.stats import chi2

from pymc_gpep.plots import plot_latent_pair, plot_latent_pairs

POINT = 114
PAIR = ("versicolor", "virginica")


@pytest.fixture(scope="module")
def draws(shared):
    return shared.fit.sample(4000, chains=2, random_seed=1)


def ellipses(ax, name):
    return [line.get_xydata() for line in ax.lines if line.get_label() == name]


def test_ellipses_contain_the_given_probability(shared, given):
    ax = given()
    assert plot_latent_pair(shared.fit, POINT, PAIR, masses=(0.5, 0.9), ax=ax) is ax
    latent = shared.fit.latent.sel(flower=POINT, species=list(PAIR), species_other=list(PAIR))
    precision = np.linalg.inv(latent["cov"].values)
    for mass, drawn in zip((0.5, 0.9), ellipses(ax, "fit"), strict=True):
        away = drawn - latent["mean"].values
        assert_allclose(np.einsum("si,ij,sj->s", away, precision, away), chi2(2).ppf(mass))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("latent value, versicolor", "latent value, virginica")


def test_contours_of_draws_contain_the_given_probability(shared, draws):
    """The draws come from the Gaussian: contours must be close to its ellipses."""
    ax = plot_latent_pair({"draws": draws, "Gaussian": shared.fit}, POINT, PAIR, masses=(0.5, 0.9))
    (drawn,) = [each for each in ax.collections if hasattr(each, "levels")]
    latent = shared.fit.latent.sel(flower=POINT, species=list(PAIR), species_other=list(PAIR))
    precision = np.linalg.inv(latent["cov"].values)
    for mass, path in zip((0.9, 0.5), drawn.get_paths(), strict=True):
        away = path.vertices - latent["mean"].values
        radius = np.sqrt(np.einsum("si,ij,sj->s", away, precision, away))
        assert np.median(radius) == pytest.approx(np.sqrt(chi2(2).ppf(mass)), rel=0.1)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["draws", "Gaussian"]


def test_drawn_points_are_draws_of_the_two_latent_values(shared, draws):
    ax = plot_latent_pair({"draws": draws}, POINT, PAIR, model=shared.model, draws_kwargs={"s": 7})
    scattered = next(each for each in ax.collections if not hasattr(each, "levels"))
    chosen = draws.posterior["f"].sel(flower=POINT, species=list(PAIR)).transpose(..., "species").values.reshape(-1, 2)
    assert {tuple(row) for row in scattered.get_offsets()} <= {tuple(row) for row in chosen}
    assert 900 < len(scattered.get_offsets()) <= 1000
    assert scattered.get_sizes() == [7]


def test_axes_have_equal_scales_and_cover_all_points(shared):
    ax = plot_latent_pair(shared.fit, POINT, PAIR)
    assert ax.get_aspect() == 1
    (outermost,) = ellipses(ax, "fit")[-1:]
    for limits, values in ((ax.get_xlim(), outermost[:, 0]), (ax.get_ylim(), outermost[:, 1])):
        assert limits[0] < values.min() < values.max() < limits[1]
    assert np.ptp(ax.get_xlim()) == pytest.approx(np.ptp(ax.get_ylim()))
    assert np.ptp(ax.get_xlim()) < 1.2 * np.ptp(outermost, axis=0).max()


def test_classes_without_names_are_numbered(fixed, per_class):
    for fitted in (fixed, per_class):
        draws = fitted.fit.sample(300, random_seed=1)
        ax = plot_latent_pair({"Gaussian": fitted.fit, "draws": draws}, 3, (0, 2))
        assert ax.get_xlabel() == "latent value, 0"
        centre = ellipses(ax, "Gaussian")[0].mean(axis=0)
        assert_allclose(centre, fitted.fit.solution.mean[[0, 2], 3], atol=0.1)


def test_ellipses_of_two_points_contain_the_given_probability(one_function):
    fit = one_function["ep"]
    ax = plot_latent_pair(fit, points=(110, 114), masses=(0.5, 0.9))
    posterior = fit.solution.posterior
    k = posterior.prior.k[0]
    cov = k - k @ np.linalg.solve(k + np.diag(1 / posterior.precision[0]), k)
    at = fit.log_posterior.classifier.groups.of[[10, 14]]  # rows with equal inputs are one point
    precision = np.linalg.inv(cov[np.ix_(at, at)])
    for mass, drawn in zip((0.5, 0.9), ellipses(ax, "fit"), strict=True):
        away = drawn - fit.latent["mean"].sel(flower=[110, 114]).values
        assert_allclose(np.einsum("si,ij,sj->s", away, precision, away), chi2(2).ppf(mass), rtol=1e-6)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("latent value, flower 110", "latent value, flower 114")


def test_plotted_draws_belong_to_the_two_points(one_function):
    fit = one_function["ep"]
    draws = fit.sample(300, random_seed=1)
    ax = plot_latent_pair(draws, points=(114, 110), model=fit.classifier.model)
    scattered = next(each for each in ax.collections if not hasattr(each, "levels"))
    chosen = draws.posterior["f"].sel(flower=[114, 110]).values.reshape(-1, 2)
    assert {tuple(row) for row in scattered.get_offsets()} <= {tuple(row) for row in chosen}
    assert len(scattered.get_offsets()) > 250


def test_plot_has_a_row_for_each_pair_of_points(one_function):
    axes = plot_latent_pairs(one_function, pairs=[(110, 114), (100, 129)], reference="laplace")
    assert [ax.get_title() for ax in axes[0]] == ["ep", "laplace"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["latent value, flower 114", "latent value, flower 129"]
    assert len(ellipses(axes[1, 0], "laplace")) == len(ellipses(axes[1, 0], "ep")) == 5


@pytest.mark.variation
def test_plot_has_a_row_for_each_pair_and_a_column_for_each_method(shared, shared_iep, draws, given):
    axes = given(3, 3)
    results = {"EP": shared.fit, "draws": draws, "IEP": shared_iep}
    assert (plot_latent_pairs(results, POINT, axes=axes) == axes).all()
    assert [ax.get_title() for ax in axes[0]] == ["EP", "draws", "IEP"]
    assert [ax.get_ylabel().split()[-1] for ax in axes[:, 0]] == ["versicolor", "virginica", "virginica"]
    for row in axes:
        assert len({ax.get_xlim() for ax in row}) == len({ax.get_ylim() for ax in row}) == 1
        # Draws are the reference: grey contours in all panels, and points in their own panel only.
        assert [len(ax.collections) for ax in row] == [1, 2, 1]
        assert to_hex(row[0].collections[0].get_edgecolors()[0]) == "#a6a6a6"
        assert {line.get_color() for line in row[2].lines if line.get_label() == "IEP"} == {"black"}


def test_fit_is_drawn_as_the_reference_without_draws(shared, shared_iep):
    axes = plot_latent_pairs({"EP": shared.fit, "IEP": shared_iep}, POINT, pairs=[PAIR])
    assert axes.shape == (1, 2)
    assert len(ellipses(axes[0, 1], "EP")) == len(ellipses(axes[0, 1], "IEP")) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"point": 3}, "3 is not a point; the labels run from 100 to 129"),
        ({"classes": ("versicolor", "rose")}, "'rose' is not a class"),
        ({"classes": ("versicolor", "versicolor")}, "classes must be two different classes"),
        ({"masses": (0.5, 1.0)}, r"masses must be probabilities"),
        ({"results": {}}, "results is empty"),
    ],
)
def test_invalid_arguments_raise_errors(shared, change, message):
    arguments = {"results": shared.fit, "point": POINT, "classes": PAIR} | change
    with pytest.raises(ValueError, match=message):
        plot_latent_pair(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"point": POINT}, {"classes": PAIR}, {"points": (110, 114)}])
def test_arguments_for_a_single_function_raise_type_error_with_several_functions(shared, arguments):
    with pytest.raises(TypeError, match=r"Each point has 3 latent values in this model\. .*point=i, classes=\(a, b\)"):
        plot_latent_pair(shared.fit, **arguments)


@pytest.mark.parametrize(
    "arguments", [{}, {"point": 110}, {"point": 110, "classes": (0, 1)}, {"point": 110, "points": (110, 114)}]
)
def test_arguments_for_several_functions_raise_type_error_with_a_single_function(one_function, arguments):
    with pytest.raises(TypeError, match=r"Each point has one latent value in this model\. .*points=\(i, j\)"):
        plot_latent_pair(one_function, **arguments)


def test_invalid_pairs_of_points_raise_errors(one_function):
    with pytest.raises(ValueError, match="3 is not a point; the labels run from 100 to 129"):
        plot_latent_pair(one_function, points=(110, 3))
    with pytest.raises(ValueError, match="points must be two different points, but are 110 twice"):
        plot_latent_pair(one_function, points=(110, 110))
    with pytest.raises(TypeError, match=r"one latent value in this model\. Choose pairs of points"):
        plot_latent_pairs(one_function)


def test_draws_without_a_model_and_unknown_references_are_refused(shared, draws):
    with pytest.raises(ValueError, match="model="):
        plot_latent_pair(draws, POINT, PAIR)
    with pytest.raises(ValueError, match="reference is 'NUTS'"):
        plot_latent_pairs({"EP": shared.fit}, POINT, reference="NUTS")
    with pytest.raises(TypeError, match=r"'EP' must be a fit, as returned by pm\.fit"):
        plot_latent_pair({"EP": 3}, POINT, PAIR)
