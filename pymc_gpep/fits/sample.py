"""Draws of a fit: of the variables of its model, and of the latent functions at any inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pymc.backends.base import MultiTrace
from pymc.blocking import PointType
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.checks.importance import ResampledDraws
from pymc_gpep.fits import datasets
from pymc_gpep.fits.labels import plain_dims
from pymc_gpep.fits.recorder import Recorder
from pymc_gpep.graph.memory import available_memory
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.hyper.block_functions import BlockFunctions
from pymc_gpep.hyper.latent_functions import LatentFunctions
from pymc_gpep.hyper.log_posterior import Gps
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.integrated_variables import IntegratedVariables
from pymc_gpep.structure.prior_functions import as_it_was

__all__ = ["Conditional", "draw_functions", "draw_variables", "recording", "sampled_functions", "sampled_variables"]

_NEW = "new_point"
_WITH_NORMALS = 1000  # most rows for which a factorisation of their covariance is no matter
_GIGABYTE = 1e9


def draw_variables(hyper: HyperPosterior, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draws (draws, ...) of all value variables, and of latent values that are deterministic, by name."""
    chosen = hyper.choose(draws, rng)
    values: dict[str, Array] = {}
    for s in np.unique(chosen):
        rows = np.flatnonzero(chosen == s)
        functions = hyper.log_posterior.latent(hyper.nodes[s].theta, hyper.solution(s))
        conditional = Conditional(hyper.log_posterior.space.variables, hyper.point(s), functions)
        for name, drawn in conditional.draw(rows.size, rng).items():
            values.setdefault(name, np.empty((draws, *drawn.shape[1:])))[rows] = drawn
    return values


def draw_functions(
    hyper: HyperPosterior, draws: int, rng: np.random.Generator, inputs: Array | None, gps: Gps
) -> tuple[NDArray[np.int64], Array]:
    """Draw nodes (draws,), and latent functions (draws, c, m) given these at inputs, or at the rows that were fitted.

    The same generator gives the same functions at any inputs.

    Raises
    ------
    MemoryError
        If they would not fit into memory.
    """
    chosen = hyper.choose(draws, rng)
    own = rng.spawn(len(hyper))  # what is drawn at a node does not depend on how many rows others were asked for
    found: Array = np.empty(0)
    for s in np.unique(chosen):
        which = np.flatnonzero(chosen == s)
        functions = hyper.log_posterior.latent(hyper.nodes[s].theta, hyper.solution(s), gps)
        if not found.size:
            m = functions.n_points if inputs is None else len(inputs)
            _check_memory(draws, functions.n_functions, m)
            found = np.empty((draws, functions.n_functions, m))
        for rows, drawn in functions.draw_at(own[s], which.size, inputs):
            found[which[:, None], :, np.arange(rows.start, rows.stop)] = drawn.transpose(0, 2, 1)
    return chosen, found


def _standard_normals(hyper: HyperPosterior, chosen: NDArray[np.int64], f: Array, gps: Gps) -> Array:
    """Standard normals of latent values f (s, c, n) at the model's own points, given the node of each draw; like f."""
    z = np.empty_like(f)
    for s in np.unique(chosen):
        functions = hyper.log_posterior.latent(hyper.nodes[s].theta, hyper.solution(s), gps)
        assert isinstance(functions, BlockFunctions)
        z[chosen == s] = functions.standard_normals(f[chosen == s])
    return z


def _check_memory(draws: int, functions: int, rows: int) -> None:
    needed, there = 8.0 * draws * functions * rows, available_memory()
    if needed > there:
        raise MemoryError(
            f"{draws} draws of {functions} latent function{'s' * (functions > 1)} at {rows} rows take "
            f"{needed / _GIGABYTE:.1f} GB, and {there / _GIGABYTE:.1f} GB of memory are free. Draw fewer, or some rows "
            "at a time: fit.sample(Xnew=X[:1000], random_seed=1), with the same seed for all parts."
        )


def sampled_variables(
    hyper: HyperPosterior,
    recorder: Recorder,
    draw: Callable[[int], Mapping[str, Array]],
    chains: int,
    weighted: ResampledDraws | None,
    return_inferencedata: bool,
    **kwargs: Any,
) -> Any:
    """A trace of all that a model records.

    Parameters
    ----------
    hyper : HyperPosterior
    recorder : Recorder
    draw : function of the number of a chain
        Returns draws by name of what the recorder is given.
    chains : int
    weighted : ResampledDraws or None
        Where draws were resampled by their weights.
    return_inferencedata : bool
    **kwargs
        For `pm.to_inference_data`.
    """
    classifier = hyper.log_posterior.classifier
    model = classifier.model
    traces = [recorder.trace(draw(chain), chain) for chain in range(chains)]
    multitrace = MultiTrace(traces)
    if not return_inferencedata:
        return multitrace
    kwargs["log_likelihood"] = False
    kwargs["dims"] = plain_dims(model, traces[0].var_shapes, classifier.coords) | dict(kwargs.get("dims") or {})
    with as_it_was(model, hyper.log_posterior.space.data, classifier.coords):
        data = pm.to_inference_data(multitrace, model=model, **kwargs)
    data["posterior"].attrs |= _attrs(hyper)
    if weighted:
        data["sample_stats/log_weight"] = weighted.labelled_weights(data["posterior"].coords)
        data["sample_stats"].attrs |= weighted.attrs
    return data


