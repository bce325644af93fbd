"""The compared methods, and functions to run and score them."""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.paper.data import Split
from benchmarks.scalable_paper.joint_bound import GPFLOW, joint_fit
from benchmarks.scalable_paper.models import WEAK, probit_model, step_model
from benchmarks.scalable_paper.signed_steps import signed_steps
from pymc_gpep.graphs.interpreted import INTERPRETED

Array = np.ndarray


def by_pymc(model: pm.Model, n: int, **options: Any) -> Any:
    """Fit a model."""
    with model:
        return pm.fit(n, hyper="map", progressbar=False, **options)


def as_they_are(X: Array, y: Array) -> tuple[Array, Array]:
    """Inputs and labels, for methods that need no PyMC model."""
    return X, y


class Method(NamedTuple):
    """A method: functions that build its model from inputs and labels, and fit it."""

    title: str
    build: Callable[[Array, Array], pm.Model | tuple[Array, Array]]
    options: dict[str, Any]
    sparse: bool = True
    kept_back: float = 0.0
    """Fraction of rows that are held out to select the best iteration."""
    every: int = 1
    """Number of iterations between two candidates."""
    fit: Callable[..., Any] = by_pymc


_LEARNED = {"learn_inducing": True}
_SEP = {"obj_optimizer": signed_steps, "compile_kwargs": {"mode": INTERPRETED}}
PAPERS = {
    "gfitc": Method("GFITC", step_model, {"method": "gfitc", **_LEARNED}),
    "ep": Method("EP", step_model, {"method": "sparse_ep", "sites": "pairwise", "update": "inner", **_LEARNED}),
    "sep": Method("SEP", step_model, {"method": "sparse_sep", "sites": "pairwise", **_SEP}),
    "vi": Method("VI", step_model, {"method": "sparse_vi", "update": "inner", **_LEARNED}),
}
"""Methods of the paper: GFITC by L-BFGS; EP and SEP with alternating sweeps and steps of the hyperparameters.

VI has alternating natural gradients and steps, where the paper has L-BFGS for all parameters.
"""

_FULL = {"method": "nested_ep"}
_EXACT = {"method": "sparse_ep", "sites": "quadrature", "update": "inner", **_LEARNED}
BEYOND = {
    "exact": Method("EP, exact factor", step_model, _EXACT),
    "exact-priors": Method("EP, exact factor, weak priors", partial(step_model, spread=WEAK), _EXACT),
    "nested": Method(
        "EP, nested", probit_model, {"method": "sparse_ep", "sites": "nested", "update": "inner", **_LEARNED}
    ),
    "vi-probit": Method("VI, probit", probit_model, {"method": "sparse_vi", "update": "inner", **_LEARNED}),
    "vi-joint": Method("VI, L-BFGS of all from the prior", as_they_are, {}, fit=joint_fit),
    "vi-whitened": Method("VI, the same, whitened", as_they_are, {"whitened": True}, fit=joint_fit),
    "vi-gpflow": Method("VI, the same, from GPflow's start", as_they_are, {"begin": GPFLOW}, fit=joint_fit),
    "ep-kept-back": PAPERS["ep"]._replace(
        title="EP, best iteration by a held-out fifth of the rows", kept_back=0.2, every=5
    ),
    "vi-kept-back": PAPERS["vi"]._replace(
        title="VI, best iteration by a held-out fifth of the rows", kept_back=0.2, every=10
    ),
    "full": Method("nested EP, all rows", probit_model, _FULL, sparse=False),
    "full-priors": Method("nested EP, all rows, weak priors", partial(probit_model, spread=WEAK), _FULL, sparse=False),
}
"""Further methods.

The exact factor is the likelihood of a point instead of the product (6). Nested sites couple classes. VI has a
likelihood with noise, or the paper's optimiser. Held-out rows select the iteration. The last methods have no inducing
inputs. Priors limit amplitudes.
"""

METHODS = PAPERS | BEYOND


class Curve:
    """A callback that stores processor time, objective and, at some iterations, held-out scores.

    Its own time is excluded.

    Parameters
    ----------
    split : Split
    scored : sequence of int
        Iterations at which held-out points are predicted.
    """

    def __init__(self, split: Split, scored: Sequence[int] = ()) -> None:
        self._split, self._scored = split, set(scored)
        self._began, self._own = time.process_time(), 0.0
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.scores: list[tuple[float, float, float]] = []

    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        entered = time.process_time()
        self.seconds.append(entered - self._began - self._own)
        self.losses.append(float(losses[-1]))
        if iteration in self._scored:
            log_p, wrong = score(fit, self._split)
            self.scores.append((self.seconds[-1], -float(log_p.mean()), float(wrong.mean())))
        self._own += time.process_time() - entered

    @property
    def arrays(self) -> dict[str, Array]:
        """Arrays by name. Scores (points, 3) are seconds, negative log likelihood and error."""
        return {
            "at": np.array(self.seconds),
            "loss": np.array(self.losses),
            "scores": np.array(self.scores).reshape(-1, 3),
        }


class Fitted(NamedTuple):
    """A fit, its time and its warnings."""

    fit: Any
    seconds: float
    """Processor seconds, including graphs."""
    warnings: str
    """Its warnings except for the limit on iterations, one a line."""


def run(
    name: str, split: Split, inducing: Array, iterations: int, callbacks: Sequence[Any] = (), **more: Any
) -> Fitted:
    """Fit by a method, with these initial inducing inputs."""
    method = METHODS[name]
    learned, held = _kept_back(split, method)
    model = method.build(learned.X, learned.y)
    options = method.options | ({"inducing": inducing} if method.sparse else {}) | more
    began = time.process_time()
    with threadpool_limits(1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = method.fit(model, iterations, callbacks=[*callbacks, *held], **options)
    for each in held:
        fit = each.best
    seconds = time.process_time() - began
    said = {str(each.message).splitlines()[0] for each in caught}
    limits = ("Limit of", "the limit of n=")
    return Fitted(fit, seconds, "\n".join(sorted(line for line in said if not any(limit in line for limit in limits))))


def _kept_back(split: Split, method: Method) -> tuple[Split, list[gpep.EarlyStopping]]:
    """Training rows, and a function that scores the held-out rows."""
    if not method.kept_back:
        return split, []
    order = np.random.default_rng(0).permutation(split.y.size)
    kept, learned = np.split(order, [round(method.kept_back * split.y.size)])
    held = gpep.EarlyStopping(split.X[kept], split.y[kept], every=method.every)
    return split._replace(X=split.X[learned], y=split.y[learned]), [held]


def score(fit: Any, split: Split) -> tuple[Array, Array]:
    """Log probabilities of the labels of held-out points, and whether another class is more probable."""
    with threadpool_limits(1):
        p = fit.predict(split.Xnew, covariances=False)["p"].values
    return np.log(p[np.arange(len(split.ynew)), split.ynew]), p.argmax(axis=1) != split.ynew
