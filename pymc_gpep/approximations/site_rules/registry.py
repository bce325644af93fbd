"""The rules by name, and which of them fits a likelihood."""

from pymc_gpep.approximations.site_rules.contract import SiteRule
from pymc_gpep.approximations.site_rules.nested import Nested
from pymc_gpep.approximations.site_rules.one_function import OneFunctionSite
from pymc_gpep.approximations.site_rules.pairs import Pairs
from pymc_gpep.approximations.site_rules.whole_point import WholePoint
from pymc_gpep.likelihoods.contract import Likelihood

__all__ = ["RULES", "RULE_NAMES", "site_rule"]

RULES: tuple[type[SiteRule], ...] = (WholePoint, OneFunctionSite, Nested, Pairs)
"""All there are; those of one name are for different likelihoods."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def site_rule(name: str, likelihood: Likelihood) -> SiteRule:
    """The rule that a name stands for with a likelihood.

    Raises
    ------
    ValueError
        If there is none.
    """
    fitting = {rule.name: rule for rule in RULES if rule.fits(likelihood)}
    if name not in fitting:
        known = f"has {' and '.join(map(repr, fitting))}" if fitting else "has none"
        raise ValueError(f"sites is {name!r}, but of rules for inducing inputs a {likelihood.name} likelihood {known}.")
    return fitting[name]()
