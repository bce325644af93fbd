"""Reasons to doubt a fit that converged.

`nothing_learned` compares the evidence of the fit with the evidence of the class frequencies. `other_mode` searches for
a second mode of EP, by a solve that begins without the sites of rows that look like outliers. `mirror_image` finds
linear predictors whose product is all that a likelihood depends on.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from pymc_gpep.approximations import Solution
from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.argument_types import few_of
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.several_starts import PriorView, pairs_by_kind, roles, view
from pymc_gpep.likelihoods.local_computations import PredictorsDensity
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.sums.row_groups import RowGroups

_LESS = 3.0  # A mode with a log evidence lower by this has a twentieth of the mass.
_APART = 2.0  # Difference of means, in standard deviations, that counts as another mode.
_ROUGHLY, _FEW = 1e-3, 60  # Tolerance and iterations of the second solve.


def other_mode(approximator: Approximator, solution: Solution, groups: RowGroups | None = None) -> str:
    """Return a text on a second mode; empty if none is found.

    If a density is not log-concave, EP may treat some rows as outliers, with nearly zero sites. The second solve begins
    with sites of these rows alone, as computed under the prior. Another fixed point is another mode, and EP's evidence
    there is about the mass of that mode.

    Parameters
    ----------
    approximator : Approximator
    solution : Solution
        Its fixed point.
    groups : RowGroups, optional
        The rows of each point of the solution; if not given, points are rows.
    """
    rows, start = approximator.from_outliers(solution)
    if not rows.size:
        return ""
    prior = solution.posterior.prior
    other = replace(approximator, tolerance=_ROUGHLY, max_iterations=_FEW).solve(
        prior.array, prior.mean, solution.labels, start, likelihood=solution.likelihood, prior_type=prior.maker
    )
    spread = np.sqrt(solution.cov[:, 0, 0] + other.cov[:, 0, 0])
    apart = np.abs(other.mean[0] - solution.mean[0]) > _APART * spread
    if not (other.converged and apart.any() and other.evidence > solution.evidence - _LESS):
        return ""
    rows = rows if groups is None else np.flatnonzero(np.isin(groups.of, rows))
    return (
        f"EP stands at one of several modes, with a log evidence of {solution.evidence:.2f}. Started from "
        f"the rows that it takes for outliers ({few_of(rows)}), it ends at another mode, with "
        f"{other.evidence:.2f}. The fit has the moments of the first alone: sample by several chains of pm.sample, or "
        "give a prior that excludes a mode."
    )


def mirror_image(solution: Solution, names: Sequence[object]) -> str:
    """Return why signs of two linear predictors are exchangeable, and the remedy; empty if they are not.

    Parameters
    ----------
    solution : Solution
    names : sequence
        Names of the latent functions.
    """
    likelihood, prior = solution.likelihood, solution.posterior.prior
    if not likelihood.offers(PredictorsDensity):
        return ""
    f, y = solution.mean, solution.labels
    value = likelihood.log_density(f, y)
    for i, j in combinations(range(len(f)), 2):
        both = np.isin(np.arange(len(f)), (i, j))
        if (np.abs(f[both]).max(axis=1) < _SEEN).any() or prior.mean[both].any():
            continue
        turned, one = (np.where(own[:, None], -f, f) for own in (both, np.arange(len(f)) == i))
        if np.isclose(likelihood.log_density(turned, y), value, rtol=1e-10) and not np.isclose(
            likelihood.log_density(one, y), value, rtol=1e-10
        ):
            return (
                f"The signs of {names[i]!r} and {names[j]!r} are exchangeable: their product does not change if both "
                "do, and their prior means are 0. The posterior has a mirror image, and the fit is one of two modes. "
                "Give one of them a positive mean, or write it as an exponential, pm.math.exp(z)."
            )
    return ""


_SEEN = 1e-3  # Smallest latent value whose sign matters.
_LITTLE = 2.0  # Smallest gain of log evidence over a constant function that counts as learning.
_SHARE = 0.05  # The same as a share of the possible gain, for few points.
_SHARE_OF_ISLANDS = 0.1  # The same if points are uncorrelated, so that only duplicate points teach anything.
_ISLANDS = 0.1  # Points are uncorrelated if the median correlation of nearest neighbours is below this.
_FLAT = 0.98  # Functions are constant if the median correlation of two points is above this.
_OF_A_SIZE = "Length scales and magnitude are of a size at which there could have been more."
_QUIET = 0.5  # Latent functions below this standard deviation, in units of the noise, drown in it.


def nothing_learned(log_posterior: DenseLogPosterior, theta: Array, solution: Solution) -> str:
    """Return why the fit predicts labels no better than their frequencies, with advice; empty if it predicts better.

    The log evidence at the maximum is compared with the frequencies' log likelihood, Σ_k n_k log(n_k / n). This is the
    largest value for probabilities that do not depend on inputs. If the difference is negligible, the prior covariances
    between the points show why.
    """
    classifier, approximator, labels = log_posterior.classifier, log_posterior.approximator, log_posterior.observed()
    counts = np.unique(labels, return_counts=True)[1]
    if not classifier.observes_classes or counts.size < 2:  # identical labels contain no information
        return ""
    constant = float(counts @ np.log(counts / labels.size))
    gain = solution.evidence - constant
    if gain >= max(_LITTLE, -_SHARE_OF_ISLANDS * constant):
        return ""
    pairs = pairs_by_kind(log_posterior.covariance(theta)[1])

    def look(theta: Array) -> PriorView:
        return view(log_posterior.covariance(theta)[0], pairs)

    prior = look(theta)
    if gain >= min(_LITTLE, -_SHARE * constant) and abs(prior.correlation["neighbours"]) >= _ISLANDS:
        return ""
    reason = _reason(log_posterior, prior, *roles(look, theta))
    if not reason and approximator.bounds:  # the bound is uninformative
        return ""
    doubt = " Or its bound is far below the evidence: see what method='ep' finds, or 'nested_ep'."
    return (
        f"The fit learned next to nothing: its log evidence is {solution.evidence:.2f}, and that of the class "
        f"frequencies alone {constant:.2f}. {reason or _OF_A_SIZE} If that does not help, the "
        "inputs say nothing about the labels that this covariance function can express."
        f"{doubt if approximator.bounds else ''}"
    )


def _reason(log_posterior: DenseLogPosterior, prior: PriorView, magnitudes: Array, scales: Array) -> str:
    """The reason in the covariances, with the names of hyperparameters that cause it; empty without one."""
    owners = log_posterior.space.owners
    # If no single hyperparameter has an effect, the length scales are all hyperparameters but magnitudes.
    lengths = _listed(owners, scales if scales.any() else magnitudes == 0)
    inputs = ", ".join(map(repr, log_posterior.classifier.prior.inputs))
    standardise = f"Standardise the inputs{f' ({inputs})' if inputs else ''}, or allow"
    verb = "are" if " and " in lengths else "is"
    near, everywhere = prior.correlation["neighbours"], prior.correlation["all"]
    if abs(near) < _ISLANDS:
        return (
            f"Nearest neighbours have a median prior correlation of {near:.2f}, so that no point says anything about "
            f"another: {lengths or 'the length scale'} {verb} far below the distances between points. {standardise} "
            f"longer length scales{_prior_of(lengths)}."
        )
    if everywhere > _FLAT:
        return (
            f"Points have a median prior correlation of {everywhere:.4f}, so that the latent functions are the same "
            f"everywhere: {lengths or 'the length scale'} {verb} far above the range of the inputs. {standardise} "
            f"shorter length scales{_prior_of(lengths)}."
        )
    if (sd := float(np.exp(prior.log_sd))) < _QUIET:
        return (
            f"The latent functions have a prior standard deviation of {sd:.2g}, where the noise of the likelihood has "
            f"about 1, so that labels are noise. Allow a larger magnitude{_prior_of(_listed(owners, magnitudes))}."
        )
    return ""


def _prior_of(names: str) -> str:
    return f": look at the prior of {names}" if names else ""


def _listed(owners: list[str], which: Array) -> str:
    """Quoted names of hyperparameters with a marked element."""
    return " and ".join(dict.fromkeys(repr(name) for name, marked in zip(owners, which, strict=True) if marked))
