"""Parts of the experiments of the scalable EP paper: folds, model and steps, and reports on artificial runs."""

import tarfile
from io import BytesIO

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from benchmarks.paper.data import Split
from benchmarks.scalable_paper import batches, drawn, figure1, figure3, figure4, overfitting
from benchmarks.scalable_paper.batch_methods import CENTRES, HELD, LONGER, RANDOM
from benchmarks.scalable_paper.batch_methods import METHODS as METHODS_BY_BATCH
from benchmarks.scalable_paper.batches import Follow, batch_model, draw_curves, learn
from benchmarks.scalable_paper.cavities import PrintedCavity
from benchmarks.scalable_paper.data import FILE, _ten_features, fold
from benchmarks.scalable_paper.figure5 import EXPERIMENT as FIGURE_5
from benchmarks.scalable_paper.methods import BEYOND, METHODS, PAPERS, run
from benchmarks.scalable_paper.mnist import EXPERIMENT as MNIST
from benchmarks.scalable_paper.models import (
    AMPLITUDE,
    NOISE,
    WEAK,
    inducing_rows,
    sizes,
    step_model,
    typical_distance,
)
from benchmarks.scalable_paper.printed import TABLE2, TIMES
from benchmarks.scalable_paper.scoring import scores, with_label_noise
from benchmarks.scalable_paper.signed_steps import signed_steps
from benchmarks.scalable_paper.table2 import EXPERIMENT, FOLDS, PERCENTS, TITLES
from pymc_gpep.hyper.inducing_inputs import SignedSteps
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.reading import read_classifier
from pymc_gpep.streaming.memories import Stochastic


@pytest.fixture
def archive(tmp_path):
    """Five points. The last is held out in the first fold, and the first in the second fold."""
    X = np.array([[1.0, 7.0, 3.0], [2.0, 7.0, 1.0], [3.0, 7.0, 4.0], [6.0, 7.0, 1.0], [9.0, 7.0, 5.0]])
    arrays = {
        "tiny/data.npz": (X, np.array([1, 2, 7, 7, 2])),
        "tiny/folds.npz": (np.array([[3, 0, 1, 2], [1, 2, 3, 4]]), np.array([[4], [0]])),
    }
    with tarfile.open(tmp_path / FILE, "w:gz") as tar:
        for name, (first, second) in arrays.items():
            stored = BytesIO()
            np.savez(stored, first, second)
            info = tarfile.TarInfo(name)
            info.size = stored.tell()
            stored.seek(0)
            tar.addfile(info, stored)
    return str(tmp_path)


def test_fold_is_standardised_by_its_training_points(archive):
    split = fold("tiny", archive, 0)
    assert split.y.tolist() == [2, 0, 1, 2]
    assert split.ynew.tolist() == [1]
    np.testing.assert_allclose(split.X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(split.X.std(axis=0), 1.0)
    own = np.array([6.0, 1.0, 2.0, 3.0])  # the constant second column is left out
    np.testing.assert_allclose(split.Xnew[0, 0], (9.0 - own.mean()) / own.std())
    assert split.X.shape == (4, 2)
    assert fold("tiny", archive, 1).ynew.tolist() == [0]


def test_both_forms_of_the_vowel_data_have_equal_rows(tmp_path):
    features = np.array([[0.5, 7.0, 1.0], [1.5, 8.0, 2.0], [2.5, 9.0, 3.0], [3.5, 6.0, 4.0]])
    speaker = np.c_[[0.0, 0.0, 1.0], features[[0, 2, 3]][:, [0, 2]]]
    lines = [",".join(map(str, [*row, label])) for row, label in zip(features, (1, 7, 6, 2), strict=True)]
    (tmp_path / "vowel.csv").write_text("\n".join(["x1,x2,x3,label", *lines]) + "\n")
    np.testing.assert_array_equal(_ten_features(str(tmp_path), speaker), features[[0, 2, 3]])
    with pytest.raises(ValueError, match=r"vowel\.csv does not have the rows"):
        _ten_features(str(tmp_path), speaker[::-1])


@pytest.mark.parametrize("spread", [None, WEAK], ids=["flat", "weak priors"])
def test_model_starts_at_the_hyperparameters_of_the_paper(spread):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 2))
    point = step_model(X, np.arange(6) % 3, spread=spread).initial_point()
    np.testing.assert_allclose(np.exp(point["log_ls"]), typical_distance(X))
    np.testing.assert_allclose(np.exp(point["log_amplitude"]), AMPLITUDE)
    np.testing.assert_allclose(np.exp(point["log_noise"]), NOISE)
    pairs = [((X[i] - X[j]) ** 2).sum() for i in range(6) for j in range(i)]
    assert typical_distance(X) ** 2 == pytest.approx(np.median(pairs))


