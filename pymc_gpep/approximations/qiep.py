"""Class-independent expectation propagation by quadrature (Seeger, Lawrence and Herbrich 2006)."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.independent_posterior import IndependentPosterior
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.qiep import qiep
from pymc_gpep.posterior import Posterior

__all__ = ["QIEP"]


@dataclass(frozen=True)
class QIEP(AcceleratedEP):
    """EP whose posterior leaves the classes independent, with tilted moments to nearly full precision.

    The same as `IEP` but for the moments: with independent cavities all of them are integrals over one variable, the
    utility of the observed class, where the literature takes two-dimensional quadratures of a few nodes (Seeger,
    Lawrence and Herbrich 2006; Girolami and Zhong 2007). The evidence and its derivatives are then those of
    class-independent EP without a further approximation.

    Parameters
    ----------
    tolerance, max_iterations, memory, mixing, damping, ladder
        As in `AcceleratedEP`.
    """

    name: ClassVar[str] = "qiep"
    entry: ClassVar[Entry] = qiep
    posterior: ClassVar[type[Posterior]] = IndependentPosterior

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites."""
        return 2 * n * c
