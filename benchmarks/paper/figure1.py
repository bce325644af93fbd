"""Figure 1: tilted moments of inner EP and of quadratures, at log σ² = 1 and log ℓ = 1.

After two parallel undamped sweeps of nested EP, the log normalisers, means and covariances of all tilted distributions
are compared with the Gauss–Hermite product rule with ten nodes in each of the c + 1 dimensions of f and u (QF10).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper import data as sets
from benchmarks.paper.fixed import covariance
from pymc_gpep.approximations import NestedEP
from pymc_gpep.rivals.kernels.quadrature_ep import truncated_moments
from pymc_gpep.rivals.qep import quadrature_rule
from tests.reference.dense_nested_ep import inner_ep
from tests.reference.tilted import Tilted, cavity_of_g, of_latents, product_rule

Array = np.ndarray

LOG_VARIANCE, LOG_LENGTHSCALE = 1.0, 1.0
CHUNKS = {"glass": 9, "usps357": 4}
METHODS = ("inner EP", "QD10", "Q10", "QD5", "Q5", "truncated", "truncated, diagonal")
"""The paper's methods, and the default rule of `QEP`."""
ON_THE_PAGE = ("inner EP", "QD10", "Q10", "QD5", "truncated")
SHORT = {"glass": "Glass", "usps357": "USPS"}
QUANTITIES = ("log normalisers", "means", "covariances")
AVERAGED = "log normalisers"
"""The only quantity whose mean is in the table.

A label is not informative on the level of all classes, so that each rule leaves the sum of means and covariances
unchanged. Their average minus QF10's is the same for all rules: the error of QF10.
"""


def load(name: str, folder: str, size: int) -> tuple[Array, Array, int]:
    """Inputs, labels and the number of classes, of the first `size` points in random order, or of all points if 0."""
    if name == "glass":
        X, y = sets.whole(name, folder)
    else:
        X, y = sets.split(name, folder)[:2]
    chosen = np.random.default_rng(1).permutation(y.size)[:size] if size else slice(None)
    return X[chosen], y[chosen], int(y.max()) + 1


def cavities(K: Array, y: Array, c: int) -> tuple[Array, Array]:
    """Cavity moments (n, c) and (n, c, c) of all points after two sweeps."""
    two = NestedEP(depth=0, damping=1.0, max_iterations=2, ladder=False)
    sites = two.solve(K, np.zeros((c, y.size)), y).start
    once = NestedEP(depth=0, damping=1.0, max_iterations=1, ladder=False)
    after = once.solve(K, np.zeros((c, y.size)), y, start=sites)
    return after.posterior.cavities(after.mean, after.cov)


def full_product_rule(mean: Array, cov: Array, y: int, order: int = 10) -> Tilted:
    """QF10, summed for one node of the first three dimensions at a time: six classes have ten million nodes."""
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
    """The default rule of QEP."""
    factor, mean, cov = np.linalg.cholesky(C), np.empty(mu.size), np.empty(C.shape)
    log_z = truncated_moments(mu, C, factor, quadrature_rule("truncated", order), np.full(mu.size, -1), mean, cov)
    return Tilted(log_z, mu + factor @ mean, factor @ cov @ factor.T)


def with_diagonal(tilted: Tilted, C: Array) -> Tilted:
    """Keep the diagonal of Λ only."""
    precision = np.linalg.inv(C)
    diagonal = np.diag(np.diag(np.linalg.inv(tilted.covariance) - precision))
    return tilted._replace(covariance=np.linalg.inv(precision + diagonal))


def moments(mean: Array, cov: Array, y: int) -> Iterator[tuple[str, Tilted]]:
    """Moments of f by each method: "Q" and "truncated" rules with their number of nodes, full or diagonal ("D")."""
    inner = inner_ep(mean, cov, y)
    c = mean.size
    yield "inner EP", Tilted(inner.log_normaliser, inner.mean[:c], inner.covariance[:c, :c])
    mu, C = cavity_of_g(mean, cov, y)
    for order in (5, 10):
        tilted = product_rule(mu, C, order)
        yield f"Q{order}", of_latents(mean, cov, y, tilted)
        yield f"QD{order}", of_latents(mean, cov, y, with_diagonal(tilted, C))
    tilted = truncated_rule(mu, C, 10)
    yield "truncated", of_latents(mean, cov, y, tilted)
    yield "truncated, diagonal", of_latents(mean, cov, y, with_diagonal(tilted, C))


def differences(name: str, folder: str, size: int, chunk: int, chunks: int) -> Arrays:
    """All differences from QF10 at every `chunks`-th point, by method and quantity."""
    X, y, c = load(name, folder, size)
    columns: dict[str, list[Array]] = {}
    with threadpool_limits(1):
        means, covs = cavities(covariance(X, LOG_VARIANCE, LOG_LENGTHSCALE), y, c)
        for i in range(chunk, y.size, chunks):
            reference = full_product_rule(means[i], covs[i], int(y[i]))
            for method, found in moments(means[i], covs[i], int(y[i])):
                for quantity, a, b in zip(QUANTITIES, found, reference, strict=True):
                    columns.setdefault(f"{method}: {quantity}", []).append(np.ravel(a - b))
    return {key: np.concatenate(column) for key, column in columns.items()}