def test_each_function_has_different_rows_as_initial_inducing_inputs():
    X = np.arange(40.0).reshape(20, 2)
    z = inducing_rows(X, 3, 5, 0)
    assert z.shape == (3, 5, 2)
    assert not np.array_equal(z[0], z[1])
    for own in z:
        assert len({tuple(row) for row in own}) == 5
        assert {tuple(row) for row in own} <= {tuple(row) for row in X}
    assert sizes(192, (5, 10, 20)) == {5: 10, 10: 19, 20: 38}
    assert sizes(3, (5,)) == {5: 1}


def test_steps_of_the_signed_optimiser_as_a_graph_match_the_steps_of_the_package():
    slopes = np.random.default_rng(1).normal(size=(12, 3))
    place, slope = pytensor.shared(np.zeros(3)), pt.dvector()
    step = pytensor.function([slope], [], updates=signed_steps([slope], [place]))
    ours, at = SignedSteps(), np.zeros(3)
    for each in slopes:
        step(each)
        at = at + ours(-each)
        np.testing.assert_allclose(place.get_value(), at, atol=1e-12)


def test_transcribed_numbers_equal_numbers_in_table_2_of_the_paper():
    assert len(TABLE2) == 8 * 3 * 4
    assert TABLE2["glass", 5, "gfitc"] == (0.61, 0.05)
    assert TABLE2["vowel", 20, "vi"] == (0.15, 0.03)
    assert TABLE2["svmguide2", 10, "sep"] == (0.74, 0.07)
    assert TIMES[20, "gfitc"] == 683
    assert {name for name, *_ in TABLE2} == set(TITLES) - {"vowel-features"}


def test_experiment_of_table_2_has_a_cell_for_each_run():
    cells = EXPERIMENT.cells("", quick=False)
    sparse = sum(method.sparse for method in METHODS.values())
    assert len(cells) == FOLDS * len(TITLES) * (len(PERCENTS) * sparse + len(METHODS) - sparse)
    assert set(PAPERS) | set(BEYOND) == set(METHODS)
    assert len(EXPERIMENT.cells("", quick=True)) == 1


def table_run(log_p):
    return {
        "log_p": np.array(log_p), "wrong": np.array([0.0, 1.0]), "classes": np.array(3), "inducing": np.array(16),
        "processor_seconds": np.array(4.0), "loss": np.zeros(2), "message": np.array("fine"), "warnings": np.array(""),
    }  # fmt: skip


def test_report_of_table_2_has_scores_and_times():
    runs = {f"wine, M 10 %, ep, fold {k}": table_run([-score, -score]) for k, score in enumerate((0.05, 0.07, 0.09))}
    record, text = EXPERIMENT.report(runs)
    (row,) = record["rows"]
    assert row["score"] == pytest.approx(0.07)
    assert row["se"] == pytest.approx(0.02 / np.sqrt(3))
    assert row["above_paper"] == pytest.approx(0.01 / np.hypot(row["se"], 0.01))
    assert "| Wine | 3 | 0.07 ± 0.01 (0.06 ± 0.01, +0.7) |" in text
    assert "| processor time of a fit, s | | 4.0 |" in text
    assert "| paper: time, all eight sets | | 102 |" in text


