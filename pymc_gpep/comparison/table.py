"""Table of methods: distances of their results from a reference, and scores of predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.checks.importance import ImportanceCheck
from pymc_gpep.comparison.fits_and_draws import (
    Result,
    by_name,
    classifier_of,
    hyperparameter_draws,
    latent_moments,
    predict_draws,
)
from pymc_gpep.comparison.held_out_scores import bayesian_bootstrap, information
from pymc_gpep.fits.prediction import held_out, probabilities_and_moments
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.reading import GPClassifier
from pymc_gpep.sums import new_data


class _Predicted(NamedTuple):
    """Predictions of a method at m held-out points."""

    p: Array
    """Probabilities of classes, (m, classes)."""
    moments: Array | None = None
    """Mean and variance of an observation, (2, m), if observations are not classes."""
    log_density: Array | None = None
    """Log density of the observations, (m,), if observations are not classes."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Held-out points with their observations; see `compare_methods`."""

    classifier: GPClassifier
    """Classifier of the predicted observed variable."""
    gp: Any
    inputs: ArrayLike | None
    observed: ArrayLike | None
    data: Mapping[str, ArrayLike] | None
    probabilities: Mapping[str, ArrayLike]
    response: str | None = None

    def rows(
        self, results: Mapping[str, Result], reference: str, prob: float, random_seed: Any
    ) -> dict[str, dict[str, float]]:
        """Return columns of the table for held-out points, by method: scores, and differences from the reference.

        Raises
        ------
        ValueError
            If an argument of predictions is missing or does not match.
        """
        if self.probabilities and not self.classifier.observes_classes:
            raise ValueError(
                f"probabilities must be class probabilities, but {self.classifier.response!r} does not observe "
                "classes. Leave probabilities out, and pass Xnew and ynew."
            )
        predicted = {name: self._predicted(name, result) for name, result in results.items()}
        rows = self._differences(predicted, reference)
        if self.observed is None:
            return rows
        y = held_out(self.classifier, self.observed, len(predicted[reference].p), "ynew")
        scores = {name: self._scores(each, y) for name, each in predicted.items()}
        for name, row in _with_intervals(scores, reference, prob, random_seed).items():
            rows[name] |= row
        if self.classifier.observes_classes:
            (trained,) = evaluate([self.classifier.labels])
            for row in rows.values():
                row["information"] = information(row["mlpd"], y, trained, self.classifier.n_classes)
        return rows

    def _predicted(self, name: str, result: Result) -> _Predicted:
        if name in self.probabilities:
            return _Predicted(np.asarray(self.probabilities[name], dtype=np.float64))
        if self.inputs is None and not self.data:
            otherwise = "; or their probabilities=..." if self.classifier.observes_classes else ""
            raise ValueError(
                f"To predict held-out points with {name!r}, give Xnew=..., or data={{...}} for a sum of "
                f"effects{otherwise}."
            )
        given: dict[str, Any] = {"data": self.data} if self.data else {}
        if self.response is not None:
            given["response"] = self.response
        if not self.classifier.observes_classes:
            given["observed"] = self.observed
        if isinstance(result, xr.DataTree):
            found = predict_draws(result, self.gp, self.inputs, model=self.classifier.model, progressbar=False, **given)
        else:
            found = result.predict(self.gp, self.inputs, **given)
        density = found["log_density"].values if "log_density" in found else None
        return _Predicted(*probabilities_and_moments(self.classifier, found), density)

    def _differences(self, predicted: Mapping[str, _Predicted], reference: str) -> dict[str, dict[str, float]]:
        """Return mean absolute differences from the predictions of the reference, by method and column."""
        if not (classes := self.classifier.n_classes):
            means = {name: each.moments[0] for name, each in predicted.items() if each.moments is not None}
            return {
                name: {"outcome_difference": float(np.abs(mean - means[reference]).mean())}
                for name, mean in means.items()
            }
        shapes = {name: each.p.shape for name, each in predicted.items()}
        if set(shapes.values()) != {(len(predicted[reference].p), classes)}:
            raise ValueError(f"Class probabilities must all be (points, {classes}), but have shapes {shapes}.")
        return {
            name: {"probability_difference": float(np.abs(each.p - predicted[reference].p).mean())}
            for name, each in predicted.items()
        }

    def _scores(self, predicted: _Predicted, y: Observed) -> dict[str, Array]:
        """Return the scores of predictions at each point (m,), by name of the score."""
        density = predicted.log_density
        if density is None:
            with np.errstate(divide="ignore"):
                density = np.log(predicted.p[np.arange(len(y)), y])
        return {"mlpd": density} | self.classifier.likelihood_model.scores(y, predicted.p, predicted.moments)


