"""Leave-one-out cross-validation from one fit: the predictive density of every label given the others.

The latent values of a row given the other labels have the posterior with the site of that row left out, see
`pymc_gpep.hyper.dense_functions.leave_one_out_moments`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp, softmax

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.latent_functions import LatentFunctions
from pymc_gpep.likelihoods.log_predictive import log_predictive
from pymc_gpep.progress import RowProgress
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure import GPClassifier

if TYPE_CHECKING:
    from pymc_gpep.checks.left_out import CavityELPD

__all__ = ["harmonic", "leave_one_out"]

_SEED = 2016  # the same fit has the same answer


def harmonic(log_weights: Array, log_densities: Array) -> Array:
    """log p(y_i | y_-i) (n,) from log p(y_i | y_-i, θ_s) (s, n) and weights that stand for p(θ | y).

    As p(θ | y_-i) ∝ p(θ | y) / p(y_i | y_-i, θ), the label that is left out has no part in the hyperparameters either.
    """
    return -logsumexp(log_weights - log_densities, axis=0)


def leave_one_out(
    classifier: GPClassifier,
    method: str,
    nodes: Callable[[], Iterable[LatentFunctions]],
    weights: Array,
    n_points: int,
    *,
    response: str | None = None,
    converged: bool,
    named: bool,
    refit_above: float = np.inf,
    tolerance: float = 5e-5,
    pit: bool = False,
    progressbar: bool = True,
) -> "CavityELPD":
    """Compute what `Fit.loo` returns.

    Parameters
    ----------
    classifier : GPClassifier
    method : str
        Name of the approximation.
    nodes : callable
        Makes the latent functions at each node in turn.
    weights : array (s,)
        Weights of the nodes; they sum to 1.
    n_points : int
        How many rows were fitted.
    response : str, optional
        Name of the observed variable whose rows are left out; those of all if not given.
    converged : bool
        Whether the fit did.
    named : bool
        Whether rows are those of the model, with its coords.
    refit_above : float
        Rows whose log density falls by more without their labels are left out by fitting again.
    tolerance : float
    pit : bool
        Whether to compute probability integral transforms.
    progressbar : bool
    """
    from pymc_gpep.checks.left_out import summed_up  # with it comes ArviZ

    several = bool(classifier.parts)
    classifier = classifier if response is None else classifier.part(response, "loo")
    wanted = classifier.rows if several else slice(0, n_points)
    within, without = np.full((2, len(weights), n_points), np.nan)  # log densities (node, row)
    ends = np.full((2, len(weights), n_points), np.nan) if pit else None
    with RowProgress("Leaving out", len(weights) * (wanted.stop - wanted.start), progressbar) as progress:
        for s, functions in enumerate(nodes()):
            left_out, y, likelihood = functions.left_out(), functions.labels, functions.likelihood
            for rows, mean, cov in _within(left_out, wanted):
                own = likelihood.at(rows)
                without[s, rows] = log_predictive(own, mean, cov, y[rows], tolerance=tolerance)
                if ends is not None:
                    ends[:, s, rows] = own.ends(y[rows], mean, cov)
                own_mean, own_cov = functions.at_rows(rows)
                within[s, rows] = log_predictive(own, own_mean.T, own_cov, y[rows], tolerance=tolerance)
                progress.advance(len(y[rows]))
    log_weights = np.log(weights)[:, None]
    lpd = logsumexp(log_weights + within, axis=0)
    elpd = harmonic(log_weights, without)
    refitted = np.flatnonzero(lpd - elpd > refit_above) if len(lpd) > 1 else np.arange(0)
    # Solutions that are not kept in memory are solved again; without rows to refit that would be for nothing.
    with RowProgress("Refitting without", len(weights) * refitted.size, progressbar) as progress:
        for s, functions in enumerate(nodes() if refitted.size else ()):
            for i in refitted:
                mean, cov, succeeded = functions.refitted(int(i))
                likelihood, y = functions.likelihood.at([i]), functions.labels[[i]]
                without[s, [i]] = log_predictive(likelihood, mean, cov, y, tolerance=tolerance)
                if ends is not None:
                    ends[:, s, [i]] = likelihood.ends(y, mean, cov)
                converged = converged and succeeded
                progress.advance(1)
    transforms = (
        None if ends is None else _drawn_between(*np.sum(softmax(log_weights - without, axis=0) * ends, axis=1))[wanted]
    )
    elpd = harmonic(log_weights, without)[wanted]
    return summed_up(classifier, method, lpd[wanted], elpd, converged, len(refitted), named, transforms)


def _within(left_out: Iterable[LeftOut], wanted: slice) -> Iterator[LeftOut]:
    """Yield what is left out at rows that are wanted."""
    for rows, mean, cov in left_out:
        cut = slice(max(rows.start, wanted.start), min(rows.stop, wanted.stop))
        if cut.start < cut.stop:
            own = slice(cut.start - rows.start, cut.stop - rows.start)
            yield LeftOut(cut, mean[own], cov[own])


def _drawn_between(below: Array, at: Array) -> Array:
    """Uniform numbers (n,) between two ends, always the same ones."""
    return below + np.random.default_rng(_SEED).random(len(at)) * (at - below)
