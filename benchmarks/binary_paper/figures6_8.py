"""Figures 6 to 8: marginals of latent values, and predictive probabilities, against MCMC; USPS 3 vs. 5, logit."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from matplotlib.figure import Figure
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import gaussian_kde, norm

import pymc_gpep as gpep
from benchmarks.binary_paper.covariances import JITTER, Priors
from benchmarks.binary_paper.data import USPS, load
from benchmarks.binary_paper.methods import EVERY, LINKS
from benchmarks.binary_paper.paths import at_held_out
from benchmarks.binary_paper.sweep import log_density
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.plots.canvas import NEUTRAL, colours

Array = np.ndarray

SETTINGS = {"Figure 6": (2.25, 4.25), "Figure 8": (3.0, 0.5)}
"""log ℓ and log σ_f. Figure 7 is a point of figure 6."""
LINK = LINKS["logit"]
METHODS = ("LA", "EP", "VB", "KL", "FV", "LR", "TAPnaive")
SHOWN = METHODS[:5]
PARTS = ("training", "test")
QUANTITIES = ("mean", "sd", "p")
DIGIT = 352
"""The point of figure 7, number 353 in the paper."""
DRAWN = 2000
"""Number of draws for its density."""
DECIMALS = 3
"""Decimals that the picture shows."""
R_HAT, ESS = 1.01, 400.0

PAPER = (
    "The paper has pictures, and says: in figure 6, LA strongly underestimates the absolute means, and its standard "
    "deviations and probabilities are too small; EP almost perfectly agrees with MCMC; KL slightly underestimates "
    "standard deviations and overestimates absolute means, VB more so; FV underestimates both. In figure 8 all but FV "
    "agree."
)


class Reference(NamedTuple):
    """Results of chains for a quantity: values and standard errors (points,)."""

    value: Array
    error: Array


def fit(data: str, method: str, setting: Sequence[float], size: list[int] | None) -> dict[str, Any]:
    """Means, standard deviations and probabilities of class 1 at training and test points."""
    split = load(USPS, data, size=size)
    prior = Priors(split, "squared exponential").at(*setting)
    solution = EVERY[method].solve(prior.k, np.zeros((1, split.y.size)), split.y, likelihood=LINK)
    moments = {"training": (solution.mean[0], solution.cov[:, 0, 0]), "test": at_held_out(solution, prior)}
    found = {"evidence": solution.evidence, "bound": solution.lower_bound, "y": split.y}
    for part, (mean, variance) in moments.items():
        p = np.exp(log_density(LINK, mean, variance, np.ones(mean.size, np.int64)))
        found |= {f"{part} mean": mean, f"{part} sd": np.sqrt(variance), f"{part} p": p}
    return found | {"converged": solution.convergence.converged}


def chain(
    data: str, setting: Sequence[float], seed: int, draws: int, tune: int, thin: int, size: list[int] | None
) -> dict[str, Any]:
    """One chain: every `thin`-th draw of latent values, their means at test points given these, and probabilities."""
    split = load(USPS, data, size=size)
    prior = Priors(split, "squared exponential").at(*setting)
    logging.getLogger("pymc").setLevel(logging.ERROR)  # show the progress of cells only
    with warnings.catch_warnings():
        # PyMC warns about copies of models with Gaussian processes, and about problems that the report shows.
        warnings.simplefilter("ignore")
        with pm.Model():
            kernel = np.exp(2.0 * setting[1]) * pm.gp.cov.ExpQuad(split.X.shape[1], ls=np.exp(setting[0]))
            f = pm.gp.Latent(cov_func=kernel).prior("f", X=split.X, jitter=JITTER)
            pm.Bernoulli("y", logit_p=f, observed=split.y)
            idata = pm.sample(
                draws, tune=tune, chains=1, cores=1, step=gpep.samplers.GuidedHMC(), random_seed=seed,
                progressbar=False, compute_convergence_checks=False,
            )  # fmt: skip
    latent = idata["posterior"]["f"].values[0, ::thin]
    # Given the values at the training points, the values at the test points are Gaussian.
    weights = cho_solve(cho_factor(prior.k), prior.cross.T)
    test = latent @ weights
    variance = np.maximum(prior.variance - np.einsum("mn,nm->m", prior.cross, weights), 0.0)
    ones = np.ones(test.shape[1], np.int64)
    p = np.array([np.exp(log_density(LINK, values, variance, ones)) for values in test])
    statistics = idata["sample_stats"]
    return {
        "training": latent.astype(np.float32),
        "test": test.astype(np.float32),
        "test p": p.astype(np.float32),
        "variance": variance,
        "diverging": int(statistics["diverging"].sum()),
        "acceptance": float(statistics["acceptance_rate"].mean()),
    }


class Figures6To8(Experiment):
    title = "Figures 6 to 8: marginals against MCMC, USPS 3 vs. 5, logit"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = [60, 40] if quick else None
        length = {"draws": 60, "tune": 60, "thin": 1} if quick else {"draws": 1000, "tune": 200, "thin": 1}
        fits = [
            Cell(f"{figure}.{method}", fit, {"data": data, "method": method, "setting": list(setting), "size": size})
            for figure, setting in SETTINGS.items()
            for method in METHODS
        ]
        chains = [
            Cell(
                f"{figure}.MCMC.{seed}", chain,
                {"data": data, "setting": list(setting), "seed": seed, "size": size, **length},
            )
            for seed in range(1, 3 if quick else 5)
            for figure, setting in SETTINGS.items()
        ]  # fmt: skip
        return [*fits, *chains]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines, record = [PAPER, ""], {}
        for figure, setting in SETTINGS.items():
            chains = chains_of(found, figure)
            if len(chains) < 2:
                lines += [f"{figure}: fewer than two chains.", ""]
                continue
            draws = _draws(chains, "training")
            r_hat, ess = float(az.rhat(draws)["x"].max()), float(az.ess(draws)["x"].min())
            verdict = "" if r_hat < R_HAT and ess > ESS else " **Not to be trusted.**"
            diverging = sum(int(x["diverging"]) for x in chains)
            lines += [
                f"## {figure}: log ℓ = {setting[0]}, log σ_f = {setting[1]}", "",
                f"{len(chains)} chains; of latent values at training points r-hat at most {r_hat:.3f}, effective size "
                f"at least {ess:.0f}; {diverging} divergences.{verdict}", "",
                "| method | points | abs. mean: slope against MCMC, part below | sd: ratio, part below "
                "| p: mean difference towards 1/2 | largest | within two standard errors: mean, sd, p |",
                "| --- " * 7 + "|",
            ]  # fmt: skip
            own: dict[str, Any] = {"r_hat": r_hat, "effective": ess, "chains": len(chains)}
            for part in PARTS:
                reference = reference_of(chains, part)
                for method in METHODS:
                    if (cell := found.get(f"{figure}.{method}")) is not None:
                        own[f"{method}, {part}"] = x = _compare(cell, part, reference)
                        lines.append(
                            f"| {method} | {part} | {x['slope']:.3f}, {x['mean below']:.2f} | {x['sd ratio']:.3f}, "
                            f"{x['sd below']:.2f} | {x['towards 1/2']:+.4f} | {x['p largest']:.4f} "
                            f"| {', '.join(f'{value:.2f}' for value in x['within'])} |"
                        )
            record[figure] = own
            lines.append("")
        lines.append(
            "Slopes are of the method's means over MCMC's through the origin. If the difference of p towards 1/2 is "
            "positive, the method is less confident than MCMC."
        )
        return record, "\n".join(lines)

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        chosen: dict[str, Arrays] = {}
        for figure in SETTINGS:
            chains = chains_of(found, figure)
            if len(chains) < 2 or any(f"{figure}.{method}" not in found for method in SHOWN):
                continue
            for part in PARTS if figure == "Figure 6" else PARTS[:1]:
                own = {q: reference.value for q, reference in reference_of(chains, part).items()}
                for method in SHOWN:
                    own |= {f"{method} {q}": found[f"{figure}.{method}"][f"{part} {q}"] for q in QUANTITIES}
                chosen[f"{figure}, {part}"] = own
        if f"Figure 6, {PARTS[0]}" in chosen:
            draws = _draws(chains_of(found, "Figure 6"), PARTS[0])["x"].values
            values = draws[..., min(DIGIT, draws.shape[-1] - 1)].ravel()
            values = values[np.linspace(0, len(values) - 1, min(DRAWN, len(values))).astype(int)]
            chosen["Figure 7"] = {"draws": values}
        return {name: {key: np.round(x, DECIMALS) for key, x in own.items()} for name, own in chosen.items()}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        scatters = [name for name in found if name != "Figure 7"]
        if not scatters:
            return None
        last = [5.0] if "Figure 7" in found else []
        figure = Figure(figsize=(13, 8 * len(scatters) + sum(last)), layout="constrained")
        parts = figure.subfigures(
            len(scatters) + len(last), 1, height_ratios=[8.0] * len(scatters) + last, squeeze=False
        )
        for (part,), name in zip(parts, scatters, strict=False):
            part.suptitle(f"{name} points, MCMC on the horizontal axis")
            for axes, quantity in zip(part.subplots(len(QUANTITIES), len(SHOWN)), QUANTITIES, strict=True):
                for ax, method in zip(axes, SHOWN, strict=True):
                    exact, values = found[name][quantity], found[name][f"{method} {quantity}"]
                    ax.plot(exact, values, ".", markersize=3, color=colours(3)[0])
                    ax.axline((0.0, 0.0), slope=1.0, color=NEUTRAL, linewidth=0.7)
                    ax.set_title(f"{method}: {quantity}")
        if last:
            _draw_marginal(parts[-1, 0], found)
        return figure


def chains_of(found: Mapping[str, Arrays], figure: str) -> list[Arrays]:
    return [cell for name, cell in found.items() if name.startswith(f"{figure}.MCMC.")]


def reference_of(chains: Sequence[Arrays], part: str) -> dict[str, Reference]:
    """Mean, standard deviation and probability of class 1 by MCMC, with standard errors."""
    latent = _draws(chains, part)
    extra = chains[0]["variance"] if part == "test" else 0.0
    values = latent["x"].values
    p = np.stack([x["test p"] for x in chains]) if part == "test" else LINK.link(values)
    sd = values.std((0, 1), ddof=1)
    whole = np.sqrt(sd**2 + extra)
    # The standard error of the mean given training points is estimated. The remaining variance is known.
    error = az.mcse(latent, method="sd")["x"].values * sd / whole
    return {
        "mean": Reference(values.mean((0, 1)), az.mcse(latent)["x"].values),
        "sd": Reference(whole, error),
        "p": Reference(p.mean((0, 1)), az.mcse(_dataset(p))["x"].values),
    }


def _draws(chains: Sequence[Arrays], part: str) -> xr.Dataset:
    return _dataset(np.stack([x[part] for x in chains]).astype(float))


def _dataset(values: Array) -> xr.Dataset:
    return xr.Dataset({"x": (("chain", "draw", "point"), values)})


def _compare(cell: Arrays, part: str, reference: Mapping[str, Reference]) -> dict[str, Any]:
    """Compare a method's moments with MCMC's."""
    mean, sd, p = (cell[f"{part} {quantity}"] for quantity in QUANTITIES)
    true = {quantity: reference[quantity].value for quantity in QUANTITIES}
    side = np.sign(true["p"] - 0.5)
    return {
        "slope": float(mean @ true["mean"] / (true["mean"] @ true["mean"])),
        "mean below": float((np.abs(mean) < np.abs(true["mean"])).mean()),
        "sd ratio": float(np.median(sd / true["sd"])),
        "sd below": float((sd < true["sd"]).mean()),
        "towards 1/2": float((side * (true["p"] - p)).mean()),
        "p largest": float(np.abs(p - true["p"]).max()),
        "within": [
            float((np.abs(cell[f"{part} {q}"] - reference[q].value) < 2.0 * reference[q].error).mean())
            for q in QUANTITIES
        ],
    }


def _draw_marginal(part: Any, found: Mapping[str, Arrays]) -> None:
    """Figure 7: the marginal of one latent value."""
    values, own = found["Figure 7"]["draws"], found[f"Figure 6, {PARTS[0]}"]
    point = min(DIGIT, len(own["mean"]) - 1)
    ax = part.subplots()
    part.suptitle(f"Figure 7: latent value of training digit #{point + 1}, setting of figure 6")
    x = np.linspace(values.mean() - 5.0 * values.std(), values.mean() + 5.0 * values.std(), 400)
    ax.fill_between(x, gaussian_kde(values)(x), color="#d9d9d9", label="MCMC")
    ax.plot(x, norm.pdf(x, values.mean(), values.std()), color=NEUTRAL, label="best Gaussian")
    for method, colour in zip(SHOWN, colours(len(SHOWN)), strict=True):
        ax.plot(x, norm.pdf(x, own[f"{method} mean"][point], own[f"{method} sd"][point]), color=colour, label=method)
    ax.set(xlabel="latent value", ylabel="density")
    ax.legend()


EXPERIMENT = Figures6To8()
