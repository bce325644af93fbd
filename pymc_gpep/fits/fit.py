"""The result of `pm.fit`: a PyMC `Approximation` whose latent functions are Gaussian given the hyperparameters."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor

from pymc_gpep.array_types import Array
from pymc_gpep.fits import cross_validation, draws, effects, exactness, prediction, sample, saving, sensitivity, summary
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.group import GPGroup


class Fit(Fitted):
    """Approximate posterior of a Gaussian process model, as `pm.fit` returns it for every method of this package.

    Hyperparameters are at the maximum of their approximate posterior (type-II MAP, in the unconstrained space). With
    another `hyper` they are at weighted points that stand for it. Given the hyperparameters the latent functions are
    Gaussian. A fit is a value: nothing that is done later changes it. Results that take work are computed when the
    caller first asks for them.

    Everything else that a PyMC `Approximation` offers works as everywhere: `mean`, `std`, `cov`, `mean_data`, `state`
    and `sample_node`. The last draws from the Gaussian with this mean and covariance. These are of the latent values at
    the model's own points, in the form in which the model declares them. So they need matrices of that size.

    Parameters
    ----------
    log_posterior : LogPosterior
        The log posterior of the hyperparameters, with the model, its data and the method.
    trace : Trace
        History of the search for hyperparameters.
    hyper_posterior : HyperPosterior, optional
        The nodes that draws, moments and predictions average over; one at the maximum if not given.
    seconds, compile_seconds : float
        Time that the fit took without compiling, and time that compiling took; NaN if unknown.
    seed : int
        Seed of draws that are given no seed of their own.
    again : function, optional
        Function that goes on with a fit, see `refine`.
    solution : Solution, SparseSolution, ActiveSolution or BatchSolution, optional
        The approximate posterior at the maximum, where that is known.
    why_maximum : str
        Why hyperparameters stay at their maximum, if they do, in words.

    Attributes
    ----------
    log_posterior, trace, seconds, compile_seconds
        Values as given. `compile_seconds` is the time that it took to make the graph of the log posterior, with what
        numba compiled meanwhile. It is long in the first fit on a machine, and short later. Other backends' compiling
        counts as part of `seconds`.

    Examples
    --------
    >>> with model:
    ...     ep = pm.fit(method="nested_ep")
    >>> ep.log_evidence, ep.hyperparameters
    >>> ep.predict(gp, Xnew)["p"]  # class probabilities at new inputs
    >>> ep.sample(100)  # draws, as from pm.sample
    """

    _group_class = GPGroup

    predict = prediction.predict
    loo = cross_validation.loo
    importance = exactness.importance
    corrected_evidence = exactness.corrected_evidence
    contrast = effects.contrast
    effects = effects.effects
    summary = summary.summary
    sensitivity = sensitivity.sensitivity
    sample = sample.sample
    draw = draws.draw
    draw_at_maximum = draws.draw_at_maximum
    to_datatree = saving.to_datatree

    # The face of PyMC's approximations.

    @property
    def sample_dict_fn(self) -> Any:
        """Function of (draws, random_seed) that draws values of the model's value variables."""

        def sample(draws: int = 100, *, random_seed: Any = None) -> dict[str, Array]:
            values = self.draw(draws, np.random.default_rng(random_seed))
            return {name: values[name] for name in self.groups[0].ordering}

        return sample

    @cached_property
    def groups(self) -> list[GPGroup]:
        """The one group of all free variables, made when it is first asked for."""
        group = GPGroup(None, model=self.model, random_seed=self.seed)
        group.__init_group__(self._free)
        group.include_transformed = self.include_transformed
        group.hyper = self.hyper_posterior
        return [group]

    @cached_property
    def _scale_cost_to_minibatch(self) -> Any:
        return pytensor.shared(np.int8(1))

    if not TYPE_CHECKING:  # a type checker would find any attribute

        def __getattr__(self, name: str) -> Any:
            """Return attributes of PyMC's groups; called where there is no such attribute."""
            if hasattr(type(self), name):  # it has one, which is not to be had of this fit: say so again
                return object.__getattribute__(self, name)
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            try:
                return getattr(self.groups[0], name)
            except AttributeError:
                absent = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(absent, name=name, obj=self) from None
