"""Figure 1 of the nested EP paper (Riihimäki, Jylänki and Vehtari 2013) on the Glass data: tilted moments.

After two parallel undamped sweeps of nested EP at log σ² = 1 and log ℓ = 1, the log normalisers, means and covariances
of all tilted distributions, of inner EP and of quadratures, less those of the Gauss–Hermite product rule with ten nodes
in each of the c + 1 dimensions of f and u (QF10). Prints means and 95 % intervals of the differences as Markdown.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the references of the tests

import pymc_gpep as gpep
from benchmarks.glass import covariance, glass
from pymc_gpep.approximations.qep import quadrature_rule
from pymc_gpep.kernels.truncated_quadrature import truncated_moments
from tests.reference.dense_nested_ep import inner_ep, site
from tests.reference.tilted import Tilted, cavity_of_g, of_latents, product_rule

Array = np.ndarray


def cavities(K: Array, y: Array, c: int) -> Iterator[tuple[Array, Array]]:
    """Cavity moments of every point after two sweeps."""
    two = gpep.NestedEP(memory=0, damping=1.0, max_iterations=2, ladder=False)
    sites = two.solve(K, np.zeros((c, y.size)), y).sites
    once = gpep.NestedEP(memory=0, damping=1.0, max_iterations=1, ladder=False)
    after = once.solve(K, np.zeros((c, y.size)), y, start=sites)
    alpha, beta = sites.reshape(2, y.size, c - 1)
    for i, label in enumerate(y):
        precision, location = site(alpha[i], beta[i], int(label))
        inverse = np.linalg.inv(after.cov[i])
        own = np.linalg.inv(inverse - precision)
        yield own @ (inverse @ after.mean[:, i] - location), (own + own.T) / 2


def full_product_rule(mean: Array, cov: Array, y: int, order: int = 10) -> Tilted:
    """QF10, summed one node of the first three dimensions at a time: there are ten million with six classes."""
    c = mean.size
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    root = np.eye(c + 1)
    root[:c, :c] = np.linalg.cholesky(cov)
    others = np.delete(np.arange(c), y)
    to_g = root[[y]] - root[others] + root[[c]]
    offset = mean[y] - mean[others]
    split = min(3, c)

    def grid(dimensions: int) -> tuple[Array, Array]:
        x = np.stack(np.meshgrid(*[nodes] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
        w = np.stack(np.meshgrid(*[weights] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
        return x, w.prod(axis=1)

    outer, outer_weights = grid(split)
    inner, inner_weights = grid(c + 1 - split)
    from_outer, from_inner = offset + outer @ to_g[:, :split].T, to_g[:, split:] @ inner.T
    total, first, second = 0.0, np.zeros(c + 1), np.zeros((c + 1, c + 1))
    for x, w, g in zip(outer, outer_weights, from_outer, strict=True):
        mass = w * inner_weights
        for own, rest in zip(g, from_inner, strict=True):
            mass *= ndtr(own + rest)
        zeroth, once = mass.sum(), mass @ inner
        moment = np.concatenate([zeroth * x, once])
        total += zeroth
        first += moment
        second[:split, :] += np.outer(x, moment)
        second[split:, :split] += np.outer(once, x)
        second[split:, split:] += (mass[:, None] * inner).T @ inner
    first, second = first / total, second / total
    cov_w = root @ (second - np.outer(first, first)) @ root.T
    return Tilted(float(np.log(total)), mean + (root @ first)[:c], cov_w[:c, :c])


def truncated_rule(mu: Array, C: Array, order: int) -> Tilted:
    """The rule that QEP takes by default."""
    factor, mean, cov = np.linalg.cholesky(C), np.empty(mu.size), np.empty(C.shape)
    log_z = truncated_moments(mu, C, factor, quadrature_rule("truncated", order), np.full(mu.size, -1), mean, cov)
    return Tilted(log_z, mu + factor @ mean, factor @ cov @ factor.T)


def with_diagonal(tilted: Tilted, C: Array) -> Tilted:
    """Only the diagonal of Λ is kept."""
    precision = np.linalg.inv(C)
    diagonal = np.diag(np.diag(np.linalg.inv(tilted.covariance) - precision))
    return tilted._replace(covariance=np.linalg.inv(precision + diagonal))


def moments(mean: Array, cov: Array, y: int) -> Iterator[tuple[str, Tilted]]:
    inner = inner_ep(mean, cov, y)
    c = mean.size
    yield "inner EP", Tilted(inner.log_normaliser, inner.mean[:c], inner.covariance[:c, :c])
    mu, C = cavity_of_g(mean, cov, y)
    for order in (5, 10):
        tilted = product_rule(mu, C, order)
        yield f"Q{order}", of_latents(mean, cov, y, tilted)
        yield f"QD{order}", of_latents(mean, cov, y, with_diagonal(tilted, C))
    tilted = truncated_rule(mu, C, 10)
    yield "truncated, 10", of_latents(mean, cov, y, tilted)
    yield "the same, diagonal", of_latents(mean, cov, y, with_diagonal(tilted, C))
    yield "truncated, 16", of_latents(mean, cov, y, truncated_rule(mu, C, 16))


def main(folder: Path, quick: bool, path: Path | None) -> None:
    X, y = glass(folder)
    c = y.max() + 1
    differences: dict[str, tuple[list[Array], ...]] = {}
    with threadpool_limits(1):
        for i, (mean, cov) in enumerate(cavities(covariance(X), y, c)):
            if quick and i % 30:
                continue
            reference = full_product_rule(mean, cov, int(y[i]))
            for name, found in moments(mean, cov, int(y[i])):
                columns = differences.setdefault(name, ([], [], []))
                for column, a, b in zip(columns, found, reference, strict=True):
                    column.append(np.ravel(a - b))
    print("| method | log Ẑ: mean | 2.5 % | 97.5 % | μ̂: mean | 2.5 % | 97.5 % | Σ̂: mean | 2.5 % | 97.5 % |")
    print("| --- " * 10 + "|")
    record = {}
    for name, columns in differences.items():
        cells = []
        for column in columns:
            values = np.concatenate(column)
            cells += [float(values.mean()), *map(float, np.quantile(values, [0.025, 0.975]))]
        print(f"| {name} |", " | ".join(f"{x:+.5f}" for x in cells), "|")
        record[name] = cells
    if path:
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder with glass.csv")
    parser.add_argument("--quick", action="store_true", help="one point in thirty")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well, unrounded")
    arguments = parser.parse_args()
    main(arguments.data, arguments.quick, arguments.json)
