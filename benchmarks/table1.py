"""Table 1 of the nested EP paper (Riihimäki, Jylänki and Vehtari 2013) on the Glass data: EPs against Gibbs sampling.

Mean and largest absolute differences of latent means, latent variances and class probabilities, on a random half for
training and the other for testing, at log σ² = 1 and log ℓ = 1. The paper's split is not known, so that its figures,
printed beside ours, are those of another one. Prints a Markdown table.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the references of the tests

import pymc_gpep as gpep
from benchmarks.glass import covariance, glass
from tests.reference.gibbs import draw_utilities

Array = np.ndarray
METHODS = {"nested EP": gpep.NestedEP(), "QEP": gpep.QEP(full=False), "IEP": gpep.IEP(), "QIEP": gpep.QIEP()}
QUANTITIES = ("means", "variances", "probabilities")
PARTS = ("training", "test")

# Mean and largest differences in the paper, in the order of METHODS.
PAPER = {
    ("training", "means"): ((0.048, 0.047, 0.058, 0.067), (0.181, 0.186, 0.190, 0.217)),
    ("training", "variances"): ((0.084, 0.085, 0.325, 0.325), (0.553, 0.560, 0.656, 0.667)),
    ("training", "probabilities"): ((0.004, 0.004, 0.004, 0.004), (0.025, 0.026, 0.021, 0.021)),
    ("test", "means"): ((0.043, 0.043, 0.055, 0.058), (0.176, 0.177, 0.193, 0.181)),
    ("test", "variances"): ((0.097, 0.097, 0.314, 0.314), (0.571, 0.572, 0.643, 0.655)),
    ("test", "probabilities"): ((0.003, 0.004, 0.004, 0.004), (0.021, 0.022, 0.024, 0.024)),
}


@dataclass
class Sampled:
    """Posterior means, variances and class probabilities (c, points), their standard errors, and r-hat of the means."""

    values: dict[str, Array]
    errors: dict[str, Array]
    r_hat: Array


def probabilities_of_independent(mean: Array, variance: Array, order: int = 24) -> Array:
    """Class probabilities for independent latent values: moments (..., c), one quadrature for each class."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    sigma = np.sqrt(1.0 + variance)
    p = np.empty(mean.shape)
    for k in range(mean.shape[-1]):
        t = mean[..., k, None] + sigma[..., k, None] * nodes
        product = np.broadcast_to(weights, t.shape).copy()
        for j in range(mean.shape[-1]):
            if j != k:
                product *= ndtr((t - mean[..., j, None]) / sigma[..., j, None])
        p[..., k] = product.sum(axis=-1)
    return p / p.sum(axis=-1, keepdims=True)


