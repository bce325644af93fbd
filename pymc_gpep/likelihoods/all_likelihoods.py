"""The likelihoods that models may have, in the order in which they are looked for."""

from pymc_gpep.likelihoods.complementary_log_log.likelihood import ComplementaryLogLogLikelihood
from pymc_gpep.likelihoods.counts.binomial import BinomialLikelihood
from pymc_gpep.likelihoods.counts.negative_binomial import NegativeBinomialLikelihood
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.logit.likelihood import LogitLikelihood
from pymc_gpep.likelihoods.multinomial_probit.likelihood import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.multinomial_probit.noisy_likelihood import NoisyMultinomialProbitLikelihood
from pymc_gpep.likelihoods.numbers.laplace import AsymmetricLaplaceLikelihood
from pymc_gpep.likelihoods.numbers.location_scale import LogisticLikelihood, LogNormalLikelihood, NormalLikelihood
from pymc_gpep.likelihoods.ordered.likelihood import OrderedLogitLikelihood, OrderedProbitLikelihood
from pymc_gpep.likelihoods.poisson.likelihood import PoissonLikelihood
from pymc_gpep.likelihoods.probit.likelihood import ProbitLikelihood
from pymc_gpep.likelihoods.robust_max.likelihood import RobustMaxLikelihood
from pymc_gpep.likelihoods.softmax.likelihood import SoftmaxLikelihood
from pymc_gpep.likelihoods.times.gamma import GammaLikelihood
from pymc_gpep.likelihoods.times.weibull import WeibullLikelihood
from pymc_gpep.likelihoods.votes.likelihood import VotesLikelihood

LIKELIHOODS: tuple[Likelihood, ...] = (
    MultinomialProbitLikelihood(),
    SoftmaxLikelihood(),
    VotesLikelihood(),
    ProbitLikelihood(),
    LogitLikelihood(),
    ComplementaryLogLogLikelihood(),
    OrderedProbitLikelihood(),
    OrderedLogitLikelihood(),
    PoissonLikelihood(),
    BinomialLikelihood(),
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
"""All there are; a new one is a line here."""
