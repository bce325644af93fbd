"""The ways of giving rows their sites, by name."""

from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.selection.average_log_density import has_averages
from pymc_gpep.selection.site_rules.contract import SiteRule
from pymc_gpep.selection.site_rules.inner_ep import InnerEP
from pymc_gpep.selection.site_rules.moments import OneFunction, PointMoments
from pymc_gpep.selection.site_rules.projection import Projection
from pymc_gpep.selection.site_rules.utilities import Utilities

__all__ = ["RULES", "RULE_NAMES", "rows_can_be_chosen", "selection_rule"]

RULES: tuple[SiteRule, ...] = (InnerEP(), Projection(), PointMoments(), OneFunction(), Utilities())
"""All there are; those of one name are for different likelihoods, and the first that fits is the default."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def rows_can_be_chosen(likelihood: Likelihood) -> bool:
    """Whether rows of a likelihood have sites by which they can be chosen, and all rows a bound."""
    return has_averages(likelihood) and any(rule.fits(likelihood) for rule in RULES)


def selection_rule(name: str | None, likelihood: Likelihood) -> SiteRule:
    """The rule of a name for a likelihood, the first that fits if there is no name.

    Raises
    ------
    ValueError
        If there is none.
    """
    fitting = [rule for rule in RULES if rule.fits(likelihood)]
    for rule in fitting:
        if name in (None, rule.name):
            return rule
    known = " or ".join(f"sites={rule.name!r}" for rule in fitting)
    what = "sites" if name is None else f"{name!r} sites"
    instead = f"there is {known}" if known else f"take another method, such as {likelihood.method!r}"
    raise ValueError(f"Rows of a {likelihood.name} likelihood have no {what} by which they could be chosen; {instead}.")
