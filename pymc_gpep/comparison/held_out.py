"""Predictions of methods at held-out points, and how good they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.comparison.bootstrap import bayesian_bootstrap
from pymc_gpep.comparison.draw_prediction import predict_draws
from pymc_gpep.comparison.fits_and_draws import Result
from pymc_gpep.comparison.held_out_scores import information
from pymc_gpep.fits.prediction import held_out
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.interpreted import evaluate

__all__ = ["HeldOutScores"]


class _Predicted(NamedTuple):
    """Predictions of one method at m points."""

    p: Array
    """Probabilities of classes, (m, classes)."""
    moments: Array | None = None
    """Mean and variance of an observation, (2, m), where there are no classes."""
    log_density: Array | None = None
    """Log density of the observations, (m,), where there are no classes."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Points that were held out, with what was observed there and is known beforehand.

    Attributes
    ----------
    classifier : GPClassifier
        Classifier of the observed variable that is predicted.
    gp : pm.gp.Latent or sequence of them, or None
    inputs : array_like (m, d) or None
    observed : array_like (m,) or None
    data : dict of str to array_like, or None
        Data of the model at those points, as for `Fit.predict`.
    probabilities : dict of str to array_like (m, classes)
        Class probabilities by some methods, by name.
    response : str, optional
        Name of the observed variable, as the caller gave it.
    """

    classifier: GPClassifier
    gp: Any
    inputs: ArrayLike | None
    observed: ArrayLike | None
    data: Mapping[str, ArrayLike] | None
    probabilities: Mapping[str, ArrayLike]
    response: str | None = None

    def rows(
        self, results: Mapping[str, Result], reference: str, prob: float, random_seed: Any
    ) -> dict[str, dict[str, float]]:
        """Differences of predictions to those of the reference, and scores, by method and name of the column.

        Raises
        ------
        ValueError
            If something that predictions need is missing or does not fit.
        """
        if self.probabilities and not self.classifier.observes_classes:
            raise ValueError(
                f"probabilities are those of classes, and {self.classifier.response!r} does not observe "
                "classes. Leave them out, and give Xnew and ynew."
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
        classes = self.classifier.n_classes
        if name in self.probabilities:
            return _Predicted(np.asarray(self.probabilities[name], dtype=np.float64))
        if self.inputs is None and not self.data:
            otherwise = "; or give them: probabilities=..." if self.classifier.observes_classes else ""
            raise ValueError(
                f"Predictions of held-out points by {name!r} need Xnew, or data of sums at "
                f"these points, data={{...}}{otherwise}."
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
        if classes:
            return _Predicted(found["p"].values, log_density=density)
        outcome = self.classifier.response
        moments = np.stack([found[f"{outcome}_{moment}"].values for moment in ("mean", "variance")])
        return _Predicted(np.empty((moments.shape[1], 0)), moments, density)

    def _differences(self, predicted: Mapping[str, _Predicted], reference: str) -> dict[str, dict[str, float]]:
        """How far predictions are from those of the reference."""
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
        """Scores of each point (m,), by name."""
        density = predicted.log_density
        if density is None:
            with np.errstate(divide="ignore"):
                density = np.log(predicted.p[np.arange(len(y)), y])
        return {"mlpd": density} | self.classifier.likelihood_model.scores(y, predicted.p, predicted.moments)


def _with_intervals(
    scores: Mapping[str, Mapping[str, Array]], reference: str, prob: float, random_seed: Any
) -> dict[str, dict[str, float]]:
    """Means of scores, and of their differences to the reference, with intervals by the Bayesian bootstrap."""
    if not 0 < prob < 1:
        raise ValueError(f"prob must be in (0, 1), but is {prob}.")
    names = list(scores[reference])
    measured = np.stack([np.stack([each[name] for name in names], axis=1) for each in scores.values()], axis=1)
    baseline = list(scores).index(reference)
    with np.errstate(invalid="ignore"):  # where a probability is 0
        both = np.stack([measured, measured - measured[:, [baseline]]], axis=3)  # (point, method, score, which)
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
