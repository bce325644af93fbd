"""Base class of integrals over the hyperparameters: options, and `integrate`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.limits import check_limits
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.progress import progress_bar

_NEIGHBOURS = 64  # Number of solutions from which a start is predicted.
_TOGETHER = 16  # Number of evaluations that run in parallel.
_ROUGH = 0.25  # Standard deviation of errors of a log density above which marginals are reported as rough.
_ABOVE = 0.5  # Excess of the log posterior of a node over the maximum above which the fit reports it.


@dataclass(frozen=True)
class HyperMethod(ABC):
    """Method of an integral over the hyperparameters by weighted nodes, given the maximum.

    Raises
    ------
    ValueError
        If an option has an invalid value.
    """

    name: ClassVar[str]
    """Name of the method in `pm.fit(hyper=...)`."""
    only_for: ClassVar[tuple[type, str]] = (object, "all methods")
    """Class of the supported approximations, and its description in messages."""

    def __post_init__(self) -> None:
        check_limits(self)

    def check(self, approximator: Any, method: str) -> None:
        """Raise a ValueError if this integral does not support an approximation, the `method` of `pm.fit`."""
        if not isinstance(approximator, self.only_for[0]):
            raise ValueError(
                f"hyper={self.name!r} is only for {self.only_for[1]}, not for method={method!r} with these "
                "options. Use such a method, or hyper='importance', which supports every method."
            )

    def usable(self, nodes: Iterable[Evaluation | None]) -> list[Evaluation]:
        """Return the nodes that are not None. A node is None if the approximation failed.

        Raises
        ------
        ValueError
            If no node is left.
        """
        found = list(nodes)
        if good := [node for node in found if node is not None]:
            return good
        raise ValueError(f"hyper={self.name!r}: {failures(found)}. Use hyper='map', or other priors.")

    def posterior(
        self,
        log_posterior: LogPosterior,
        nodes: Sequence[Evaluation],
        weights: Array,
        complaints: Sequence[str],
        about: str = "",
        doubt: str = "",
        **known: Any,
    ) -> HyperPosterior:
        """Return the posterior with these nodes and weights, as converged if `complaints` are empty.

        Parameters
        ----------
        log_posterior : LogPosterior
        nodes : sequence of Evaluation
        weights : array (s,)
        complaints : sequence of str
            Texts of faults; empty texts are ignored.
        about : str
            Text before the complaints.
        doubt : str
            Reason why marginals of hyperparameters are rough. The fit still counts as converged.
        **known
            Other arguments of `HyperPosterior`.
        """
        message = "; ".join(filter(None, [about, *complaints, doubt]))
        known |= {"converged": not any(complaints), "message": message, "doubt": doubt}
        return HyperPosterior(self.name, log_posterior, nodes, weights, **known)

    @abstractmethod
    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Integrate over the hyperparameters (at least one) of a log posterior, given its maximum.

        Raises
        ------
        ValueError
            If the optimum is not a maximum, and the method needs a maximum.
        """


def evaluate_nodes(
    log_posterior: LogPosterior, thetas: Sequence[Array] | Array, near: Neighbours, progressbar: bool
) -> list[Evaluation | None]:
    """Evaluate at points (d,), with starts from `near` and earlier points; None where the approximation fails."""
    with progress_bar(progressbar, within=True) as progress:
        task = progress.add_task("Integrating over hyperparameters", total=len(thetas))
        nodes = evaluated(log_posterior.weighing(), thetas, near, lambda: progress.advance(task))
    return [node if node.usable else None for node in nodes]


def evaluated(
    log_posterior: LogPosterior,
    thetas: Sequence[Array] | Array,
    near: Neighbours,
    advance: Callable[[], object] = lambda: None,
) -> list[Evaluation]:
    """Evaluate at points (d,), with starts from `near` and earlier points; call `advance` after each point."""
    nodes: list[Evaluation] = []

    def evaluate(theta: Array) -> Evaluation:
        evaluation = log_posterior(theta, near)
        advance()
        return evaluation

    for first in range(0, len(thetas), _TOGETHER):
        found = log_posterior.each(evaluate, thetas[first : first + _TOGETHER])
        for evaluation in found:
            if evaluation.status == CONVERGED:
                near = near.joined(evaluation.theta, evaluation.start, _NEIGHBOURS)
        nodes += found
    return nodes


def failures(nodes: Iterable[Evaluation | None]) -> str:
    """Return a text with the number of failed nodes; empty without failures."""
    found = list(nodes)
    failed = found.count(None)
    return f"the approximation failed at {failed} of {len(found)} points, which were left out" if failed else ""


def rough(error: float, remedy: str = "Use hyper='adaptive'") -> str:
    """Return a text that marginals are rough if the error of the log density at draws is large; else an empty text."""
    if error < _ROUGH:
        return ""
    return (
        f"marginals of hyperparameters are rough, since the log density at their draws has an error of ±{error:.2g}. "
        f"{remedy}"
    )


def spread_of_errors(nodes: Sequence[Evaluation | None], expected: Array) -> float:
    """Return the standard deviation of errors of predicted log densities (m,) at nodes; 0 without a usable node."""
    true = np.array([np.nan if node is None else node.log_posterior for node in nodes])
    wrong = (true - expected)[np.isfinite(true)]
    return float(wrong.std()) if wrong.size else 0.0


def above_maximum(top: float, best: Evaluation) -> str:
    """Return a text if the log posterior of a node, `top`, is clearly above the maximum of the search; else ""."""
    above = top - best.log_posterior
    if above < _ABOVE:
        return ""
    return (
        f"the log posterior of a node is {above:.3g} above the maximum that the search found. Use more "
        "starts=..., and check the scales of data and priors"
    )
