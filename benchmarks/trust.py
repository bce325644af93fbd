"""What `importance()` says of a fit at each point, beside the truth by sampling.

Prints a Markdown table. Hyperparameters are fixed; the exact posterior of the latent values is sampled by elliptical
slices, fifty chains at a time. Everything is seeded.
"""

import argparse
import logging
import sys
from pathlib import Path

import numpy as np
import pymc as pm
from common import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the data of the tests

import pymc_gpep as gpep
from tests.reference.data import iris
from tests.reference.elliptical_slices import slices

Array = np.ndarray
METHODS = (("nested_ep", False), ("iep", False), ("vb", False), ("laplace", False), ("laplace", True))


def some_iris() -> tuple[Array, Array]:
    """Sixty of the flowers."""
    X, y = iris()
    chosen = np.random.default_rng(0).permutation(len(y))[:60]
    return X[chosen], y[chosen]


PROBLEMS = (("iris", some_iris, 4.0, 1.5), ("iris", some_iris, 1000.0, 3.0))


def model_of(X: Array, y: Array, variance: float, lengthscale: float, softmax: bool) -> pm.Model:
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=variance * pm.gp.cov.ExpQuad(X.shape[1], ls=lengthscale))
        f = gp.prior("f", X=X, n_outputs=3)
        if softmax:
            pm.Categorical("y", logit_p=f.T, observed=y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=y)
    return model


def probabilities_of_labels(fit: gpep.GPApproximation, f: Array) -> Array:
    """Average over draws f (draws, c, n) of the probability of each label, (n,)."""
    likelihood, labels = fit.solution.likelihood, fit.solution.labels
    return np.exp([likelihood.log_density(f[..., [i]], labels[[i]]) for i in range(len(labels))]).mean(axis=1)


def root_mean_square(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))


def trust(steps: int) -> Table:
    rows = []
    for name, data, variance, lengthscale in PROBLEMS:
        X, y = data()
        exact: dict[bool, Array] = {}
        for method, softmax in METHODS:
            with model_of(X, y, variance, lengthscale, softmax):
                fit = pm.fit(method=method, progressbar=False, random_seed=1)
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
    parser.add_argument("--steps", type=int, default=600, help="of the sampler")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    logging.getLogger("pymc_gpep").setLevel(logging.ERROR)
    print(trust(parser.parse_args().steps))
