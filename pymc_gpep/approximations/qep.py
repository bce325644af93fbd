"""Expectation propagation by quadrature (Riihimäki, Jylänki and Vehtari 2013, section 3.3)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.solution import Array
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.qep import qep
from pymc_gpep.posterior import CoupledPosterior, Posterior

__all__ = ["QEP", "Rule", "quadrature_rule"]

Rule = Literal["truncated", "gauss_hermite"]
"""What a quadrature rule stands on: the truncated normal behind the probit factors, or the cavity."""

_MOST_NODES = 10**6  # for each point and sweep


def quadrature_rule(rule: Rule, order: int) -> Array:
    """Nodes, as the kernel wants them, and log weights of a rule for one dimension, (2, order).

    See `pymc_gpep.kernels.truncated_quadrature` and `pymc_gpep.kernels.product_quadrature`.
    """
    if rule == "gauss_hermite":
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        return np.array([nodes, np.log(weights / weights.sum())])
    nodes, weights = np.polynomial.legendre.leggauss(order)
    s = (1.0 + nodes) / 2
    return np.log([s**3 * (4.0 - 3.0 * s), 6.0 * s**2 * (1.0 - s) * weights])


@dataclass(frozen=True)
class QEP(AcceleratedEP):
    """EP with between-class coupling like `NestedEP`, but tilted moments by quadrature.

    The sites match the tilted means, and of the tilted covariances what sites with nested EP's structure can: the
    diagonal of the precision that they add. So the fixed point is not a stationary point of the evidence, and the
    derivatives that are reported, which take the sites as constants, are not quite those of the evidence.

    Parameters
    ----------
    tolerance, max_iterations, memory, mixing, damping, ladder
        As in `AcceleratedEP`.
    order : int
        Nodes for each dimension of the quadrature.
    rule : {"truncated", "gauss_hermite"}
        "truncated" integrates over c − 2 dimensions of the truncated normal distribution that the probit factors make
        of the utilities, and is as accurate for large variances as for small ones. "gauss_hermite" is the product rule
        in c − 1 dimensions of the paper.
    """

    order: int = 10
    rule: Rule = "truncated"

    name: ClassVar[str] = "qep"
    entry: ClassVar[Entry] = qep
    posterior: ClassVar[type[Posterior]] = CoupledPosterior

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(map(repr, get_args(Rule)))}, but is {self.rule!r}.")

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        rule = quadrature_rule(self.rule, self.order)
        return *super().options, float(self.rule == "gauss_hermite"), float(self.order), *map(float, rule.ravel())

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites."""
        return 2 * n * (c - 1)

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions π.

        Raises
        ------
        ValueError
            If there are too many classes for a quadrature.
        """
        dimensions = max(c - 1 if self.rule == "gauss_hermite" else c - 2, 0)
        if self.order**dimensions > _MOST_NODES:
            raise ValueError(
                f"{self.name} with {c} classes would take {self.order}^{dimensions} quadrature nodes for each point in "
                f"each iteration, more than {_MOST_NODES}: lower order, or use nested_ep, which needs no quadrature."
            )
        return super().precision_shape(c, n)
