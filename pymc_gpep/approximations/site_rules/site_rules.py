"""The rules by name, and which of them fits a likelihood."""

from pymc_gpep.approximations.site_rules.pairs import LatentPairs, Pairs
from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.approximations.site_rules.whole_point import Nested, OneFunctionSite, WholePoint
from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.likelihoods.likelihood import Likelihood

RULES: tuple[type[SiteRule], ...] = (Nested, WholePoint, OneFunctionSite, Pairs, LatentPairs)
"""All there are, the first choice first; those of one name are for different likelihoods."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def site_rule(name: str, likelihood: Likelihood) -> SiteRule:
    """The rule that a name stands for with a likelihood.

    Raises
    ------
    ValueError
        If the likelihood has no rule of this name.
    """
    fitting = _fitting(likelihood)
    if name not in fitting:
        known = " and ".join(map(repr, fitting))
        raise ValueError(
            f"sites is {name!r}, but with inducing inputs EP of a {likelihood.name} likelihood has {known}."
            f"{did_you_mean([name], fitting)}"
        )
    return fitting[name]()


def chosen_rule(likelihood: Likelihood, c: int, size: int) -> str:
    """The name of the rule for c functions with so many inducing inputs each, if none is given.

    Raises
    ------
    ValueError
        If the likelihood fits no rule.
    """
    fitting = _fitting(likelihood)
    return next((name for name, rule in fitting.items() if rule.suits(c, size)), next(iter(fitting)))


def _fitting(likelihood: Likelihood) -> dict[str, type[SiteRule]]:
    fitting = {rule.name: rule for rule in RULES if rule.fits(likelihood)}
    if not fitting:
        raise ValueError(
            f"EP with inducing inputs has no sites for a {likelihood.name} likelihood. Take a method of all rows, such "
            f"as {likelihood.method!r}."
        )
    return fitting
