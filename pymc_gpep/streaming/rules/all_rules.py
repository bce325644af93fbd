"""The rules, and which of them is meant."""

from pymc_gpep.argument_types import check_name
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.streaming.rules.one_function import (
    ExpectedLogLogit,
    ExpectedLogProbit,
    LogitNormaliser,
    ProbitNormaliser,
)
from pymc_gpep.streaming.rules.pairs import ExpectedLogPairs, PairNormalisers
from pymc_gpep.streaming.rules.rule import Rule
from pymc_gpep.streaming.rules.whole_point import ExpectedLogLabelNoise, WholePointNormaliser

RULES: tuple[type[Rule], ...] = (
    WholePointNormaliser,
    PairNormalisers,
    ProbitNormaliser,
    LogitNormaliser,
    ExpectedLogPairs,
    ExpectedLogProbit,
    ExpectedLogLogit,
    ExpectedLogLabelNoise,
)
"""All there are; a new one is a line here."""

_TITLES = {"log normaliser": "expectation propagation", "expected log": "a variational bound"}


def rule_for(functional: str, sites: str | None, likelihood: Likelihood) -> Rule:
    """Return the rule for a functional, a name of factors and a likelihood; the first that fits without a name.

    Raises
    ------
    ValueError
        If there is no such rule.
    """
    fitting = {
        rule.expresses.name: rule
        for rule in reversed(RULES)
        if rule.functional == functional and rule.fits(likelihood) and rule.expresses.fits(likelihood)
    }
    names = list(reversed(fitting))
    if not names:
        raise ValueError(
            f"Batches of a {likelihood.name} likelihood cannot be fitted by {_TITLES[functional]}. Take another "
            "method, or leave batch_size out."
        )
    if sites is not None:
        check_name("sites", sites, names, f" for batches of a {likelihood.name} likelihood by {_TITLES[functional]}")
    return fitting[sites or names[0]].of(likelihood)
