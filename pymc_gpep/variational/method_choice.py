"""The choice of `pm.fit(method="auto")`: all rows together, inducing inputs, or inducing inputs with batches.

If `pm.fit` is called without a method, the same choice is logged, and ADVI runs as in PyMC.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_gpep.approximations.methods import approximator
from pymc_gpep.approximations.several_predictors import LaplacePredictors
from pymc_gpep.approximations.site_rules import OneFunctionSite
from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.evidence.memory_check import available_memory, least_memory
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.likelihoods.local_computations import PredictorsNodes
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_sum import as_sum
from pymc_gpep.processes.processes import GPModel
from pymc_gpep.reading import GPClassifier, StructureError, read_classifier
from pymc_gpep.rows.storage import open_rows
from pymc_gpep.streaming.run import one_batch
from pymc_gpep.sums.latent_sum import LatentSum

_log = logging.getLogger("pymc")  # Logger of PyMC, which shows the choices of `pm.fit`.

AUTO = "auto"
"""Name of the method in `pm.fit` for an automatic choice."""

_DENSE = 1e10  # Largest work c n³ of a fit with matrices of all rows. Such a fit takes about a minute.
_QUADRATURES = 20_000  # Largest number of rows with several linear predictors for EP. With more, EP takes minutes.
_SPARE = 1.5  # Assumed ratio of the largest memory of a search to its minimum.
_INDUCING = 100  # Number M of inducing inputs if the user sets none.
_COMMON = 200  # Number of inducing inputs for models that `SparseEP` does not support.
_SWEPT = 2e8  # Largest work c n M² of a fit by sweeps over all rows. Such a fit takes about a minute.
_BATCH = 200  # Number of rows in a batch if the user sets none.
_PASSES, _FEWEST, _MOST = 10, 1000, 10_000  # Passes over the rows; smallest and largest number of steps.
_GIGABYTE = 1e9


class MethodChoice(NamedTuple):
    """A method with its options for `pm.fit`.

    Attributes
    ----------
    method : str
    options : dict
    n : int or None
        Number of steps; None for the default of `pm.fit`, a limit on iterations.
    reason : str
        Reason for the choice, as a sentence.
    whole : bool
        Whether all rows are one batch.
    """

    method: str
    options: Mapping[str, Any]
    n: int | None
    reason: str
    whole: bool = False

    @property
    def arguments(self) -> str:
        """Arguments of `pm.fit` as code."""
        steps = {} if self.n is None else {"n": self.n}
        return ", ".join(f"{k}={v!r}" for k, v in {**steps, "method": self.method, **self.options}.items())

    def __str__(self) -> str:
        """Return the name of the method, and its options in words."""
        told = [self.method]
        if "inducing" in self.options:
            inducing = self.options["inducing"]
            told.append(f"{inducing if np.ndim(inducing) == 0 else np.shape(inducing)[-2]} inducing inputs")
        if self.whole:
            told.append(f"at most {self.n} iterations over all rows")
        elif "batch_size" in self.options:
            told.append(f"{self.n} steps of {self.options['batch_size']} rows")
        return ", ".join(told)


def choose_method(
    classifier: GPClassifier, given: Mapping[str, Any], max_dense_rows: int | None = None
) -> MethodChoice:
    """Return a method for the numbers of rows and latent functions, and the free memory.

    Parameters
    ----------
    classifier : GPClassifier
        Classifier of the model.
    given : dict
        Options of the user. `inducing`, `batch_size` and `data` require inducing inputs.
    max_dense_rows : int, optional
        Largest number of rows for matrices of all rows. By default c n³ ≤ 1e10, about a minute of work.
    """
    likelihood, c = classifier.likelihood_model, classifier.n_functions
    n = classifier.n_points if given.get("data") is None else open_rows(given["data"]).n_rows
    told = f"{n} rows and {c} latent function{'s' * (c > 1)}"
    dense = likelihood.method if likelihood.method != SparseEP.name else None
    held, there = _SPARE * least_memory(DensePrior, c, n, n, learned=True), available_memory()
    few = c * float(n) ** 3 <= _DENSE if max_dense_rows is None else n <= max_dense_rows
    few_enough = f"{told} are few enough for matrices of all rows."
    why = f"{told} are too many for matrices of all rows"
    if instead := _not_by_inducing(classifier, given):
        options = likelihood.options if dense else {}
        if likelihood.offers(PredictorsNodes) and n > _QUADRATURES:
            smooth = {"smoothed_mean": True}
            return MethodChoice(LaplacePredictors.name, smooth, None, f"{told} are too many for quadratures.")
        if dense and _as_rows(classifier):
            size = min(_COMMON, n)
            if given.get("inducing") is not None or not (few and held <= there):
                chosen = {} if given.get("inducing") is not None else {"inducing": size}
                why = "inducing asks for inducing inputs" if given.get("inducing") is not None else why
                return MethodChoice(dense, {**options, **chosen}, None, f"{why}. Rows depend on few numbers.")
            return MethodChoice(dense, options, None, few_enough)
        return MethodChoice(dense or SparseEP.name, options, None, f"no method with inducing inputs {instead}.")
    asked = [name for name in ("inducing", "batch_size", "data") if given.get(name) is not None]
    few &= not (dense and approximator(dense, likelihood, {}).too_large(c, n))
    if dense and not asked and few and held <= there:
        return MethodChoice(dense, {}, None, few_enough)
    if asked or not dense:
        why = f"{' and '.join(asked) or 'the likelihood'} asks for inducing inputs"
    elif few:
        why = f"matrices of all rows take {held / _GIGABYTE:.1f} GB, and {there / _GIGABYTE:.1f} GB are free"
    inducing = given.get("inducing")
    size = (
        min(_INDUCING, n) if inducing is None else int(inducing) if np.ndim(inducing) == 0 else np.shape(inducing)[-2]
    )
    # Fixed inducing inputs are used on request and for models with effects. Batch fits learn their inducing inputs.
    stay = given.get("batch_size") is None and (inducing is not None or bool(classifier.prior.effects))
    values = size + (by_inducing(classifier).prior.n_normals if classifier.prior.effects else 0)
    if stay and c * float(n) * values**2 <= _SWEPT:
        options = {"inducing": size, "shared_inducing": True} if inducing is None else {}
        return MethodChoice(SparseEP.name, options, None, f"{why}, and few enough for sweeps over all rows.")
    batch = given.get("batch_size") or _BATCH
    steps = int(np.clip(_PASSES * n // batch, _FEWEST, _MOST))
    # The same condition as `ByBatches.takes_all`.
    whole = (
        inducing is None and not given.get("learn_inducing") and not classifier.prior.effects and one_batch(n, batch)
    )
    takes = "all rows are inducing inputs, and each step uses all rows" if whole else f"a step uses {batch} rows"
    return MethodChoice(SparseEP.name, {"batch_size": batch}, steps, f"{why}: {takes}.", whole)


def _not_by_inducing(classifier: GPClassifier, given: Mapping[str, Any]) -> str:
    """Return in words the feature of a model that inducing inputs do not support; empty if they support the model."""
    likelihood = classifier.likelihood_model
    by_batches = any(given.get(name) is not None for name in ("batch_size", "data"))
    if likelihood.has_parameters and OneFunctionSite.fits(likelihood) and not by_batches:
        return f"learns parameters of a {classifier.kind} likelihood"
    if not SparseEP.approximates(classifier.likelihood_model):
        return f"fits a {classifier.kind} likelihood"
    if classifier.learned_parameters:
        return "learns parameters of a likelihood"
    try:
        by_inducing(classifier)
    except StructureError:
        return "fits this sum of effects"
    return ""


def _as_rows(classifier: GPClassifier) -> bool:
    """Return whether the prior is a matrix over many inputs of a process, which inducing inputs can approximate."""
    prior = classifier.prior
    if not isinstance(prior, GPModel | LatentSum) or next(iter(prior.arrays)) is not DensePrior:
        return False
    try:
        made = as_sum(classifier).prior
    except StructureError:
        return False
    assert isinstance(made, LatentSum)
    return bool(made.sizes[0][-1] > _COMMON)


def chosen(model: pm.Model | None, given: Mapping[str, Any], n: int | None = None) -> MethodChoice:
    """Return the method for a model, and log it with its reason. `n`, if given, is the number of its steps."""
    asked = given.get("hyperparameters", ())
    by_batches = any(given.get(name) is not None for name in ("inducing", "batch_size", "data"))
    read = partial(read_classifier, pm.modelcontext(model), given.get("likelihood"), asked, starts=True)
    classifier = read(predictors=True, priors=not by_batches)
    choice = choose_method(classifier, given)
    choice = choice if n is None else choice._replace(n=n)
    _log.info("method='auto' takes %s: %s", choice, choice.reason)
    return choice


def tell_of_advi(model: pm.Model | None) -> None:
    """Log that `pm.fit` without a method runs ADVI, and recommend a method of this package.

    Parameters
    ----------
    model : pm.Model, optional
        Model of the call. The default is the current model.
    """
    choice = choose_method(read_classifier(pm.modelcontext(model), starts=True, predictors=True, priors=True), {})
    _log.warning(
        "pm.fit without method= runs PyMC's ADVI. pymc_gpep fits this model with %s. method='advi' runs ADVI "
        "without this line.",
        choice.arguments,
    )