def _with_intervals(
    scores: Mapping[str, Mapping[str, Array]], reference: str, prob: float, random_seed: Any
) -> dict[str, dict[str, float]]:
    """Return means of scores, means of differences from the reference, and their intervals by Bayesian bootstrap."""
    if not 0 < prob < 1:
        raise ValueError(f"prob must be in (0, 1), but is {prob}.")
    names = list(scores[reference])
    measured = np.stack([np.stack([each[name] for name in names], axis=1) for each in scores.values()], axis=1)
    baseline = list(scores).index(reference)
    with np.errstate(invalid="ignore"):  # A probability may be 0.
        both = np.stack([measured, measured - measured[:, [baseline]]], axis=3)  # Axes: point, method, score, kind.
        draws = bayesian_bootstrap(both, random_seed=random_seed)
        low, high = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2], axis=0)
    mean = both.mean(axis=0)
    return {
        method: {
            f"{score}{of}{which}": float(values[i, j, k])
            for j, score in enumerate(names)
            for k, of in enumerate(("", "_difference"))
            for which, values in (("", mean), ("_low", low), ("_high", high))
        }
        for i, method in enumerate(scores)
    }


_OF_CHECKS = ("effective_size", "pareto_k", "probability_shift", "known")


def compare_methods(
    results: Mapping[str, Result],
    reference: str,
    *,
    model: pm.Model | None = None,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
    Xnew: ArrayLike | None = None,
    ynew: ArrayLike | None = None,
    response: str | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    probabilities: Mapping[str, ArrayLike] | None = None,
    checks: Mapping[str, ImportanceCheck] | None = None,
    prob: float = 0.95,
    random_seed: Any = None,
) -> pd.DataFrame:
    """Compare results of several methods in a table.

    Held-out points are scored as in the nested EP paper (section 5.4), by the mean log predictive density of the
    observations and the accuracy. The Bayesian bootstrap yields intervals of these scores and of the differences to the
    reference. For ordered classes, and for observations that are not classes, there are other scores.

    Parameters
    ----------
    results : dict of str to Fit or DataTree
        Results of `pm.fit`, and draws from MCMC, by names of your choice.
    reference : str
        Name of the result with which the other results are compared.
    model : pm.Model, optional
        Model of the results. The default is the model of the first fit.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values. They are needed if the graph of the model does not determine their prior at new
        inputs.
    Xnew : array (m, d), optional
        Inputs of held-out points.
    ynew : array (m,), optional
        Observations at held-out points.
    response : str, optional
        Name of the predicted observed variable, if the model has several.
    data : dict of str to array, or data frame, optional
        Data of effects and of the likelihood at held-out points, as for `Fit.predict`.
    probabilities : dict of str to array (m, c), optional
        Precomputed class probabilities of held-out points, by name of the result. Other probabilities are computed by
        `fit.predict`, or for draws by `gpep.predict_draws`. A fit of another model, for example a softmax compared with
        a probit, has another `gp`, so its probabilities are required.
    checks : dict of str to ImportanceCheck, optional
        Results of `fit.importance()`, by name of the fit.
    prob : float
        Probability of the intervals.
    random_seed : int, Generator or None
        Seed of the Bayesian bootstrap.

    Returns
    -------
    pandas.DataFrame
        One row for each result. Columns that apply to the results:

        - `log_evidence` of fits at the maximum of the hyperparameters, and `log_evidence_integrated` if a fit
          integrates over them. `lower_bound` of the log evidence, for likelihoods of one latent function and for
          methods that maximise a bound. With inducing inputs all three belong to the sparse model.

        - Posterior means of the hyperparameters by name, with elements of arrays as `ls[width]`.

        - `latent_mean_difference`, `latent_variance_difference`: mean absolute differences of means, and of variances,
          of the latent values from the reference. They are NaN if the likelihoods differ.

        - `probability_difference`: mean absolute difference of the class probabilities of held-out points. If
          observations are not classes, there is `outcome_difference`, the difference of the predictive means.

        - `mlpd`, `accuracy`, each with `_low` and `_high`. `mlpd_difference` and `accuracy_difference` are differences
          between the method and the reference, with their intervals. For ordered classes there is also
          `ranked_probability`, the ranked probability score (0 at best). For counts `squared_error` of the predictive
          mean replaces `accuracy`.

        - `information`, the gain of predictions over the class frequencies in training, in bits per held-out label. It
          is 0 for these frequencies, negative for worse predictions, and at most log₂ c for c balanced classes. It is
          `mlpd` on another scale (Nickisch and Rasmussen 2008).

        - `effective_size` and `pareto_k` of the weighted draws of a fit, from the given `checks`. `probability_shift`
          and `known` of the same checks, for blocks of points.

        - `seconds` of the fit without compilation, or of sampling, if the draws contain them.

        Columns on held-out points need `ynew`, and `Xnew` or `data`.

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If `reference` is not among the results, if names in `probabilities` or `checks` are not results, or if a
        required argument is missing.

    Examples
    --------
    >>> table = gpep.compare_methods({"EP": ep, "MCMC": mcmc}, "MCMC", gp=gp, Xnew=Xnew, ynew=ynew)
    >>> table.T
    """
    named = by_name(results)
    if not isinstance(reference, str):
        raise TypeError(
            f"reference must be the name of a result, not a {type(reference).__name__}. Give results by name: "
            "compare_methods({'ep': fit, 'laplace': other}, 'ep')."
        )
    given = {"reference": [reference], "probabilities": list(probabilities or {}), "checks": list(checks or {})}
    for what, names in given.items():
        if unknown := [name for name in names if name not in named]:
            raise ValueError(
                f"{what} names {unknown}, but the results are {list(named)}.{did_you_mean(unknown, named)}"
            )
    classifier = classifier_of(named, model)
    data = None if data is None else new_data.by_name(data, classifier.model)
    rows = {name: _itself(result, classifier) for name, result in named.items()}
    for name, row in _latent_differences(named, reference, classifier).items():
        rows[name] |= row
    if Xnew is not None or ynew is not None or data or probabilities:
        held_out = HeldOutScores(
            classifier.part(response, "A prediction"), gp, Xnew, ynew, data, probabilities or {}, response
        )
        for name, row in held_out.rows(named, reference, prob, random_seed).items():
            rows[name] |= row
    for name, check in (checks or {}).items():
        rows[name] |= {column: getattr(check, column) for column in _OF_CHECKS}
    for name, result in named.items():
        rows[name]["seconds"] = _seconds(result)
    return pd.DataFrame.from_dict(rows, orient="index").dropna(axis="columns", how="all")


