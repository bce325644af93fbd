"""The likelihoods that models may have, in the order in which they are looked for."""

from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.logit.likelihood import LogitLikelihood
from pymc_gpep.likelihoods.multinomial_probit.likelihood import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.multinomial_probit.noisy_likelihood import NoisyMultinomialProbitLikelihood
from pymc_gpep.likelihoods.ordered.likelihood import OrderedLogitLikelihood, OrderedProbitLikelihood
from pymc_gpep.likelihoods.poisson.likelihood import PoissonLikelihood
from pymc_gpep.likelihoods.probit.likelihood import ProbitLikelihood
from pymc_gpep.likelihoods.robust_max.likelihood import RobustMaxLikelihood
from pymc_gpep.likelihoods.softmax.likelihood import SoftmaxLikelihood

__all__ = ["LIKELIHOODS"]

LIKELIHOODS: tuple[Likelihood, ...] = (
    MultinomialProbitLikelihood(),
    SoftmaxLikelihood(),
    ProbitLikelihood(),
    LogitLikelihood(),
    OrderedProbitLikelihood(),
    OrderedLogitLikelihood(),
    PoissonLikelihood(),
    NoisyMultinomialProbitLikelihood(),
    RobustMaxLikelihood(),
)
"""All there are; a new one is a line here."""
