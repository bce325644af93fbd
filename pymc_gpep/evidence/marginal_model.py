"""`gpep.marginalize`: a model with the latent values integrated out."""

from collections.abc import Container, Sequence
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_gpep.approximations import Approximator, approximator
from pymc_gpep.approximations.methods import takes_bounds
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.evidence.memory_check import check_memory
from pymc_gpep.graphs.interpreted import initial_point
from pymc_gpep.prior_moments.prior_functions import by_groups, check_moments, prior_moments, prior_type_of
from pymc_gpep.prior_moments.proper_posteriors import check_proper
from pymc_gpep.reading import GPClassifier, read_classifier


def add_others(made: pm.Model, model: pm.Model, left_out: Container[Variable]) -> None:
    """Add coords, data and variables of `model`, except `left_out`, to the empty model `made`, which shares them."""
    made.add_coords(dict(model.coords), lengths=dict(model.dim_lengths))
    for name, variable in model.named_vars.items():
        if variable in left_out:
            continue
        if variable in model.basic_RVs:
            (made.free_RVs if variable in model.free_RVs else made.observed_RVs).append(variable)
            made.create_value_var(
                variable,
                transform=model.rvs_to_transforms[variable],
                default_transform=None,
                value_var=model.rvs_to_values[variable],
            )
            made.set_initval(variable, model.rvs_to_initial_values.get(variable))
        for own, theirs in (
            (made.deterministics, model.deterministics),
            (made.potentials, model.potentials),
            (made.data_vars, model.data_vars),
        ):
            if variable in theirs:
                own.append(variable)
        made.add_named_variable(variable, dims=model.named_vars_to_dims.get(name))


class MarginalModel(pm.Model):
    """A classifier whose latent values are integrated out; see `marginalize` for its variables.

    Parameters
    ----------
    classifier : GPClassifier
        Classifier that was read from the original model.
    approximator : Approximator
        Approximation that integrates the latent values out.
    warm : bool
        Whether evaluations start from recent evaluations at near points.

    Examples
    --------
    >>> marginal = gpep.marginalize(model)
    >>> marginal.free_RVs  # only hyperparameters
    """

    def __init__(self, classifier: GPClassifier, approximator: Approximator, warm: bool = False) -> None:
        model = classifier.model
        super().__init__(check_bounds=model.check_bounds, model=None)
        self.classifier = classifier
        self.approximator = approximator
        integrated = {*classifier.observed, *classifier.prior.integrated, *classifier.unobserved}
        dependent = [v for v in model.deterministics if not integrated.isdisjoint(ancestors([v]))]
        # Stored, since later calls of `gp.conditional` add variables to the model that were not sampled.
        self.dependent = tuple(dependent)
        add_others(self, model, integrated.union(dependent))
        # The length of the start is a constant, since JAX does not support arrays with computed shapes.
        prior_type = prior_type_of(classifier, approximator)
        labels, parameters, likelihood = classifier.at_points
        start = approximator.cold(classifier.n_functions, classifier.prior.n_points, prior_type)
        k = classifier.prior.arrays[prior_type]()
        op = Evidence(approximator, likelihood, remembers=warm, form=prior_type)
        evidence = op(k, classifier.prior.mean(), labels, start, parameters=parameters)
        if (supported := classifier.prior.supported()) is not None:
            evidence = pt.switch(supported, evidence, -np.inf)
        pm.Potential(f"{classifier.response}_evidence", evidence, model=self)


def marginalize(
    model: pm.Model,
    method: str | None = None,
    likelihood: str | None = None,
    *,
    warm: bool = False,
    hyperparameters: str | Sequence[str] | None = None,
    **options: Any,
) -> MarginalModel:
    """Integrate the latent values of a classifier out, so that its hyperparameters can be sampled alone.

    In the new model a Potential, the approximate log evidence, replaces the latent values and the likelihood. Its name
    is the name of the likelihood followed by `_evidence`. Deterministics that depend on the latent values are left out.
    All other variables, Potentials, data, dims and coords are shared with `model`, so `pm.set_data` changes both
    models.

    If the approximation does not converge, the log density is NaN, which NUTS counts as a divergence.

    Parameters
    ----------
    model : pm.Model
        A model that `pm.fit` fits.
    method : str, optional
        Name of the approximation, as for `pm.fit`. The default is nested EP for a multinomial probit, Laplace's
        approximation for a softmax, and EP for a likelihood of one latent function.
    likelihood : str, optional
        Name of the observed variable whose latent values are integrated out. Other observed variables stay in the
        model.
    warm : bool
        Whether an evaluation starts from recent evaluations at near points, of the same thread and process. This takes
        less than half the sweeps. The value then depends on earlier evaluations, within the tolerance. So chains with
        equal seeds differ after some draws. The default is False.
    hyperparameters : str or sequence of str, optional
        Names of Gaussian variables that are not integrated out.
    **options
        Options of the approximation; `pymc_gpep.methods` lists the options of each method.

    Returns
    -------
    MarginalModel
        Model for `pm.sample`, whose draws `recover_latent` completes by latent values.

    Raises
    ------
    StructureError
        If the model is not a Gaussian process classifier, or if a term other than the likelihood depends on its latent
        values.
    ValueError
        If the method does not exist, or does not support the likelihood. If the prior covariance or mean at the initial
        point is invalid, for example because of missing inputs.
    TypeError
        If an option is not an option of the approximation.

    Examples
    --------
    >>> marginal = gpep.marginalize(model)
    >>> idata = pm.sample(model=marginal)
    >>> idata = gpep.recover_latent(idata, marginal)
    """
    read = partial(read_classifier, model, likelihood, hyperparameters, starts=True, priors=True)
    read = partial(read, bounds=takes_bounds(method))
    classifier = read(means=True)
    solver = approximator(method, classifier.likelihood_model, options, ", besides method, likelihood and warm")
    if solver.inverts_prior and not classifier.prior.singular:
        classifier = read()
    if not model.data_vars:  # With `pm.Data`, new data could change the groups of equal rows.
        classifier = by_groups(classifier, solver)
    prior_type = prior_type_of(classifier, solver)
    check_memory(classifier, f"marginalize by {solver.name!r}", learned=True, prior_type=prior_type)
    moments = prior_moments(classifier, array=classifier.prior.arrays[prior_type]())
    begin = initial_point(classifier.model)
    check_moments(moments(begin), prior_type)
    check_proper(classifier, prior_type, moments, begin)
    return MarginalModel(classifier, solver, warm)
