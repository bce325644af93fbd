"""Fits and draws, as users hold them in a dict by name, looked at alike."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.fits.datasets import natural
from pymc_gpep.fits.fit import Fit
from pymc_gpep.prior_moments.drawn_sums import drawn_sum
from pymc_gpep.reading import GPClassifier, read_classifier

Result = Fit | xr.DataTree


def by_name(results: Any, single: str = "fit") -> dict[str, Result]:
    """Check that `results` are fits or DataTrees of draws, by name; a single one gets the name given.

    Raises
    ------
    TypeError
        If one is neither.
    ValueError
        If there are no results, or if a DataTree has no posterior draws.
    """
    # A DataTree is itself a mapping.
    named = dict(results) if isinstance(results, Mapping) and not isinstance(results, Result) else {single: results}
    if not named:
        raise ValueError("results is empty. Give it fits or draws by name.")
    for name, result in named.items():
        if isinstance(result, xr.DataTree):
            if "posterior" not in result.children:
                groups = ", ".join(result.children) or "none"
                raise ValueError(f"{name!r} has no posterior draws; the groups of the DataTree are: {groups}.")
        elif not isinstance(result, Result):
            raise TypeError(
                f"{name!r} must be what pm.fit returned for a Gaussian process, or a DataTree of draws, not a "
                f"{type(result).__name__}. Give several by name, such as {{'EP': fit}}."
            )
    return named


def classifier_of(results: Mapping[str, Result], model: pm.Model | None) -> GPClassifier:
    """Return what was read from the model: from the one given, else from that of the first fit.

    Raises
    ------
    ValueError
        If there is neither.
    """
    if model is not None:
        return read_classifier(model)
    for result in results.values():
        if not isinstance(result, xr.DataTree):
            return result.classifier
    raise ValueError("No fit is among the results, so the model that was sampled must be given: model=...")


def reference_among(results: Mapping[str, Result], reference: str | None) -> str:
    """Return the name of what others are compared with: the one given, else the first draws, else the first fit.

    Raises
    ------
    ValueError
        If there is no result of that name.
    """
    if reference is None:
        return next((name for name, result in results.items() if isinstance(result, xr.DataTree)), next(iter(results)))
    if reference not in results:
        raise ValueError(
            f"reference is {reference!r}, but the results are {list(results)}.{did_you_mean([reference], results)}"
        )
    return reference


def latent_draws(idata: xr.DataTree, classifier: GPClassifier) -> Array:
    """Draws of the latent values, (s, c, n), those of all chains one after another.

    Raises
    ------
    ValueError
        If the latent values are not among the draws, or do not have the size that the model says.
    """
    posterior = idata["posterior"]
    c, n = classifier.n_functions, classifier.n_points
    if (drawn := drawn_sum(classifier)) is not None:
        f_of, each = drawn.at_own_rows(), draws_of(idata, [str(v.name) for v in drawn.variables])
        return np.array([f_of(given) for given in zip(*each, strict=True)])
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    f = np.empty((draws, c, n))
    for latent in classifier.latents:
        name = latent.f.name
        if name not in posterior:
            known = ", ".join(map(repr, posterior.data_vars)) or "none"
            raise ValueError(
                f"The draws have no latent values {name!r}, only {known}. Draws from a marginal model need "
                "gpep.recover_latent first."
            )
        values = posterior[name].transpose("chain", "draw", ...).values
        if values.size != draws * len(latent.classes) * n:
            wanted = (len(latent.classes), n) if latent.f.ndim == 2 else (n,)
            raise ValueError(f"Draws of {name!r} have the shape {values.shape[2:]}, but in the model it is {wanted}.")
        f[:, list(latent.classes)] = values.reshape(draws, len(latent.classes), n)
    return f


def draws_of(idata: xr.DataTree, names: Sequence[str]) -> list[Array]:
    """Draws of variables (s, ...), those of all chains one after another.

    Raises
    ------
    ValueError
        If a variable has no draws.
    """
    posterior = idata["posterior"].to_dataset()
    if missing := [name for name in names if name not in posterior]:
        raise ValueError(
            f"There are no posterior draws of {', '.join(map(repr, missing))}. Draws from a marginal model need "
            "gpep.recover_latent first."
        )
    stacked = posterior[list(names)].stack(sample=("chain", "draw"), create_index=False)
    return [stacked[name].transpose("sample", ...).values for name in names]


def latent_moments(result: Result, classifier: GPClassifier) -> tuple[Array, Array]:
    """Mean (c, n) of the latent values and the covariance (n, c, c) of those of each point."""
    if not isinstance(result, xr.DataTree):
        mean, cov = result.latent_moments()
        return mean.T, cov
    f = latent_draws(result, classifier)
    mean = f.mean(axis=0)
    return mean, np.einsum("sai,sbi->iab", f - mean, f - mean) / (len(f) - 1)


def hyperparameter_draws(result: Result, name: str) -> xr.DataArray:
    """Draws of one hyperparameter, of a density or the nodes of a fit, with a leading dim `sample` and a `weight`.

    Raises
    ------
    ValueError
        If there is no such variable.
    """
    if not isinstance(result, xr.DataTree):
        points, weights = result.hyper_posterior.continuous
        known = natural(result.log_posterior.space, points, "sample")
        if name in known:
            return known[name].assign_coords(weight=("sample", weights))
    else:
        known = result["posterior"].to_dataset()
        if name in known:
            draws = known[name].stack(sample=("chain", "draw"), create_index=False).transpose("sample", ...)
            return draws.assign_coords(weight=("sample", np.ones(draws.sizes["sample"])))
    names = ", ".join(map(repr, known.data_vars)) or "none"
    raise ValueError(
        f"There is no hyperparameter {name!r}; the names are: {names}.{did_you_mean([name], known.data_vars)}"
    )