def test_standard_error_of_a_single_fold_comes_from_its_points():
    record, text = EXPERIMENT.report({"glass, M 5 %, vi, fold 0": table_run([-1.0, -3.0])})
    assert record["rows"][0]["se"] == pytest.approx(1.0)
    assert "2.00 ± 1.00* (2.45 ± 0.14)" in text


def test_report_of_figure_1_has_times_to_reach_losses():
    runs = {
        "inner": {"at": np.array([1.0, 2.0, 3.0]), "loss": np.array([30.0, 12.0, 10.5])},
        "outer": {"at": np.array([2.0, 4.0]), "loss": np.array([25.0, 10.0])},
    }
    ends = {"objective": np.array(-10.0), "points": np.array(50), "processor_seconds": np.array(4.0)}
    record, _ = figure1.EXPERIMENT.report({name: run | ends for name, run in runs.items()})
    assert record["inner"]["reached"] == [2.0, 2.0, 3.0]
    assert record["outer"]["reached"] == [4.0, 4.0, 4.0]
    assert figure1.EXPERIMENT.draw(runs) is not None


def test_measures_of_figure_3_match_direct_computation():
    z = np.array([[0.0, 0.0], [0.02, 0.0], [0.06, 0.0], [1.0, 1.0]])
    assert figure3.places(z) == 2
    assert figure3.places(z[[0, 2]]) == 2  # without the point between them, both points are separate places
    assert figure3.nearest(z[None]) == pytest.approx(np.median([0.02, 0.02, 0.04, np.sqrt(0.94**2 + 1)]))
    assert np.isnan(figure3.nearest(z[None, :1]))
    half = (figure3.grid()[:, 0] > 0).astype(int)
    edges = figure3.boundary(half)
    assert np.unique(edges[:, 0]).size == 2
    assert np.abs(edges[:, 0]).max() < 0.05
    assert figure3.to_boundary(np.array([[[1.0, 0.0]]]), edges) == pytest.approx(1.0, abs=0.05)
    assert np.isnan(figure3.to_boundary(z[None], figure3.boundary(np.zeros_like(half))))


def test_report_and_picture_of_figure_3_have_one_entry_for_each_size():
    half = (figure3.grid()[:, 0] > 0).astype(int)
    z = np.random.default_rng(0).normal(size=(3, 2, 2))
    run = {"first": z, "inducing": z, "labels": half, "points": np.array(20)}
    record, text = figure3.EXPERIMENT.report({"ep, M 2": run, "full": {"labels": 1 - half}})
    assert record["rows"][0]["agreement"] == 0.0
    assert "| 2 | EP |" in text
    figure = figure3.EXPERIMENT.draw({"ep, M 2": run})
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["M = 2"]


def test_data_of_figure_3_are_from_smooth_functions():
    X, y = figure3.draw_data(200)
    assert np.abs(X).max() <= figure3.HALF
    near = np.linalg.norm(X[:, None] - X, axis=-1) + 9.0 * np.eye(200)
    closest = near.argmin(axis=1)
    assert (y == y[closest])[near.min(axis=1) < 0.1].mean() > 0.8


def test_report_of_figure_4_has_mean_scores():
    curves = np.array([[1.0, 1.2, 0.5], [3.0, 0.6, 0.3]])
    runs = {f"sep, M 4, fold {k}": {"scores": curves + k * np.array([0.0, 0.1, 0.0]), "points": np.array(30)}
            for k in range(2)}  # fmt: skip
    record, _ = figure4.EXPERIMENT.report(runs)
    (run,) = record["runs"]
    assert run["score"] == pytest.approx([1.25, 0.65])
    assert run["reached"] == [3.0, 3.0, None, None]
    figure = figure4.EXPERIMENT.draw(figure4.EXPERIMENT.pictured(runs))
    assert figure is not None
    assert figure.axes[0].get_legend_handles_labels()[1] == ["SEP, M = 4"]
    assert figure.axes[0].lines[0].get_ydata() == pytest.approx([1.25, 0.65])


