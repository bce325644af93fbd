"""Estimates of the evidence by annealing, from a normalised Gaussian to the posterior.

The path of densities is p_t(f) ∝ base(f) ratio(f)^t with temperatures t from 0 to 1. The base is a Gaussian, and
base(f) ratio(f) = p(y | f) p(f) / exp(log_normaliser). So the evidence is exp(log_normaliser) times the mean of the
ratio under the base. Independent runs follow this path by elliptical slice sampling and record u = log ratio. Two
estimates are computed from the same runs:

- annealed importance sampling (Neal 2001): the mean of exp(Σ_j (t_{j+1} − t_j) u_j) is unbiased for the mean of the
  ratio, even if the transitions mix badly;

- thermodynamic integration: d/dt of the log normaliser of p_t is the expectation of u at t. The trapezoid rule is
corrected by the second derivative, the variance of u (Friel, Hurn and Wyse 2014). This estimate does not depend on
large weights. It is biased by the error of the rule, and if transitions lag behind the temperature.

Nickisch and Rasmussen (2008, section 10) compute the first estimate, from the prior and from an approximation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pymc.progress_bar import CustomProgress, default_progress_theme
from pymc.pytensorf import get_symbolic_rv_shapes
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from pymc_gpep.approximations import METHODS, approximator
from pymc_gpep.argument_types import check_name, did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.gaussians.ellipse import elliptical_slice
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.gaussians.whitening import Sampled, sampled_posterior
from pymc_gpep.graphs.interpreted import evaluate, initial_point
from pymc_gpep.hyper.weights import Estimate, importance_estimate
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.prior_moments.prior_functions import observed
from pymc_gpep.processes.processes import processes_or
from pymc_gpep.reading import GPClassifier, StructureError, read_classifier
from pymc_gpep.reading.classifier import ReadModel
from pymc_gpep.solvers.problem import Prior
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn


class Base(NamedTuple):
    """Gaussian at the start of annealing: the normalised product of the prior and of sites."""

    mean: Array
    """Mean of the latent values, (c, n), or of the standard normals that determine them, (1, q)."""
    draw: Callable[[np.random.Generator, int], Array]
    """Function of a generator and a number of draws. It returns draws minus the mean."""
    log_sites: Callable[[Array], float]
    """Log sites as a function of values minus the mean: log density of the base over the prior, up to a constant."""
    log_normaliser: float
    """Log integral of the prior times the sites."""


def prior_base(prior: Prior) -> Base:
    """Return the prior as the Gaussian at the start of annealing."""
    return Base(prior.mean, lambda rng, count: prior.draw(rng, count) - prior.mean, lambda x: 0.0, 0.0)


def posterior_base(posterior: Posterior, prior: Sampled | None = None) -> Base:
    """Return an approximate posterior as the Gaussian at the start of annealing. It need not have converged.

    Sites are divided by their values at the mean. Otherwise log sites and log normaliser would be large and cancel.

    Parameters
    ----------
    posterior : Posterior
        Posterior of latent values.
    prior : DensePrior or NormalsPrior, optional
        Prior of the sampled variables, if they are not latent values.
    """
    mean, draw, values = sampled_posterior(posterior, prior)
    return Base(
        mean=mean,
        draw=draw,
        log_sites=lambda x: float(posterior.relative_site_log_density(values(x))),
        log_normaliser=posterior.relative_log_normaliser,
    )


def anneal(
    base: Base,
    log_likelihood: Callable[[Array], float],
    temperatures: Array,
    runs: int,
    sweeps: int,
    rng: np.random.Generator,
    advance: Callable[[], None] = lambda: None,
) -> tuple[Array, int]:
    """Run elliptical slice sampling along the path of temperatures.

    Parameters
    ----------
    base : Base
    log_likelihood : callable
        Function that computes the log likelihood of latent values (c, n).
    temperatures : array (T,)
        Temperatures from 0 to 1, increasing.
    runs : int
        Number of independent runs.
    sweeps : int
        Number of updates of each run at each temperature.
    rng : Generator
    advance : callable
        Function that is called after all runs have finished a temperature.

    Returns
    -------
    u : array (T, runs)
        Log ratio of each run at the end of each temperature; −inf if the likelihood is 0 or undefined.
    evaluations : int
        Number of evaluations of the likelihood.
    """

    def log_ratio(x: Array) -> float:
        value = log_likelihood(base.mean + x) - base.log_sites(x)
        return -np.inf if np.isnan(value) else value

    x = base.draw(rng, runs)
    u = np.empty((len(temperatures), runs))
    u[0] = [log_ratio(own) for own in x]
    evaluations = runs
    advance()
    for j, temperature in enumerate(temperatures[1:], start=1):

        def tempered(x: Array, temperature: float = temperature) -> float:
            return temperature * log_ratio(x)

        values = temperature * u[j - 1]
        for _ in range(sweeps):
            directions = base.draw(rng, runs)
            for run in range(runs):
                x[run], values[run], count = elliptical_slice(x[run], directions[run], tempered, values[run], rng)
                evaluations += count
        u[j] = values / temperature
        advance()
    return u, evaluations


def importance_weights(u: Array, temperatures: Array) -> Array:
    """Return log importance weights (runs,): sums of log ratios u times steps to the next temperature."""
    weights: Array = np.diff(temperatures) @ u[:-1]
    return weights


def thermodynamic_estimate(u: Array, temperatures: Array) -> Estimate:
    """Return the thermodynamic estimate ∫ E_t[u] dt of a log mean ratio, from log ratios u (T, runs).

    The integral is Σ h (E + E') / 2 − h² (V' − V) / 12 over steps h, by the corrected trapezoid rule. E and V are mean
    and variance of u over runs. The standard error is by the delta method. It is NaN if a u is infinite.
    """
    if not np.isfinite(u).all():
        return Estimate(np.nan, np.nan)
    runs = u.shape[1]
    steps = np.diff(temperatures)
    first, second = np.zeros((2, len(temperatures)))
    first[:-1] += 0.5 * steps
    first[1:] += 0.5 * steps
    second[:-1] += steps**2 / 12.0
    second[1:] -= steps**2 / 12.0
    squares = (u - u.mean(axis=1, keepdims=True)) ** 2 * (runs / (runs - 1))
    by_run = first @ u + second @ squares
    return Estimate(float(by_run.mean()), float(by_run.std(ddof=1) / np.sqrt(runs)))


_FEW = 5.0  # With a smaller effective number of runs, the estimate and its error are meaningless.
_APART = 4.0  # A larger difference of the two estimates, in standard errors, counts as a contradiction.


@dataclass(frozen=True, eq=False, repr=False)
class AnnealedEvidence:
    """Two estimates of the log evidence from the same annealing runs.

    Attributes
    ----------
    log_evidence : float
        Estimate by annealed importance sampling.
    standard_error : float
        Standard error of `log_evidence`, on the log scale, by the delta method.
    thermodynamic : float
        Estimate by thermodynamic integration; NaN if the likelihood of a draw was 0.
    thermodynamic_error : float
        Standard error of `thermodynamic`, without the error of the integration rule.
    effective_runs : float
        Effective number of runs, (Σw)² / Σw² for weights w.
    log_weights : array (runs,)
        Log weight of each run, including the normaliser of the start. The log of the mean weight is `log_evidence`.
    temperatures : array (T,)
        Temperatures from 0 (start) to 1 (posterior).
    start : str
        "prior", or the approximation from which the runs started.
    evaluations : int
        Number of evaluations of the likelihood.

    Examples
    --------
    >>> found = gpep.diagnostics.annealed_evidence(
    ...     model, ep.hyperparameters, start="nested_ep", temperatures=20, runs=20, random_seed=1
    ... )
    >>> found.log_evidence, found.standard_error
    """

    log_evidence: float
    standard_error: float
    thermodynamic: float
    thermodynamic_error: float
    effective_runs: float
    log_weights: Array
    temperatures: Array
    start: str
    evaluations: int

    def __repr__(self) -> str:
        """Return both estimates with their errors and settings."""
        return (
            f"AnnealedEvidence(log_evidence={self.log_evidence:.4f} ± {self.standard_error:.4f}, "
            f"thermodynamic={self.thermodynamic:.4f} ± {self.thermodynamic_error:.4f}, "
            f"{self.effective_runs:.1f} effective of {len(self.log_weights)} runs, "
            f"{len(self.temperatures)} temperatures from start={self.start!r})"
        )


def annealed_evidence(
    model: pm.Model,
    point: Mapping[str, Any] | None = None,
    *,
    start: str = "prior",
    temperatures: int | ArrayLike | None = None,
    runs: int = 100,
    sweeps: int = 3,
    likelihood: str | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    progressbar_theme: Any = default_progress_theme,
    compile_kwargs: dict[str, Any] | None = None,
) -> AnnealedEvidence:
    """Estimate log p(y | θ), with latent values integrated out, by annealing.

    Independent runs go from the prior of the latent values, or from an approximate posterior, to the posterior. They
    yield estimates by annealed importance sampling (Neal 2001) and by thermodynamic integration (Nickisch and Rasmussen
    2008, section 10). Both estimates are exact in the limit of many runs and temperatures, for any start. Their
    agreement indicates, like a large `effective_runs`, that the runs follow the temperatures.

    Parameters
    ----------
    model : pm.Model
        Model with `pm.gp.Latent` priors and any likelihood of their latent values, or with a sum of effects.
    point : mapping, optional
        Values of hyperparameters on their natural scale, by name, such as `fit.hyperparameters`. Other hyperparameters
        have the values of the model's initial point.
    start : str
        "prior", or a method of `pm.fit` that supports the likelihood, such as "nested_ep". An approximation needs far
        fewer temperatures. The prior makes the estimate independent of approximations.
    temperatures : int or array, optional
        Number of temperatures, or increasing temperatures from 0 to 1. For a number T, temperatures are (j / (T − 1))⁴
        if the start is the prior, and equidistant if it is an approximation. The default is 100 for the prior, else 10.
    runs : int
        Number of independent runs.
    sweeps : int
        Number of elliptical slice updates of each run at each temperature.
    likelihood : str, optional
        Name of the likelihood, if the start is an approximation and the model has several likelihoods.
    random_seed : int, Generator or None
    progressbar : bool
    progressbar_theme : rich.theme.Theme
    compile_kwargs : dict, optional
        Arguments of PyTensor's compilation.

    Returns
    -------
    AnnealedEvidence

    Raises
    ------
    StructureError
        If the model has neither processes nor effects, or if the approximation does not support it.
    ValueError
        If an option is invalid, or if the prior of the latent values does not exist at these hyperparameters.

    Warns
    -----
    UserWarning
        If a few runs have nearly all the weight, or if the estimates differ by several standard errors.

    Notes
    -----
    The best start has a Gaussian close to the posterior, and not narrower than it. Good starts are "nested_ep" and
    "qep". The start "laplace" needs more temperatures, and "iep" can be worse than the prior.

    Examples
    --------
    >>> found = gpep.diagnostics.annealed_evidence(
    ...     model, ep.hyperparameters, start="nested_ep", temperatures=20, runs=20, random_seed=1
    ... )
    >>> found.log_evidence, found.standard_error
    """
    check_name("start", start, ["prior", *METHODS])
    if runs < 2:
        raise ValueError(f"runs must be at least 2, so that a standard error exists, but is {runs!r}.")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1, but is {sweeps!r}.")
    path = _temperatures(temperatures, start)
    processes = _read(model, start, likelihood)
    latent_model = LatentModel(processes, compile_kwargs)
    at = _point(processes.prior, dict(point or {}))
    with one_blas_thread():
        prior = _prior(latent_model, at)
        base = _base(latent_model, at, prior, start)
        function = latent_model.likelihood(slope=False)
        columns, console = (*Progress.get_default_columns(), TimeElapsedColumn()), Console(theme=progressbar_theme)
        with CustomProgress(*columns, console=console, disable=not progressbar) as progress:
            task = progress.add_task(f"Annealing {runs} runs", total=len(path))
            u, evaluations = anneal(
                base, lambda x: function(at, x, prior)[0], path, runs, sweeps, np.random.default_rng(random_seed),
                lambda: progress.update(task, advance=1),
            )  # fmt: skip
    log_weights = base.log_normaliser + importance_weights(u, path)
    estimate, effective = importance_estimate(log_weights)
    thermodynamic = thermodynamic_estimate(u, path)
    result = AnnealedEvidence(
        log_evidence=estimate.value,
        standard_error=estimate.error,
        thermodynamic=base.log_normaliser + thermodynamic.value,
        thermodynamic_error=thermodynamic.error,
        effective_runs=effective,
        log_weights=log_weights,
        temperatures=path,
        start=start,
        evaluations=evaluations,
    )
    _warn_unless_reliable(result)
    return result


def _warn_unless_reliable(result: AnnealedEvidence) -> None:
    """Warn if the effective number of runs, or the difference of the two estimates, shows an unreliable result."""
    found = None
    apart = abs(result.log_evidence - result.thermodynamic)
    if result.effective_runs < min(_FEW, len(result.log_weights) / 2):
        found = "a few runs have nearly all the weight"
    elif apart > _APART * np.hypot(result.standard_error, result.thermodynamic_error):
        found = "its two estimates differ by far more than their standard errors, since runs lag behind temperatures"
    if found:
        other = "" if result.start == "prior" else f", or another start, since {result.start!r} may be too narrow"
        warn(f"{result} is not reliable: {found}. Use more temperatures or sweeps{other}.")


def _temperatures(given: int | ArrayLike | None, start: str) -> Array:
    """Return the temperatures of the path."""
    if given is None:
        given = 100 if start == "prior" else 10
    if np.ndim(given) == 0:
        number = int(np.asarray(given))
        if number != given or number < 2:
            raise ValueError(f"temperatures must be at least 2 (start and posterior), but is {given!r}.")
        even = np.linspace(0.0, 1.0, number)
        # The log ratio changes most near the prior. Steps are smaller there.
        return even**4 if start == "prior" else even
    path = np.asarray(given, dtype=np.float64)
    if path.ndim != 1 or len(path) < 2 or path[0] != 0 or path[-1] != 1 or not (np.diff(path) > 0).all():
        raise ValueError(f"temperatures must increase from 0 to 1, but are {np.array2string(path, threshold=8)}.")
    return path


def _point(processes: LatentPrior, given: dict[str, Any]) -> PointType:
    """Return the initial point of the model, with hyperparameters set to the values `given` by name."""
    model = processes.model
    by_name = {rv.name: rv for rv in processes.hyperparameters}
    if unknown := sorted(map(str, set(given) - set(by_name))):
        known = ", ".join(by_name) or "none"
        raise ValueError(
            f"point names {', '.join(unknown)}, but the hyperparameters of the model are: {known}."
            f"{did_you_mean(unknown, by_name)}"
        )
    shapes = evaluate(get_symbolic_rv_shapes([by_name[name] for name in given]))
    values = {}
    for (name, value), shape in zip(given.items(), shapes, strict=True):
        try:
            values[name] = np.broadcast_to(np.asarray(value, dtype=by_name[name].dtype), tuple(shape)).copy()
        except ValueError:
            raise ValueError(
                f"point[{name!r}] must have shape {tuple(map(int, shape))}, but has shape {np.shape(value)}."
            ) from None
    with np.errstate(all="ignore"):
        point = initial_point(model, values)
    for name, rv in by_name.items():
        if not np.isfinite(point[model.rvs_to_values[rv].name]).all():
            raise ValueError(f"point has {name!r} at {given.get(name)}, which is outside its support.")
    return point


def _read(model: pm.Model, start: str, likelihood: str | None) -> ReadModel:
    """Read the latent functions of a model. If the start is the prior, any likelihood is supported."""
    try:
        return read_classifier(model, likelihood)
    except StructureError as error:
        if start == "prior" and likelihood is None:
            return processes_or(error, model)
        raise


def _prior(latent_model: LatentModel, point: PointType) -> Sampled:
    """Return the prior of the sampled variables; raise an error if it does not exist."""
    prior = latent_model.prior_function()(point)
    at = {v.name: point[v.name].tolist() for v in latent_model.value_vars}
    nowhere = f"The prior of the latent values is undefined at the unconstrained hyperparameters {at}"
    if not np.isfinite(prior.function_mean).all():
        raise ValueError(f"{nowhere}: the prior mean is not finite. Check the mean function and these values.")
    try:
        prior.check()
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(f"{nowhere}: {error}") from None
    return prior


def _base(latent_model: LatentModel, point: PointType, prior: Sampled, start: str) -> Base:
    """Return the Gaussian from which the runs start."""
    if not isinstance(latent_model.read, GPClassifier) or start == "prior":
        return prior_base(prior)
    classifier = latent_model.read
    labels, likelihood = observed(classifier, latent_model.values.data)(point)
    method = approximator(start, likelihood, {})
    array, prior_type = prior.for_solver(method.takes)
    solution = method.solve(array, prior.function_mean, labels, likelihood=likelihood, prior_type=prior_type)
    base = posterior_base(solution.posterior, prior) if np.isfinite(solution.mean).all() else None
    if base is None or not np.isfinite(base.log_normaliser):
        raise ValueError(f"start={start!r} has no posterior: {solution.convergence}. Use start='prior'.")
    return base