def sample(K: Array, n: int, y: Array, c: int, *, sweeps: int, burn: int, chains: int, seed: int) -> Sampled:
    """Gibbs sampling given the labels of the first `n` points, for all the points of `K`.

    The mean of f over the classes, which no label says anything about, keeps its prior: it is drawn from that in each
    sweep, and only the differences from it are averaged. Averages are over E[· | utilities]. Each of twenty batches of
    a chain counts as one observation for the standard errors.
    """
    rng = np.random.default_rng(seed)
    batches, thin = 20, 10
    length = sweeps // batches
    gain = np.linalg.solve(K[:n, :n] + np.eye(n), K[:n]).T
    conditional = np.diagonal(K) - np.einsum("ij,ji->i", gain, K[:n])
    values, vectors = np.linalg.eigh(K[:n, :n])
    values = np.maximum(values, 0.0)
    prior_root = vectors * np.sqrt(values)
    conditional_root = vectors * np.sqrt(values / (values + 1.0))
    f = rng.standard_normal((chains, c, n)) @ prior_root.T
    first, second, p = np.zeros((3, batches, chains, c, len(K)))
    for sweep in range(-burn, batches * length):
        f += rng.standard_normal((chains, 1, n)) @ prior_root.T / np.sqrt(c) - f.mean(axis=1, keepdims=True)
        v = draw_utilities(rng, f, y)
        expected = v @ gain.T
        f = expected[..., :n] + rng.standard_normal(f.shape) @ conditional_root.T
        if sweep >= 0:
            difference = expected - expected.mean(axis=1, keepdims=True)
            first[sweep // length] += difference
            second[sweep // length] += difference**2
            if sweep % thin == 0:
                moved = np.moveaxis(expected, 1, -1)
                probability = probabilities_of_independent(moved, np.broadcast_to(conditional[:, None], moved.shape))
                p[sweep // length] += np.moveaxis(probability, -1, 1)
    first, second = first / length, second / length
    p /= len(range(0, length, thin))
    centre = first.mean(axis=(0, 1))
    spread = second - 2.0 * first * centre + centre**2
    own = conditional * (1.0 - 1.0 / c) + np.diagonal(K) / c
    found = {"means": centre, "variances": spread.mean(axis=(0, 1)) + own, "probabilities": p.mean(axis=(0, 1))}
    of_batches = {"means": first, "variances": spread, "probabilities": p}
    errors = {key: x.reshape(-1, *x.shape[2:]).std(axis=0, ddof=1) / np.sqrt(batches * chains)
              for key, x in of_batches.items()}  # fmt: skip
    within = (second.mean(axis=0) - first.mean(axis=0) ** 2).mean(axis=0)
    between = first.mean(axis=0).var(axis=0, ddof=1)
    return Sampled(found, errors, np.sqrt(1.0 + between / within))


def approximate(method: object, K: Array, n: int, y: Array, c: int) -> dict[str, Array]:
    """The same of an approximation."""
    solution = method.solve(K[:n, :n], np.zeros((c, n)), y)
    if not solution.convergence.converged:
        raise SystemExit(f"{method}: {solution.convergence}")
    mean, cov = solution.posterior.predict(K[None, n:, :n], np.diagonal(K)[None, n:], np.zeros((c, len(K) - n)))
    mean = np.concatenate([solution.mean, mean], axis=1)
    cov = np.concatenate([solution.cov, cov])
    p, _ = gpep.class_probabilities(mean.T, cov)
    return {"means": mean, "variances": np.einsum("iaa->ai", cov), "probabilities": p.T}


def main(folder: Path, quick: bool, path: Path | None) -> None:
    X, y = glass(folder)
    c = y.max() + 1
    order = np.random.default_rng(1).permutation(y.size)
    X, y = X[order], y[order]
    n = y.size // 2
    K = covariance(X)
    chains, sweeps, burn = (8, 400, 100) if quick else (16, 20_000, 1_000)
    with threadpool_limits(1):
        exact = sample(K, n, y[:n], c, sweeps=sweeps, burn=burn, chains=chains, seed=1)
        found = {name: approximate(method, K, n, y[:n], c) for name, method in METHODS.items()}
    effective = exact.values["variances"] / exact.errors["means"] ** 2
    print(f"Gibbs: {chains} × {sweeps} sweeps, r-hat at most {exact.r_hat.max():.3f}, "
          f"effective size of the means at least {effective.min():.0f}\n")  # fmt: skip
    print("| points | of | difference | Gibbs error |", " | ".join(f"{name} (paper)" for name in METHODS), "|")
    print("| --- " * (4 + len(METHODS)) + "|")
    rows = []
    for part, points in zip(PARTS, (slice(0, n), slice(n, None)), strict=True):
        for quantity in QUANTITIES:
            noise = exact.errors[quantity][:, points]
            for how, reduce, theirs in zip(("mean", "max"), (np.mean, np.max), PAPER[part, quantity], strict=True):
                ours = [
                    float(reduce(np.abs(found[name][quantity] - exact.values[quantity])[:, points])) for name in METHODS
                ]
                cells = [f"{x:.4f} ({paper:.3f})" for x, paper in zip(ours, theirs, strict=True)]
                print(f"| {part} | {quantity} | {how} | {reduce(noise):.4f} |", " | ".join(cells), "|")
                rows.append({"points": part, "of": quantity, "difference": how, "gibbs_error": float(reduce(noise)),
                             **dict(zip(METHODS, ours, strict=True))})  # fmt: skip
    if path:
        record = {"chains": chains, "sweeps": sweeps, "r_hat": float(exact.r_hat.max()), "rows": rows}
        path.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder with glass.csv")
    parser.add_argument("--quick", action="store_true", help="few sweeps: rough figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well, unrounded")
    arguments = parser.parse_args()
    main(arguments.data, arguments.quick, arguments.json)