def test_report_of_overfitting_has_means_over_folds():
    curve = {"loss": np.array([9.0, 8.0, 7.0, 6.0, 5.0]), "iterations": np.array([1, 2, 5]),
             "scores": np.array([[0.1, 0.9, 0.4], [0.2, 0.7, 0.3], [0.5, 0.8, 0.3]])}  # fmt: skip
    shorter = curve | {"loss": curve["loss"][:2] - 1.0, "scores": curve["scores"][:2] + 0.2}
    runs = {
        "glass, M 10 %, ep, fold 0": curve,
        "glass, M 10 %, ep, fold 3": shorter,
        "waveform, M 10 %, vi, fold 0": curve,
    }
    record, text = overfitting.EXPERIMENT.report(runs)
    assert record["glass, M 10 %, ep"]["iterations"] == [1, 2]
    assert record["glass, M 10 %, ep"]["objective"] == [-8.5, -7.5]
    assert record["glass, M 10 %, ep"]["score"] == pytest.approx([1.0, 0.8])
    assert record["waveform, M 10 %, vi"]["objective"] == [-9.0, -8.0, -5.0]
    assert "| EP, objective | 2 | -8.5 | -7.5 |" in text
    figure = overfitting.EXPERIMENT.draw(runs)
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["Glass, M 10 %", "Waveform, M 10 %"]


def test_tables_by_iteration_are_averages_over_folds_beside_printed_scores() -> None:
    at = np.array([1, 2, 5])
    found = {
        f"{piece}, fold {k}": {
            "loss": np.arange(5.0) + k, "iterations": at, "scores": np.array([[0, 1, 0], [0, 2, 0], [0, 4.0 + k, 0]]),
        }
        for piece in ("waveform, M 10 %, gfitc", "vowel, M 5 %, sep", "glass, M 10 %, ep")
        for k in range(2)
    }  # fmt: skip
    tables = overfitting.EXPERIMENT.tables(found)
    assert tables.keys() == {"Waveform", "Vowel"}
    objective, score = tables["Waveform"].cells
    assert objective[:4] == ["GFITC, log Z_q", "2", "-0.5", "-4.5"]
    assert score[:4] == ["GFITC, held out", "2", "1.000", "4.500"]
    (row,) = tables["Vowel"].cells
    assert (row[0], row[-1]) == ("SEP, M = 5 %", f"{TABLE2['vowel', 5, 'sep'][0]:.2f}")
    assert {len(own) for own in (objective, score)} == {len(tables["Waveform"].columns)}


def test_held_out_rows_are_not_used_in_training():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), np.arange(40) % 2
    inducing = inducing_rows(X, 2, 3, 0)
    found = {name: run(name, Split(X, y, X, y), inducing, 10).fit for name in ("ep", "ep-kept-back")}
    assert found["ep"].log_posterior.blocks().rows.n_rows == 40
    assert found["ep-kept-back"].log_posterior.blocks().rows.n_rows == 32
    assert "the best score of 8 held-out rows" in found["ep-kept-back"].message


def test_scores_of_batches_match_direct_computation():
    p = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.0, 0.9, 0.1]])
    score, error = scores(p, np.array([0, 2, 2]))
    assert score == pytest.approx(-np.log([0.5, 0.7, 0.1]).mean())
    assert error == pytest.approx(1 / 3)
    noisy = with_label_noise(p)
    np.testing.assert_allclose(noisy.sum(axis=1), 1.0)
    assert noisy.min() == pytest.approx(1e-3 / 3)


def test_batch_model_accepts_equal_columns():
    X = np.random.default_rng(2).normal(size=(8, 3))
    X[:5, 1] = X[:5, 0]  # as in pixels of a few images
    y = np.arange(8) % 3
    model = batch_model(Split(X, y, X, y), shared=False)
    assert len(functions_of(read_classifier(model).prior, None)) == 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("start", [RANDOM, CENTRES, HELD])
