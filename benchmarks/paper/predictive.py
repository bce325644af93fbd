"""Predictions of held-out points with estimated hyperparameters (RJV section 5.5), for figures 9 to 11.

All classes share a squared exponential covariance. Approximations have hyperparameters at the maximum of their
posterior in log σ² and log ℓ (type-II MAP). MCMC samples them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pymc_gpep as gpep
from benchmarks.experiment import Arrays
from benchmarks.paper import data

METHODS = {"EP": "nested_ep", "IEP": "iep", "VB": "vb", "LA": "laplace", "LA-TKP": "laplace"}
"""Name in the paper → name in `pm.fit`."""

SCALE = 10.0
"""Scale of the half Student-t priors. With four degrees of freedom the variance is scale² = 100, as in the paper."""


def classifier(split: data.Split, ard: bool, softmax: bool = False) -> tuple[pm.Model, pm.gp.Latent]:
    """The paper's model; its magnitude parameter, which has the prior, is σ².

    Inputs and labels are data of the model, not constants, so that what is compiled for one fold does for all of them.
    Everything starts from σ² = 10 and ℓ = √d: standardised points are √(2d) apart on average.
    """
    d = split.X.shape[1]
    with pm.Model() as model:
        magnitude = pm.HalfStudentT("magnitude", nu=4, sigma=SCALE, initval=10.0)
        shape = (d,) if ard else ()
        ls = pm.HalfStudentT("length_scale", nu=4, sigma=SCALE, shape=shape, initval=np.full(shape, np.sqrt(d)))
        gp = pm.gp.Latent(cov_func=magnitude * pm.gp.cov.ExpQuad(d, ls=ls))
        f = gp.prior("f", X=pm.Data("X", split.X), n_outputs=split.classes)
        labels = pm.Data("labels", split.y)
        if softmax:
            pm.Categorical("y", logit_p=f.T, observed=labels)
        else:
            gpep.MultinomialProbit("y", f.T, observed=labels)
    return model, gp


def load(folder: str, name: str, number: int, size: list[int] | None) -> data.Split:
    """A fold, or the only split of a data set. `size` limits the numbers of training and test points."""
    found = data.fold(name, folder, number) if name in data.CROSS_VALIDATED else data.split(name, folder)
    return data.subset(found, *size) if size else found


def approximate(
    folder: str, name: str, number: int, method: str, size: list[int] | None = None, part: int = 0, parts: int = 1,
    checkpoint: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Fit by an approximation, and predict one of `parts` parts of the held-out points.

    The checkpoint has the best hyperparameters of an interrupted optimisation. Another run starts there.
    """
    split = load(folder, name, number, size)
    model, gp = classifier(split, name in data.CROSS_VALIDATED, softmax=METHODS[method] == "laplace")
    start, callbacks = {}, []
    if checkpoint is not None:
        start = dict(np.load(checkpoint)) if checkpoint.exists() else {}
        callbacks = [lambda approximation, *_: keep_hyperparameters(approximation, checkpoint)]
    fit = pm.fit(method=METHODS[method], model=model, hyper="map", start=start, callbacks=callbacks, progressbar=False)
    points = np.array_split(np.arange(len(split.ynew)), parts)[part]
    how = {"correction": "tk"} if method == "LA-TKP" else {}
    return {
        "point": points,
        "y": split.ynew[points],
        "p": fit.predict(gp, split.Xnew[points], **how)["p"].values,
        "log_evidence": fit.log_evidence,
        "magnitude": fit.hyperparameters["magnitude"].values,
        "length_scale": fit.hyperparameters["length_scale"].values,
        "evaluations": len(fit.hist),
        "converged": fit.converged,
        "message": fit.message,
    }


def chain(
    folder: str, name: str, number: int, tune: int, draws: int, seed: int, hyper_moves: int,
    predicted: int = 200, batches: int = 5, size: list[int] | None = None, spread: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """One Markov chain of latent values and hyperparameters, and its class probabilities.

    `predicted` draws are used for the probabilities. Averages over `batches` consecutive parts of the chain give their
    Monte Carlo error. The chain starts where all fits start, or, with a `spread`, at random hyperparameters whose
    logarithms have this standard deviation around the start.
    """
    split = load(folder, name, number, size)
    model, gp = classifier(split, name in data.CROSS_VALIDATED)
    with model:
        first = {}
        if spread:
            rng = np.random.default_rng([seed, 2013])
            first = {rv.name: value * np.exp(spread * rng.standard_normal(np.shape(value)))
                     for rv, value in model.rvs_to_initial_values.items() if value is not None}  # fmt: skip
        idata = pm.sample(
            draws, tune=tune, chains=1, step=gpep.samplers.GuidedHMC(hyper_moves=hyper_moves), random_seed=seed,
            initvals=first, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    posterior, statistics = (idata[group].to_dataset() for group in ("posterior", "sample_stats"))
    p = [
        gpep.predict_draws(
            xr.DataTree.from_dict({"posterior": posterior.isel(draw=batch)}), gp, split.Xnew, model=model,
            draws=max(1, predicted // batches), progressbar=False,
        )["p"].values
        for batch in np.array_split(np.arange(draws), batches)
    ]  # fmt: skip
    return {
        "point": np.arange(len(split.ynew)),
        "y": split.ynew,
        "p": np.array(p),
        "magnitude": posterior["magnitude"].values[0],
        "length_scale": posterior["length_scale"].values[0],
        "diverging": statistics["diverging"].values[0],
        "acceptance": statistics["acceptance_rate"].values[0],
        "hyper_acceptance": statistics["hyper_acceptance"].values[0],
    }


def log_hyperparameters(chains: list[Arrays]) -> np.ndarray:
    """Log hyperparameters of chains (chains, draws, 1 + d), the magnitude first."""
    return np.log([np.column_stack([x["magnitude"], x["length_scale"]]) for x in chains])


def agreement(theta: np.ndarray) -> tuple[float, float]:
    """Worst r-hat and smallest effective sample size of parameters (chains, draws, parameters)."""
    import arviz as az

    each = np.moveaxis(theta, 2, 0)
    return max(float(az.rhat(x)) for x in each), min(float(az.ess(x)) for x in each)


def chains_agree(chains: list[Arrays]) -> tuple[float, float]:
    """Worst r-hat and effective size of log hyperparameters, NaN for fewer than two chains."""
    return agreement(log_hyperparameters(chains)) if len(chains) > 1 else (np.nan, np.nan)


def keep_hyperparameters(approximation: gpep.Fit, checkpoint: Path) -> None:
    """Write the hyperparameters of an approximation into a file, which is always complete."""
    unfinished = checkpoint.with_name(f"{checkpoint.name}.part")
    with unfinished.open("wb") as file:
        np.savez(file, **{name: x.values for name, x in approximation.hyperparameters.items()})
    unfinished.replace(checkpoint)
