"""Verdicts of `importance()` on a fit at each point, against exact results by sampling.

Prints a Markdown table. Hyperparameters are fixed. Elliptical slice sampling draws the exact posterior of the latent
values, with fifty chains at once. All seeds are fixed.
"""

import argparse
import logging
import sys
from pathlib import Path

import numpy as np
import pymc as pm
from common import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the data of the tests

import pymc_gpep as gpep
from tests.reference.data import iris, squared_exponential
from tests.reference.elliptical_slices import slices

Array = np.ndarray
METHODS = (("nested_ep", False), ("iep", False), ("vb", False), ("laplace", False), ("laplace", True))
OF_THE_PROBIT = METHODS[:4]


Data = tuple[Array, Array]


def sixty(X: Array, y: Array) -> Data:
    """Sixty of the points, standardised, without constant inputs."""
    chosen = np.random.default_rng(0).permutation(len(y))[:60]
    X = X[chosen][:, X[chosen].std(0) > 0]
    return (X - X.mean(0)) / X.std(0), y[chosen]


def some_iris() -> Data:
    """Sixty flowers, standardised together with all others."""
    X, y = iris()
    chosen = np.random.default_rng(0).permutation(len(y))[:60]
    return X[chosen], y[chosen]


def some_wine() -> Data:
    return sixty(*load_wine(return_X_y=True))


def some_tumours() -> Data:
    return sixty(*load_breast_cancer(return_X_y=True))


def some_digits() -> Data:
    """Digits 0 to 4."""
    return sixty(*load_digits(n_class=5, return_X_y=True))


def drawn(classes: int, variance: float, lengthscale: float) -> Data:
    """Sixty points in the plane, with labels drawn from the model."""
    rng = np.random.default_rng([7, classes])
    X = rng.standard_normal((60, 2))
    K = squared_exponential(X, variance=variance, lengthscale=lengthscale) + 1e-8 * np.eye(60)
    f = np.linalg.cholesky(K) @ rng.standard_normal((60, classes))
    return X, (f + rng.standard_normal(f.shape)).argmax(1)


ON_IRIS = (("iris", some_iris, 4.0, 1.5), ("iris", some_iris, 1000.0, 3.0))
ELSEWHERE = (
    ("wine", some_wine, 16.0, 4.0),
    ("breast cancer", some_tumours, 16.0, 6.0),
    ("digits 0 to 4", some_digits, 16.0, 8.0),
    ("drawn, 3 classes", lambda: drawn(3, 4.0, 0.7), 4.0, 0.7),
    ("drawn, 6 classes", lambda: drawn(6, 9.0, 1.0), 9.0, 1.0),
)


def model_of(X: Array, y: Array, variance: float, lengthscale: float, softmax: bool) -> pm.Model:
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=variance * pm.gp.cov.ExpQuad(X.shape[1], ls=lengthscale))
        f = gp.prior("f", X=X, n_outputs=y.max() + 1)
        if softmax:
            pm.Categorical("y", logit_p=f.T, observed=y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=y)
    return model


def probabilities_of_labels(fit: gpep.Fit, f: Array) -> Array:
    """Average over draws f (draws, c, n) of the probability of each label, (n,)."""
    likelihood, labels = fit.solution.likelihood, fit.solution.labels
    return np.exp([likelihood.log_density(f[..., [i]], labels[[i]]) for i in range(len(labels))]).mean(axis=1)


def root_mean_square(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))


def trust(problems: tuple, methods: tuple, steps: int) -> Table:
    rows = []
    for name, data, variance, lengthscale in problems:
        X, y = data()
        exact: dict[bool, Array] = {}
        for method, softmax in methods:
            with model_of(X, y, variance, lengthscale, softmax):
                fit = pm.fit(method=method, hyper="map", progressbar=False, random_seed=1)
            posterior, solution = fit.solution.posterior, fit.solution
            if softmax not in exact:
                draws = slices(posterior, solution.likelihood, solution.labels, steps=steps, burn=steps // 10)
                exact[softmax] = probabilities_of_labels(fit, draws)
            fitted = probabilities_of_labels(fit, posterior.draw(np.random.default_rng(3), 20_000))
            check = fit.importance(4000, random_seed=4)
            shift = exact[softmax] - fitted
            known = check.points["size"].values > 0
            found = check.points["shift"].values
            agree = np.corrcoef(found[known], shift[known])[0, 1] if known.sum() > 2 else None
            rows.append(
                (
                    f"{name}, σ² = {variance:.4g}, ℓ = {lengthscale:.2g}", method + (", softmax" if softmax else ""),
                    check.pareto_k, f"{check.effective_size:.0f}", check.draws_verdict, check.fit_verdict,
                    f"{known.sum()} of {len(y)}", check.probability_shift, root_mean_square(shift), agree,
                )
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return Table(
        f"{len(rows)} fits beside the truth",
        ("problem", "method", "k", "worth", "draws", "fit", "known at", "off, by blocks", "off, truth", "correlation"),
        ("", "", ".2f", "", "", "", "", ".4f", ".4f", ".2f"),
        rows,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="draws of the sampler")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    logging.getLogger("pymc_gpep").setLevel(logging.ERROR)
    steps = parser.parse_args().steps
    print(trust(ON_IRIS, METHODS, steps), trust(ELSEWHERE, OF_THE_PROBIT, steps), sep="\n\n")