def test_batch_fits_start_at_the_given_values(start, shared):
    X = np.random.default_rng(3).normal(size=(30, 2))
    split = Split(X, np.arange(30) % 3, X, np.arange(30) % 3)
    point = batch_model(split, shared, start=start).initial_point()
    np.testing.assert_allclose(np.exp(point["log_ls"]), start.length * typical_distance(X))
    assert ("log_amplitude" in point) != start.held
    if not start.held:
        np.testing.assert_allclose(np.exp(point["log_amplitude"]), start.amplitude)
    z = start.inducing(split, 4, shared)
    assert z.shape == ((4, 2) if shared else (3, 4, 2))
    at_rows = {tuple(row) for row in z.reshape(-1, 2)} <= {tuple(row) for row in X}
    assert at_rows != start.centres


@pytest.mark.slow
def test_interrupted_batch_fits_resume(tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(40, 2))
    y = np.arange(40) % 3
    split = Split(X, y, X[:6], y[:6])
    settings = {"method": "exact", "inducing": 3, "steps": 9, "batch": 10, "scored": [2, 7], "warmup": 1, "rate": 1e-3,
                "falls": True, "compiled": False}  # fmt: skip
    whole = learn(split, **settings, checkpoint=tmp_path / "whole")
    monkeypatch.setattr(batches, "MINUTES", 0.0)
    note = Follow.note

    def breaks_off(self, fit, step):
        if step == 7:
            raise OSError("the machine went away")
        note(self, fit, step)

    with monkeypatch.context() as broken:
        broken.setattr(Follow, "note", breaks_off)
        with pytest.raises(OSError, match="went away"):
            learn(split, **settings, checkpoint=tmp_path / "broken")
    assert [file.name for file in (tmp_path / "broken").glob("*.nc")] == ["6.nc"]
    resumed = learn(split, **settings, checkpoint=tmp_path / "broken")
    np.testing.assert_array_equal(resumed["scores"][:, 1:], whole["scores"][:, 1:])
    np.testing.assert_array_equal(resumed["losses"], whole["losses"])
    assert (np.diff(resumed["scores"][:, 0]) > 0.0).all()


def test_drawn_rows_follow_the_generating_model():
    split = drawn.drawn("", rows=3000, held_out=2000)
    assert split.X.shape == (3000, 8)
    p = drawn.Truth().predict_proba(split.Xnew)
    chosen = np.log(p[np.arange(2000), split.ynew])
    entropy = -(p * np.log(p)).sum(axis=1)
    assert abs(chosen.mean() + entropy.mean()) < 4 * chosen.std() / np.sqrt(2000)
    f = np.random.default_rng(1).normal(size=(50, 3)) * 3.0
    expected, _ = MultinomialProbitLikelihood().probabilities(f, np.zeros((50, 3, 3)))
    np.testing.assert_allclose(drawn.probit_probabilities(f), expected, atol=1e-4)


def test_report_of_batches_has_scores_and_memory():
    runs = {
        "logistic": {
            "scores": np.array([[2.0, 0, 0.27, 0.075, 0.26]]),
            "rows": np.array(600),
            "megabytes": np.array(800.4),
        },
        "sep": {
            "scores": np.array([[1.0, 10, 0.9, 0.5, 0.9], [9.0, 20, 0.1, 0.03, 0.09]]),
            "rows": np.array(600),
            "megabytes": np.array(900.0),
        },
    }
    record, text = MNIST.report(runs)
    assert "| SEP | 600 | 20 | 9 | 900 | 0.0300 | 0.1000 | 0.0900 | 0.0208, 0.0725 |" in text
    assert list(record) == ["logistic", "sep"]
    figure = MNIST.draw(runs)
    assert figure is not None
    draw_curves(figure.axes, {})
    assert figure.axes[0].get_legend_handles_labels()[1] == ["logistic regression", "SEP"]


