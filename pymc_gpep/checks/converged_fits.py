"""Reasons to doubt a fit that converged.

`nothing_learned` compares the evidence of the fit with the likelihood of class frequencies. `other_mode` searches for a
second mode of EP, by a solve that starts from the sites of outliers. `mirror_image` finds predictors with exchangeable
signs.
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

_LESS = 3.0  # A mode is negligible if its log evidence is lower by more than this: it has a twentieth of the mass.
_APART = 2.0  # Two fixed points are different modes if means differ by more standard deviations than this.
_ROUGHLY, _FEW = 1e-3, 60  # Tolerance and largest number of iterations of the second solve.


def other_mode(approximator: Approximator, solution: Solution, groups: RowGroups | None = None) -> str:
    """Return a text on a second mode of EP; empty if no second mode is found.

    If a density is not log-concave, EP may treat some rows as outliers, with nearly zero sites. The second solve starts
    with sites of these rows only, computed under the prior. If it ends at another fixed point, there is another mode.
    The evidence of EP at this fixed point is about the mass of the mode.

    Parameters
    ----------
    approximator : Approximator
    solution : Solution
        Fixed point of the approximation.
    groups : RowGroups, optional
        Rows of each point of the solution. The default is that points are rows.
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
        f"EP converged to one of several modes, with a log evidence of {solution.evidence:.2f}. From the sites of "
        f"outliers ({few_of(rows)}), EP converges to another mode, with a log evidence of "
        f"{other.evidence:.2f}. The fit has only the moments of the first mode. Use several chains of pm.sample, or a "
        "prior that excludes a mode."
    )


def mirror_image(solution: Solution, names: Sequence[object]) -> str:
    """Return a text with a remedy if signs of two linear predictors are exchangeable; else an empty text.

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
                "signs change, and their prior means are 0. The posterior has two modes, and the fit has one mode. "
                f"Give {names[i]!r} a positive mean, or write it as an exponential, pm.math.exp(z)."
            )
    return ""


_SEEN = 1e-3  # Signs of latent values below this absolute value are not compared.
_LITTLE = 2.0  # A fit learned nothing if its log evidence exceeds that of class frequencies by less than this.
_SHARE = 0.05  # The same limit for few points, as a share of the largest possible gain.
_SHARE_OF_ISLANDS = 0.1  # This share if all points except duplicates are uncorrelated.
_ISLANDS = 0.1  # Points count as uncorrelated if the median prior correlation of nearest neighbours is lower.
_FLAT = 0.98  # Functions count as constant if the median prior correlation of pairs of points is higher.
_OF_A_SIZE = "The values of length scales and magnitude do not explain this."
_QUIET = 0.5  # Labels count as noise if the prior standard deviation of latent functions is lower than this.


def nothing_learned(log_posterior: DenseLogPosterior, theta: Array, solution: Solution) -> str:
    """Return a text with advice if the fit predicts labels no better than their frequencies; else an empty text.

    The log evidence at the maximum is compared with the log likelihood of class frequencies, Σ_k n_k log(n_k / n). This
    is the largest log likelihood of probabilities that do not depend on inputs. If the difference is negligible, prior
    correlations of points show the reason.
    """
    classifier, approximator, labels = log_posterior.classifier, log_posterior.approximator, log_posterior.observed()
    counts = np.unique(labels, return_counts=True)[1]
    if not classifier.observes_classes or counts.size < 2:  # Equal labels contain no information.
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
    if not reason and approximator.bounds:  # The bound may be far below the evidence of a good fit.
        return ""
    doubt = " Or the bound of this method is far below the evidence: try method='ep' or 'nested_ep'."
    return (
        f"The fit learned next to nothing: its log evidence is {solution.evidence:.2f}, and the log probability of "
        f"labels by class frequencies is {constant:.2f}. {reason or _OF_A_SIZE} If this does not help, the inputs do "
        f"not predict the labels with this covariance function.{doubt if approximator.bounds else ''}"
    )


def _reason(log_posterior: DenseLogPosterior, prior: PriorView, magnitudes: Array, scales: Array) -> str:
    """Return a text with the reason that prior correlations show, and a remedy; empty without a reason."""
    owners = log_posterior.space.owners
    # If no single hyperparameter has an effect, all hyperparameters except magnitudes count as length scales.
    lengths = _listed(owners, scales if scales.any() else magnitudes == 0)
    inputs = ", ".join(map(repr, log_posterior.classifier.prior.inputs))
    standardise = f"Standardise the inputs{f' ({inputs})' if inputs else ''}, or allow"
    verb = "are" if " and " in lengths else "is"
    near, everywhere = prior.correlation["neighbours"], prior.correlation["all"]
    if abs(near) < _ISLANDS:
        return (
            f"Nearest neighbours have a median prior correlation of {near:.2f}, so points carry no information about "
            f"each other: {lengths or 'the length scale'} {verb} far below the distances between points. {standardise} "
            f"longer length scales{_prior_of(lengths)}."
        )
    if everywhere > _FLAT:
        return (
            f"Points have a median prior correlation of {everywhere:.4f}, so the latent functions are nearly "
            f"constant: {lengths or 'the length scale'} {verb} far above the range of the inputs. {standardise} "
            f"shorter length scales{_prior_of(lengths)}."
        )
    if (sd := float(np.exp(prior.log_sd))) < _QUIET:
        return (
            f"The latent functions have a prior standard deviation of {sd:.2g}, and the noise of the likelihood has "
            f"about 1: labels are mostly noise. Allow a larger magnitude{_prior_of(_listed(owners, magnitudes))}."
        )
    return ""


def _prior_of(names: str) -> str:
    return f": check the prior of {names}" if names else ""


def _listed(owners: list[str], which: Array) -> str:
    """Return the quoted names of hyperparameters for which an entry of `which` is True."""
    return " and ".join(dict.fromkeys(repr(name) for name, marked in zip(owners, which, strict=True) if marked))
