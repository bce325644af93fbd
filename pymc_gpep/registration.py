"""Changes that importing the package makes to PyMC; nothing else touches its names.

`pm.fit` learns the names of the approximations, and logs the method that fits a model if it is called without one.
`pm.gp.Latent.prior` copies the array of its inputs, and notes it. A covariance function selects columns before there is
a graph. The graph then has neither the array nor the order of its columns. PyTensor learns where to find JAX support.
"""

import functools
import inspect
import re
from typing import Any

import numpy as np
import pymc as pm
import pymc.variational
import pymc.variational.inference

from pymc_gpep.evidence import jax_loading  # noqa: F401  # it registers a rewrite
from pymc_gpep.noted_inputs import note_inputs, own_arrays

_PLACES = (pymc.variational.inference, pymc.variational, pm)
"""Where PyMC keeps `fit`."""


def patch() -> None:
    """Let PyMC know of the package; a second call does nothing."""
    _register_methods()
    _register_inputs()


def _register_inputs() -> None:
    original = pm.gp.Latent.prior
    if getattr(original, "_pymc_gpep", False):
        return

    signature = inspect.signature(original)

    @functools.wraps(original)
    def prior(self: pm.gp.Latent, *args: Any, **kwargs: Any) -> Any:
        # A fit predicts by the process itself, and changes of these arrays must not reach it.
        arguments = signature.bind(self, *args, **kwargs).arguments
        if isinstance(arguments.get("X"), np.ndarray):
            arguments["X"] = arguments["X"].copy()
        own_arrays(self.cov_func)
        own_arrays(self.mean_func)
        keywords = arguments.pop("kwargs", {})
        f = original(**arguments, **keywords)
        note_inputs(f, self.X, (self.cov_func, self.mean_func))
        return f

    prior._pymc_gpep = True  # type: ignore[attr-defined]
    pm.gp.Latent.prior = prior


def _register_methods() -> None:
    """Let `pm.fit` know the names of the approximations.

    `pm.fit` takes an `Inference` in place of a name. The wrapper makes one of ours for our names, and otherwise leaves
    the call alone. A call without a method runs ADVI, as PyMC does, after a line that names the method of this package.
    """
    original = pymc.variational.inference.fit
    if getattr(original, "_pymc_gpep", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        method = arguments.get("method")
        if "method" not in arguments:
            from pymc_gpep.variational.method_choice import tell_of_advi

            tell_of_advi(arguments.get("model"))
        if not isinstance(method, str):
            return original(*args, **kwargs)
        # Not before they are wanted: they bring numba along.
        from pymc_gpep.argument_types import did_you_mean
        from pymc_gpep.fits.callbacks import check_callbacks
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
            del options["batch_size"]  # which is what leaving it out is
        arguments["method"] = GPInference(name, arguments.get("model"), **options)
        return original(**arguments, **others)

    fit._pymc_gpep = True  # type: ignore[attr-defined]  # marks the wrapper for the next call
    for module in _PLACES:
        if module.fit is original:
            module.fit = fit
