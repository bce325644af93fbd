"""Ratios of Laplace's normalisers, divided by their sum, equal the corrected predictions of the package."""

import csv

import numpy as np
import pymc as pm
import pytest
from sklearn.datasets import load_wine

from benchmarks.paper import predictive
from benchmarks.paper.tkp_sums import EXPERIMENT


@pytest.fixture
def folder(tmp_path):
    wine = load_wine()
    with (tmp_path / "wine.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*wine.feature_names, "label"])
        rows.writerows([*x, label] for x, label in zip(wine.data, wine.target, strict=True))
    return str(tmp_path)


def test_normalised_ratios_equal_corrected_predictions(folder):
    cell = EXPERIMENT.cells(folder, quick=True)[0]
    found = {key: np.asarray(value) for key, value in cell.function(**cell.arguments).items()}
    split = predictive.load(folder, "wine", 0, cell.arguments["size"])
    model, gp = predictive.classifier(split, ard=True, softmax=True)
    fit = pm.fit(method="laplace", model=model, hyper="map", progressbar=False)
    corrected = fit.predict(gp, split.Xnew, correction="tk")["p"].values
    sums = found["ratios"].sum(axis=1)
    np.testing.assert_allclose(found["ratios"] / sums[:, None], corrected, atol=1e-5)
    assert np.abs(sums - 1).max() > 1e-3
    table = EXPERIMENT.tables({cell.name: found})["densities"]
    np.testing.assert_allclose(table.rows[0][3] - table.rows[0][4], np.log(sums).mean())
