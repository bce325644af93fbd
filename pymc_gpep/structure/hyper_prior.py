"""The log prior of the hyperparameters of a model, without a look at its latent values."""

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.classifier import GPClassifier

__all__ = ["log_prior"]


def log_prior(classifier: GPClassifier) -> TensorVariable:
    """Log priors of the hyperparameters, log Jacobians and the model's other terms, in terms of value variables.

    It is minus infinity where the density of an integrated variable is zero, as of a negative standard deviation.
    Otherwise it is what `model.logp(vars=...)` returns. That function rewrites the whole model on the way. It computes
    every matrix of the size of the data that does not depend on a hyperparameter, such as distances between inputs.
    """
    model = classifier.model
    terms = [*classifier.hyperparameters, *(rv for rv in model.observed_RVs if rv not in classifier.observed)]
    factors = transformed_conditional_logp(
        terms,
        rvs_to_values={rv: model.rvs_to_values[rv] for rv in terms},
        rvs_to_transforms={rv: model.rvs_to_transforms[rv] for rv in terms},
    )
    factors += model.replace_rvs_by_values(model.potentials)
    if (supported := classifier.supported()) is not None:
        (there,) = model.replace_rvs_by_values([supported])
        factors.append(pt.switch(there, 0.0, -np.inf))
    return pt.add(*(factor.sum() for factor in factors)) if len(factors) > 1 else pt.sum(factors[0] if factors else 0.0)