def _itself(result: Result, classifier: GPClassifier) -> dict[str, float]:
    """Return the columns of the table for the evidence and hyperparameters of a result."""
    row = {"log_evidence": np.nan, "lower_bound": np.nan, "log_evidence_integrated": np.nan}
    own = classifier
    if not isinstance(result, xr.DataTree):
        row["log_evidence"], own = result.log_evidence, result.classifier
        row["lower_bound"] = result.lower_bound
        if len(result.hyper_posterior) > 1:
            row["log_evidence_integrated"] = result.hyper_posterior.log_evidence
    for rv in own.hyperparameters:
        values = hyperparameter_draws(result, rv.name)
        mean = values.weighted(values["weight"]).mean("sample")
        for index in np.ndindex(mean.shape):
            at = mean[index]
            labels = [
                str(at[dim].item()) if dim in at.coords else str(i) for dim, i in zip(mean.dims, index, strict=True)
            ]
            row[f"{rv.name}[{', '.join(labels)}]" if labels else rv.name] = float(at)
    return row


def _latent_differences(
    results: Mapping[str, Result], reference: str, classifier: GPClassifier
) -> dict[str, dict[str, float]]:
    likelihoods = {
        name: (classifier if isinstance(result, xr.DataTree) else result.classifier).likelihood_model
        for name, result in results.items()
    }
    moments = {name: latent_moments(result, classifier) for name, result in results.items()}
    wanted_mean, wanted_cov = moments[reference]
    wanted_variance = wanted_cov.diagonal(axis1=1, axis2=2)
    rows = {}
    for name, (mean, cov) in moments.items():
        if likelihoods[name] != likelihoods[reference]:
            continue
        if mean.shape != wanted_mean.shape:
            raise ValueError(
                f"{name!r} has latent values of shape {mean.shape}, but {reference!r} of shape {wanted_mean.shape}."
            )
        variance = cov.diagonal(axis1=1, axis2=2)
        rows[name] = {
            "latent_mean_difference": float(np.abs(mean - wanted_mean).mean()),
            "latent_variance_difference": float(np.abs(variance - wanted_variance).mean()),
        }
    return rows


def _seconds(result: Result) -> float:
    """Return the time of a fit or of sampling, in seconds; NaN if it is unknown."""
    if not isinstance(result, xr.DataTree):
        return result.seconds
    return float({**result.attrs, **result["posterior"].attrs}.get("sampling_time", np.nan))