class Figure1(Experiment):
    title = "Figure 1: tilted moments, minus the moments by a product rule in c + 1 dimensions (QF10)"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        sizes = {"glass": 4, "usps357": 40} if quick else {"glass": 0, "usps357": 0}
        return [
            Cell(
                f"{name} {chunk}",
                differences,
                {"name": name, "folder": data, "size": sizes[name], "chunk": chunk, "chunks": chunks},
            )
            for name, chunks in (dict.fromkeys(CHUNKS, 2) if quick else CHUNKS).items()
            for chunk in range(chunks)
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record, texts = {}, []
        for name in CHUNKS:
            record[name] = _summaries(name, found)
            lines = [f"## {sets.TITLES[name]}", "", *([sets.NOTES[name], ""] if name in sets.NOTES else [])]
            if record[name]:
                points = sum(x["inner EP: log normalisers"].size for x in _chunks(name, found))
                lines += [f"{points} points.", "", *_table(record[name])]
            else:
                lines.append("Not computed.")
            texts.append("\n".join(lines))
        texts.append(
            "The paper shows the differences in a picture, and states: quadratures are well calibrated, their "
            "differences are small with enough nodes, and inner EP matches means and covariances, with a small bias "
            "of the normaliser. The average of means and of covariances is not in the table: it is the same for all "
            "rules, because a label does not change the sum of the means or of the covariances over classes."
        )
        return record, "\n\n".join(texts)

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return {
            name: {
                f"{method}: {quantity}": np.array(own[quantity])
                for method, own in _summaries(name, found).items()
                for quantity in QUANTITIES
            }
            for name in CHUNKS
            if _chunks(name, found)
        }

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for name, title in SHORT.items():
            for method in ON_THE_PAGE:
                normaliser, *others = (pictured[name][f"{method}: {quantity}"] for quantity in QUANTITIES)
                digits = 5 if method == "truncated" else 4
                ends = (", ".join(f"{x:z.{digits}f}" for x in each[1:]) for each in (normaliser, *others))
                rows.append((title, method, f"{normaliser[0]:z.4f}", *ends))
        columns = ("data", "method", "log normaliser: mean", "interval", "means: interval", "covariances: interval")
        return {"moments": Table("Differences of tilted moments", columns, ("",) * len(columns), rows)}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not found:
            return None
        figure = Figure(figsize=(11, 3.25 * len(found)), layout="constrained")
        axes = figure.subplots(len(found), len(QUANTITIES), squeeze=False)
        for row, (name, summaries) in zip(axes, found.items(), strict=True):
            for ax, quantity in zip(row, QUANTITIES, strict=True):
                ax.set_title(f"{sets.TITLES[name]}: {quantity}", fontsize=10)
                middle, low, high = np.array([summaries[f"{method}: {quantity}"] for method in METHODS]).T
                at = np.arange(len(METHODS))
                # the interval of a skewed distribution may exclude its mean
                ax.vlines(at, low, high, color="#0072b2", linewidth=6, alpha=0.5)
                ax.plot(at, middle, "_", color="black", markersize=14)
                ax.axhline(0, color="#555555", linewidth=0.8, linestyle=":")
                ax.set_xticks(at, METHODS, rotation=35, ha="right")
                ax.ticklabel_format(axis="y", scilimits=(-3, 3))
        return figure


def _chunks(name: str, found: Mapping[str, Arrays]) -> list[Arrays]:
    return [x for key, x in found.items() if key.startswith(f"{name} ")]


def _summaries(name: str, found: Mapping[str, Arrays]) -> dict[str, dict[str, list[float]]]:
    """Mean and 95 % interval of the differences, by method and quantity."""
    chunks = _chunks(name, found)
    if not chunks:
        return {}
    summaries: dict[str, dict[str, list[float]]] = {method: {} for method in METHODS}
    for method, own in summaries.items():
        for quantity in QUANTITIES:
            values = np.concatenate([x[f"{method}: {quantity}"] for x in chunks])
            own[quantity] = [float(values.mean()), *map(float, np.quantile(values, [0.025, 0.975]))]
    return summaries


def _table(summaries: Mapping[str, Mapping[str, list[float]]]) -> list[str]:
    columns = [(quantity, i) for quantity in QUANTITIES for i in range(3) if i or quantity == AVERAGED]
    heads = [f"{quantity}: {('mean', '2.5 %', '97.5 %')[i]}" for quantity, i in columns]
    lines = [f"| method | {' | '.join(heads)} |", "| --- " * (1 + len(heads)) + "|"]
    for method, own in summaries.items():
        cells = [f"{own[quantity][i]:+z.5f}" for quantity, i in columns]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


EXPERIMENT = Figure1()