def test_printed_cavity_of_stochastic_ep_removes_fewer_sites_for_many_classes():
    """N (C − 1) factors have two sites each.

    For two classes the printed cavity equals the package's cavity. For ten classes the package's cavity removes five
    times as many sites.
    """
    ours, printed = Stochastic(), PrintedCavity()
    for classes in (2, 10):
        counts = np.full(classes, 2.0 * 50 * (classes - 1) / classes)
        np.testing.assert_allclose(1.0 - printed.share(counts), 1.0 / (50 * (classes - 1)))
        np.testing.assert_allclose((1.0 - ours.share(counts)) / (1.0 - printed.share(counts)), classes / 2)


def test_figure_5_has_a_row_for_each_data_set() -> None:
    curve = np.array([[10.0, 50, 0.6, 0.2, 0.61], [20.0, 100, 0.5, 0.1, 0.51]])
    runs = {f"{source}, {method}": {"scores": curve, "losses": np.ones(3)}
            for source in ("mnist", "flights") for method in ("logistic", "ep-sites", "vi-step")}  # fmt: skip
    rows = FIGURE_5.tables(runs)["ends"].rows
    assert [row[:2] for row in rows[:2]] == [("MNIST", "logistic regression"), ("MNIST", "EP with stored sites")]
    assert rows[1][2:] == ("4", "0.1000, 0.5000", "0.1000, 0.5000", 20.0)
    figure = FIGURE_5.draw(FIGURE_5.pictured(runs))
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["MNIST", "", "flights", ""]
    assert FIGURE_5.tables({}) == {}


def test_table_of_the_longer_fit_of_mnist_leaves_out_its_first_epochs() -> None:
    scores = np.array([[1.0, 300, 0.9, 0.8, 0.7], [9.0, 1200, 0.5, 0.1, 0.45], [90.0, 7200, 0.25, 0.05, 0.2]])
    rows = MNIST.tables({LONGER: {"scores": scores}})["more epochs"].cells
    assert rows == [
        ["4.0", "1200", "9", "0.1000", "0.5000", "0.4500"],
        ["24.0", "7200", "90", "0.0500", "0.2500", "0.2000"],
    ]
    assert METHODS_BY_BATCH[LONGER]._replace(title="", epochs=None) == METHODS_BY_BATCH["vi-step"]._replace(title="")
    assert MNIST.tables({"vi-step": {"scores": scores}}) == {}


def test_table_of_figure_4_shows_averages_over_folds_at_some_iterations() -> None:
    scores = np.arange(39.0).reshape(13, 3)
    found = {f"vi, M 4, fold {k}": {"scores": scores + k, "points": np.array(30)} for k in range(2)}
    (row,) = figure4.EXPERIMENT.tables(found)["errors"].rows
    assert row == ("VI", 4, 2, "11.500, 10.500", "17.500, 16.500", "23.500, 22.500", "29.500, 28.500", "38.500, 37.500")


def test_starts_of_the_joint_bound_are_compared_on_the_same_folds() -> None:
    run = {"loss": np.array([9.0, 7.0]), "log_p": np.array([-0.5, -0.7])}
    found = {f"waveform, M 10 %, vi-joint, fold {k}": run for k in range(3)}
    found |= {f"waveform, M 10 %, vi-gpflow, fold {k}": run | {"loss": np.array([8.0])} for k in range(2)}
    assert EXPERIMENT.tables(found)["GPflow's start"].rows == [
        ("Waveform, 10 %", 2, "-7, 0.60", "-8, 0.60", "0.85"),
    ]
    found |= {f"satellite, M 10 %, {method}, fold 0": run for method in ("vi-joint", "vi-gpflow")}
    (row,) = EXPERIMENT.tables(found)["GPflow's start, Satellite"].rows
    assert row[:3] == ("Satellite, 10 %", 1, "-7, 0.60")
    assert len(EXPERIMENT.tables(found)["GPflow's start"].rows) == 1