def recording(
    hyper: HyperPosterior,
    gps: Gps,
    free: Sequence[TensorVariable],
    deterministics: Sequence[TensorVariable],
    seed: int,
) -> tuple[Recorder, list[str], Callable[[int, np.random.Generator], Mapping[str, Array]]]:
    """A recorder of draws, the names of the variables that it is given, and a function that draws these.

    Parameters
    ----------
    hyper : HyperPosterior
    gps : sequence of pm.gp.Latent or None
    free, deterministics : sequence of TensorVariable
        Variables of the model that a fit knows.
    seed : int
        Seed of what the recorder draws.
    """
    log_posterior = hyper.log_posterior
    classifier, space = log_posterior.classifier, log_posterior.space

    def recorder(free: Sequence[TensorVariable], deterministics: Sequence[TensorVariable]) -> Recorder:
        return Recorder(classifier, free, deterministics, space.data, seed)

    if log_posterior.joint or classifier.implicit:
        return recorder(free, deterministics), _recorded(classifier, free), partial(draw_variables, hyper)
    rotated = any(latent.rotated for latent in classifier.latents)
    whole = rotated and classifier.n_points <= _WITH_NORMALS
    if not whole:
        free, deterministics = _without_latents(classifier, free, deterministics)

    def draw(draws: int, rng: np.random.Generator) -> dict[str, Array]:
        chosen, f = draw_functions(hyper, draws, rng, None, gps)
        points = [hyper.point(s) for s in range(len(hyper))]
        values = {name: np.array([point[name] for point in points])[chosen] for name in points[0]}
        if not whole:
            return values | {latent.f.name: f[:, latent.rows] for latent in classifier.latents}
        return values | space.variables.draws(points[0], f, _standard_normals(hyper, chosen, f, gps))

    return recorder(free, deterministics), _recorded(classifier, free), draw


def _recorded(classifier: GPClassifier, free: Sequence[TensorVariable]) -> list[str]:
    """Names of what a recorder of some free variables is given: their values, and deterministic latent values."""
    value_vars = [classifier.model.rvs_to_values[rv].name for rv in free]
    return [*value_vars, *(str(f.name) for f in classifier.held)]


def _without_latents(
    classifier: GPClassifier, free: Sequence[TensorVariable], deterministics: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Free variables without the standard normals of latent values, and deterministics that do not need these."""
    rotated = {latent.free: latent.f for latent in classifier.latents if latent.rotated}
    others = [rv for rv in free if rv not in rotated]
    known = [d for d in deterministics if not set(rotated) & set(ancestors([d], blockers=list(rotated.values())))]
    return others, known


def sampled_functions(
    hyper: HyperPosterior, draws: int, chains: int, rng: np.random.Generator, inputs: Array | None, gps: Gps
) -> xr.DataTree:
    """A DataTree of hyperparameters, and of latent functions at inputs, or at the rows that were fitted."""
    classifier, space = hyper.log_posterior.classifier, hyper.log_posterior.space
    parts = [draw_functions(hyper, draws, own, inputs, gps) for own in rng.spawn(chains)]
    chosen = np.array([nodes for nodes, _ in parts])
    thetas = np.array([node.theta[: space.size] for node in hyper.nodes])
    natural = datasets.natural(space, thetas.reshape(len(hyper), space.size))
    posterior = natural.isel(node=xr.DataArray(chosen, dims=("chain", "draw"))) if natural.data_vars else xr.Dataset()
    posterior = posterior.assign_coords(chain=np.arange(chains), draw=np.arange(draws))
    for latent in classifier.latents:
        values = np.array([f[:, latent.rows] for _, f in parts])
        dims = ["chain", "draw", *_function_dims(classifier, latent.f), _NEW]
        posterior[latent.f.name] = (dims, values)
    posterior.attrs = _attrs(hyper)
    return xr.DataTree.from_dict({"posterior": posterior})


def _function_dims(classifier: GPClassifier, f: TensorVariable) -> Iterator[str]:
    """The dim of the functions of latent values, if they have one."""
    if f.ndim > 1:
        dims = classifier.model.named_vars_to_dims.get(str(f.name))
        yield str(dims[0]) if dims else f"{f.name}_dim_0"


def _attrs(hyper: HyperPosterior) -> dict[str, Any]:
    return {
        "approximation": hyper.log_posterior.name,
        "hyper": hyper.name,
        "pymc_gpep_version": version("pymc_gpep"),
    }


class Conditional:
    """Hyperparameters at a point, and the Gaussian of the integrated variables there, in the unconstrained space.

    Parameters
    ----------
    variables : IntegratedVariables
    point : dict
        Values of the model's value variables, those of the integrated ones not among them.
    functions : LatentFunctions
        At this point.
    """

    def __init__(self, variables: IntegratedVariables, point: PointType, functions: LatentFunctions) -> None:
        self.variables = variables
        self.point = point
        self.functions = functions

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Means and variances by name of value variable; the variances of hyperparameters are 0."""
        mean, variance = self.variables.moments(self.point, self.functions)
        return self.point | mean, {name: np.zeros_like(value) for name, value in self.point.items()} | variance

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Covariance (size, size) of the flat vector in which each value variable has its place."""
        return self.variables.covariance(self.point, self.functions, places, size)

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws (draws, ...) of value variables, and of latent values that are deterministic, by name."""
        values = {name: np.broadcast_to(value, (draws, *np.shape(value))) for name, value in self.point.items()}
        f, z = self.functions.draw(rng, draws)
        return values | self.variables.draws(self.point, f, z)
