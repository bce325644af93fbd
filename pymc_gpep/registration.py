"""Changes to PyMC when the package is imported; no other module changes names of PyMC.

`pm.fit` accepts the names of the approximations. If it is called without a method, it logs the recommended method.
`pm.sample` logs the recommended step method for models with Gaussian processes, and does not assign it.
`pm.gp.Latent.prior` copies the array of its inputs, and attaches a record of the array to the graph. The record is
needed because covariance functions select columns of the array before a graph exists. A rewrite imports the JAX
implementations if JAX compiles an operation of this package. If PyTensor cannot write to the folder of its compiled
graphs, it uses a temporary folder.
"""

import atexit
import functools
import inspect
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pymc.sampling
import pymc.sampling.mcmc
import pymc.variational
import pymc.variational.inference
import pytensor

from pymc_gpep.evidence import jax_loading  # noqa: F401  # it registers a rewrite
from pymc_gpep.noted_inputs import note_inputs, own_arrays


def patch() -> None:
    """Replace functions of PyMC by wrappers of this package; a second call does nothing."""
    ensure_folder(vars(type(pytensor.config))["base_compiledir"])
    _replace((pymc.variational.inference, pymc.variational, pm), "fit", _fit)
    _replace((pm.gp.Latent,), "prior", _prior)
    _replace((pymc.sampling.mcmc, pymc.sampling, pm), "sample", _sample)


def ensure_folder(parameter: Any) -> None:
    """Set the parameter of PyTensor's configuration to a temporary folder, if its folder cannot be written.

    When its Numba backend is imported, PyTensor creates `numba` in the folder, and raises an error if that fails.
    """
    with suppress(OSError):
        folder = Path(parameter.val) / "numba"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    parameter.val = Path(tempfile.mkdtemp(prefix="pymc_gpep-"))
    atexit.register(shutil.rmtree, parameter.val, ignore_errors=True)


def _replace(places: Sequence[Any], name: str, wrapper: Callable[[Any, inspect.Signature], Any]) -> None:
    """Replace a function of PyMC by a wrapper in each place, unless it is wrapped already."""
    original = getattr(places[0], name)
    if getattr(original, "_pymc_gpep", False):
        return
    made: Any = functools.wraps(original)(wrapper(original, inspect.signature(original)))
    made._pymc_gpep = True
    for place in places:
        if getattr(place, name) is original:
            setattr(place, name, made)


def advise(advice: Callable[[pm.Model | None], None], model: pm.Model | None) -> None:
    """Log advice before a call of PyMC. Errors that arise while the model is read are ignored."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        advice(model)


def _sample(original: Any, signature: inspect.Signature) -> Any:
    """Return a `pm.sample` that first logs the recommended step method, if the call names no step and no sampler."""

    def sample(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        named = {"step", "nuts_sampler"} & arguments.keys()
        if not named and not arguments.get("quiet"):
            from pymc_gpep.samplers.guided import offer_step

            advise(offer_step, arguments.get("model"))
        return original(*args, **kwargs)

    return sample


def _prior(original: Any, signature: inspect.Signature) -> Any:
    """Return a `pm.gp.Latent.prior` that copies the array of its inputs, and records it."""

    def prior(self: pm.gp.Latent, *args: Any, **kwargs: Any) -> Any:
        # Predictions of a fit evaluate the process, and must not be affected by later changes of these arrays.
        arguments = signature.bind(self, *args, **kwargs).arguments
        if isinstance(arguments.get("X"), np.ndarray):
            arguments["X"] = arguments["X"].copy()
        own_arrays(self.cov_func)
        own_arrays(self.mean_func)
        keywords = arguments.pop("kwargs", {})
        f = original(**arguments, **keywords)
        note_inputs(f, self.X, (self.cov_func, self.mean_func))
        return f

    return prior


def _fit(original: Any, signature: inspect.Signature) -> Any:
    """Return a `pm.fit` that also accepts the names of the approximations.

    `pm.fit` accepts an `Inference` in place of a name. The wrapper creates an `Inference` for methods of this package,
    and passes all other calls on. A call without a method logs a recommendation of a method of this package, and then
    runs ADVI, as in PyMC.
    """

    def fit(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        method = arguments.get("method")
        if "method" not in arguments:
            from pymc_gpep.variational.method_choice import tell_of_advi

            advise(tell_of_advi, arguments.get("model"))
        if not isinstance(method, str):
            return original(*args, **kwargs)
        # Imported at their first use, since they import numba.
        from pymc_gpep.argument_types import did_you_mean
        from pymc_gpep.fits.callbacks import check_callbacks
        from pymc_gpep.graphs.interpreted import caused_by_an_interrupt
        from pymc_gpep.pytensor_settings import without_traces
        from pymc_gpep.variational.inference import GPInference
        from pymc_gpep.variational.method_choice import AUTO, chosen
        from pymc_gpep.variational.plans.plans import all_methods, plan_for

        name = method.lower()
        given = {**(arguments.get("inf_kwargs") or {}), **arguments.get("kwargs", {})}
        if name == AUTO:
            choice = chosen(arguments.get("model"), given, arguments.get("n"))
            name, given = choice.method, {**given, **choice.options}
            arguments["kwargs"] = {**arguments.get("kwargs", {}), **choice.options}
            if choice.n is not None:
                arguments["n"] = choice.n
        if name not in (known := all_methods()):
            try:
                return original(*args, **kwargs)
            except KeyError as error:
                if "method should be one of" not in str(error):
                    raise
                theirs = re.findall(r"'(\w+)'", str(error.args[0]))
                ours = [AUTO, *known]
                meant = did_you_mean([name], [*ours, *theirs])
                raise KeyError(f"{error.args[0]}; pymc_gpep adds {', '.join(ours)}.{meant}") from None
        if arguments.pop("start_sigma", None) is not None:
            raise NotImplementedError(f"start_sigma is only available for method advi, not {method}.")
        check_callbacks(given.get("callbacks"), name, plan_for(name, given).by_steps)
        options = dict(arguments.pop("inf_kwargs", None) or {})
        options |= {each: arguments.pop(each) for each in ("random_seed", "start") if each in arguments}
        others = arguments.pop("kwargs", {})
        of_fit = set(inspect.signature(GPInference.fit).parameters) | set(signature.parameters)
        options |= {each: others.pop(each) for each in set(others) - of_fit}
        if options.get("batch_size", 0) is None:
            del options["batch_size"]  # `batch_size=None` means the same as no option.
        try:
            with without_traces():
                arguments["method"] = GPInference(name, arguments.get("model"), **options)
            return original(**arguments, **others)
        except Exception as error:  # After an interrupt, PyTensor and Numba may raise errors of other classes.
            if caused_by_an_interrupt(error):
                raise KeyboardInterrupt from error
            raise

    return fit
