"""Small fits of every kind, and their stored numbers.

`numbers.json` contains stored numbers of all fits, which show whether a change of the code affects fits. The numbers
need not be accurate: other tests compare fits with independent references. After a change that is meant to affect fits,
write the file again by `python -m tests.golden.make`, and state the reason in the commit.
"""

import contextlib
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from tests import models
from tests.graph_modes import HARDLY_REWRITTEN

__all__ = ["AT_A_FIXED_POINT", "FITS", "NEW", "slope", "summary"]

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(4, 2))
# the residual depends on rounding, the STOP text on SciPy
_SAID_BY_OTHERS = re.compile(r"(?<=residual )[-+.\de]+|STOP: [A-Z. ]+")
_FEW = {"inducing": 5}
_BATCHES = {"inducing": 5, "batch_size": 10, "obj_optimizer": pm.adam(learning_rate=0.02), "n": 6}

FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "nested EP": ("multinomial probit", {"method": "nested_ep"}),
    "nested EP, nothing to learn": ("no hyperparameters", {"method": "nested_ep"}),
    "nested EP, a covariance for each class": (
        "a covariance for each class",
        {"method": "nested_ep", "n": 4, "hyperparameters": models.MEANS},
    ),
    "nested EP, central composite design": ("several hyperparameters", {"method": "nested_ep", "hyper": "ccd"}),
    "variational Bayes": ("multinomial probit", {"method": "vb"}),
    "Laplace of a softmax": ("softmax", {"method": "laplace"}),
    "EP of a logit, Gaussian of hyperparameters": ("logit", {"method": "ep", "hyper": "laplace"}),
    "KL of a logit": ("logit", {"method": "kl"}),
    "Laplace of counts": ("counts", {"method": "laplace"}),
    "EP of counts, draws of hyperparameters": (
        "counts",
        {"method": "ep", "hyper": "importance", "hyper_options": {"draws": 100}},
    ),
    "sparse EP": ("multinomial probit", {"method": "sparse_ep"} | _FEW),
    "sparse EP, learned inducing inputs": ("probit", {"method": "sparse_ep", "learn_inducing": True, "n": 5} | _FEW),
    "sparse EP, inner updates": ("probit", {"method": "sparse_ep", "update": "inner", "n": 10} | _FEW),
    "sparse EP by pairs": ("several hyperparameters", {"method": "sparse_ep", "sites": "pairwise", "n": 4} | _FEW),
    "sparse bound, rows beside the model": ("probit", {"method": "sparse_vi", "data": (X[3:], Y[3:] == 2)} | _FEW),
    "generalised FITC": ("multinomial probit", {"method": "gfitc"} | _FEW),
    "active rows": ("multinomial probit", {"method": "ivm", "active": 10, "n": 8}),
    "active rows, nothing to learn": ("no hyperparameters", {"method": "ivm", "active": 10}),
    "batches": ("multinomial probit", {"method": "sparse_ep", "sites": "pairwise"} | _BATCHES),
    "batches, sites kept": ("probit", {"method": "sparse_ep", "memory": "sites"} | _BATCHES),
    "batches, one site for all": ("probit", {"method": "sparse_sep"} | _BATCHES),
    "batches, bound": ("logit", {"method": "sparse_vi"} | _BATCHES),
}
"""Name of the model in `_model` and options of `pm.fit`, by name of the fit."""
AT_A_FIXED_POINT = {name for name in FITS if name.endswith("nothing to learn")}
"""Fits whose numbers do not depend on an optimiser."""


def _one_function(observe: Callable[[Any], Any]) -> pm.Model:
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 3)
        observe(pm.gp.Latent(cov_func=2 * pm.gp.cov.Matern52(2, ls=ls)).prior("f", X=X))
    return model


@functools.cache
def _model(name: str) -> pm.Model:
    """Return a model. All its fits share it."""
    return {
        "several hyperparameters": lambda: models.shared()[0],
        "a covariance for each class": lambda: models.per_class()[0],
        "no hyperparameters": lambda: models.fixed()[0],
        "multinomial probit": lambda: models.probit()[0],
        "softmax": lambda: models.softmax()[0],
        "probit": lambda: models.bernoulli_probit()[0],
        "logit": lambda: models.bernoulli_logit()[0],
        "counts": lambda: _one_function(lambda f: pm.Poisson("y", mu=2.0 * pm.math.exp(f), observed=2 * Y + 1)),
    }[name]()


def slope(fit: Any) -> np.ndarray | None:
    """Return the gradient of the log posterior at the start of the search, or None for a fit by batches.

    This is the only function here that uses private parts of a fit.
    """
    if fit.log_posterior.joint:  # the search of a dense fit uses a larger tolerance
        return fit.log_posterior(fit.log_posterior.space.initial_point()).gradient
    return None if fit.trace.unit == "step" else fit.trace.first.gradient


def summary(name: str) -> dict[str, Any]:
    """Make a fit and return the numbers and texts to be stored."""
    model, options = FITS[name]
    with pytensor.config.change_flags(mode=HARDLY_REWRITTEN), warnings.catch_warnings(), _model(model):
        warnings.simplefilter("ignore")  # a few iterations do not converge, and some new inputs are far from the data
        fit = pm.fit(**{"hyper": "map"} | options, random_seed=1, progressbar=False)
        return {key: np.asarray(value).tolist() for key, value in _kept(fit).items()}


def _kept(fit: Any) -> dict[str, Any]:
    """Return results that all kinds of fits have, and results that only some kinds have."""
    kept = {"message": _SAID_BY_OTHERS.sub("…", fit.message), "converged": fit.converged}
    kept |= {name: getattr(fit, name) for name in ("log_evidence", "lower_bound", "hist")}
    kept |= {f"hyperparameters.{name}": value.values for name, value in fit.hyperparameters.items()}
    kept |= {f"nodes.{name}": value.values for name, value in fit.nodes.reset_coords("weight").items()}
    if (gradient := slope(fit)) is not None:
        kept["slope"] = gradient
    mean, cov = fit.latent_moments()
    kept |= {"latent.mean": mean, "latent.sd": np.sqrt(cov.diagonal(axis1=1, axis2=2))}
    kept |= {f"predict.{name}": value.values for name, value in fit.predict(NEW).items() if name != "error"}
    for name in ("objective", "inducing"):
        if hasattr(fit, name):
            kept[name] = getattr(fit, name)
    if hasattr(fit, "active"):
        kept["active.row"] = fit.active.row
    if hasattr(fit, "hyper_posterior"):
        kept["hyper_posterior.log_evidence"] = fit.hyper_posterior.log_evidence
    with contextlib.suppress(NotImplementedError):  # some sites leave functions independent
        kept["loo.elpd"] = fit.loo().elpd
    with contextlib.suppress(NotImplementedError):  # fits with inducing inputs have no draws
        drawn = fit.sample(2, random_seed=1)["posterior"]
        kept |= {f"sample.{name}": value.values.reshape(2, -1)[:, ::7] for name, value in drawn.items()}
    return kept
