"""Table of the likelihoods, in the order in which they are compared with a model."""

from pymc_gpep.likelihoods.bernoulli import ComplementaryLogLogLikelihood, LogitLikelihood, ProbitLikelihood
from pymc_gpep.likelihoods.counts import (
    BinomialLikelihood,
    ComplementaryLogLogTrialsLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    ProbitTrialsLikelihood,
)
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.ordered import (
    OrderedLogitLikelihood,
    OrderedProbitLikelihood,
    StoppingLogitLikelihood,
    StoppingProbitLikelihood,
)
from pymc_gpep.likelihoods.positive import GammaLikelihood, WeibullLikelihood
from pymc_gpep.likelihoods.real import (
    AsymmetricLaplaceLikelihood,
    LogisticLikelihood,
    LogNormalLikelihood,
    NormalLikelihood,
)
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood, VotesLikelihood
from pymc_gpep.registry import Registry

_OWN = (
    MultinomialProbitLikelihood(),
    SoftmaxLikelihood(),
    VotesLikelihood(),
    ProbitLikelihood(),
    LogitLikelihood(),
    ComplementaryLogLogLikelihood(),
    OrderedProbitLikelihood(),
    OrderedLogitLikelihood(),
    StoppingProbitLikelihood(),
    StoppingLogitLikelihood(),
    PoissonLikelihood(),
    BinomialLikelihood(),
    ProbitTrialsLikelihood(),
    ComplementaryLogLogTrialsLikelihood(),
    NegativeBinomialLikelihood(),
    NormalLikelihood(),
    LogNormalLikelihood(),
    LogisticLikelihood(),
    AsymmetricLaplaceLikelihood(),
    GammaLikelihood(),
    WeibullLikelihood(),
    NoisyMultinomialProbitLikelihood(),
    RobustMaxLikelihood(),
)

LIKELIHOODS: Registry[Likelihood] = Registry("likelihood", _OWN, of=Likelihood, classes=False)
"""All likelihoods. Registered likelihoods come last."""
