"""Prior moments of Gaussian processes between the rows of the data and other inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.scalar.basic import Cast
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.interpreted import ModelFunctions, evaluate, initial_point
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere, LatentPrior
from pymc_gpep.processes.process_functions import AS_THEY_ARE, ProcessFunctions, process_functions


def new_inputs(x: ArrayLike | None, columns: int) -> Array:
    """Check new inputs against the number of columns of the model's; (m, columns)."""
    if x is None:
        raise TypeError("predict needs new inputs: predict(Xnew), or predict(gp, Xnew).")
    try:
        values = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Xnew must be numbers, as the model's inputs are: {error}. Rows of a table are encoded as those of the "
            "model were, by encode of gpep.columns."
        ) from None
    if values.ndim != 2:
        advice = ""
        if values.ndim == 1 and columns == 1:
            advice = "; one input is a column, Xnew[:, None]"
        elif values.ndim == 1 and len(values) == columns:
            advice = "; one point is a row, Xnew[None]"
        raise ValueError(
            f"Xnew must be (points, inputs), here (points, {columns}), but has shape {values.shape}{advice}."
        )
    if values.shape[1] != columns:
        raise ValueError(f"Xnew has {values.shape[1]} columns, but the model's inputs have {columns}.")
    if not np.isfinite(values).all():
        raise ValueError(f"Xnew must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not.")
    return values


def named_inputs(inputs: Variable, model: pm.Model) -> SharedVariable | None:
    """Return the data that are the inputs of a process, but for their type and axes; None for other inputs."""
    while inputs.owner is not None and (isinstance(inputs.owner.op, AS_THEY_ARE) or is_elementwise(inputs, Cast)):
        inputs = inputs.owner.inputs[0]
    return inputs if isinstance(inputs, SharedVariable) and inputs in model.data_vars else None


def inputs_by_name(
    x: ArrayLike | None, new: Mapping[str, ArrayLike], variable: SharedVariable | None, columns: int
) -> Array:
    """Check new inputs (m, columns) that are given as an array, or as the data of the model that they are."""
    if variable is None or variable.name not in new:
        return new_inputs(x, columns)
    if x is not None:
        raise TypeError(f"Xnew and data[{variable.name!r}] are the same inputs. Give one of them.")
    given = np.asarray(new[variable.name])
    if variable.ndim == 1 and given.ndim <= 1:
        return new_inputs(given.reshape(-1, 1), columns)
    return new_inputs(given[None] if given.shape == (columns,) else given, columns)


def as_gps(gp: Any) -> tuple[pm.gp.Latent, ...] | None:
    """Return one `pm.gp.Latent` or several, as a user gives them, as a tuple; None stays None.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if gp is None:
        return None
    gps = tuple(gp) if isinstance(gp, Sequence) else (gp,)
    if wrong := [type(each).__name__ for each in gps if not isinstance(each, pm.gp.Latent)]:
        raise TypeError(
            f"gp must be the pm.gp.Latent that made the latent values, or a list of these, not a {wrong[0]}."
        )
    return gps


def match_priors(prior: LatentPrior, gps: Sequence[pm.gp.Latent]) -> list[tuple[LatentGP, pm.gp.Latent]]:
    """Each prior of the model with the `pm.gp.Latent` that made it."""
    matched = []
    for latent in prior.latents:
        makers = [gp for gp in gps if getattr(gp, "f", None) is latent.f]
        if not makers:
            wanted = ", ".join(repr(latent.f.name) for latent in prior.latents)
            raise ValueError(
                f"gp: none of the {len(gps)} given made the latent values {latent.f.name!r}. Pass the pm.gp.Latent "
                f"whose .prior made them, or a list of these for {wanted}. For a model that PyMC has made of another "
                "one (pm.do, model.copy()) leave gp out."
            )
        if len(makers) > 1:
            raise ValueError(f"gp: {latent.f.name!r} was given {len(makers)} times. Pass every pm.gp.Latent once.")
        matched.append((latent, makers[0]))
    if len(gps) > len(matched):
        raise ValueError(f"gp: {len(gps)} were given, but the likelihood's latent values have only {len(matched)}.")
    return matched


def functions_of(prior: LatentPrior, gps: Sequence[pm.gp.Latent] | None) -> list[tuple[LatentGP, ProcessFunctions]]:
    """Each prior of the model with its covariance and mean functions; from the model's graph where `gps` is None.

    Raises
    ------
    ValueError
        If `gps` are not what made the latent values.
    StructureError
        If the graph does not say what they are at other inputs.
    """
    makers = None if gps is None else dict(match_priors(prior, gps))
    found = list(zip(prior.latents, process_functions(prior, makers), strict=True))
    if makers is not None:  # graphs are split by rows; functions of a maker may do anything
        for _, functions in found:
            _check_apart(prior.model, functions)
    return found


def _check_apart(model: pm.Model, functions: ProcessFunctions) -> None:
    """Refuse functions of inputs whose moments at an input depend on the other inputs."""
    x, inputs = pt.dmatrix("X"), functions.inputs
    moments = functions.covariance(x, inputs), functions.covariance(inputs, x), functions.variance(x), functions.mean(x)
    axes = 0, 1, 0, moments[3].ndim - 1
    rows = {x: np.asarray(evaluate([inputs])[0], dtype=np.float64)}
    for moment, axis in zip(moments, axes, strict=True):

        def by_rows(given: Sequence[TensorVariable], moment: TensorVariable = moment) -> Callable[..., Any]:
            functions = ModelFunctions(model, model.free_RVs)
            return at_point(functions, initial_point(model), *functions.known([moment]))(given)

        check_rows_apart("Prior moments", moment, axis, rows, by_rows, stop=model.basic_RVs)


class CrossCovariance(Elsewhere):
    """Prior moments of Gaussian processes at new inputs, compiled once.

    Covariance functions are those of `gps`, or where that is None those that the graph of the model has. The data of
    the model are those given, as the fit had them. A call takes the values of the hyperparameters and inputs (m, d).
    It returns the prior covariance with the inputs of the model (1 or c, m, n), the prior variance (1 or c, m) and the
    prior mean (c, m). The mean is 0 unless `means` are wanted.

    Attributes
    ----------
    where : TensorVariable
        Inputs (n, d) in the model.
    """

    def __init__(
        self,
        prior: LatentPrior,
        gps: Sequence[pm.gp.Latent] | None,
        data: Mapping[Variable, Variable],
        means: bool = True,
    ) -> None:
        matched = functions_of(prior, gps)
        model = prior.model
        self.where = matched[0][1].inputs
        self._named = named_inputs(self.where, model)
        self.takes = [] if self._named is None else [str(self._named.name)]
        (self._inputs,) = graph_replace([self.where], data, strict=False)
        known = self._inputs.type.shape[1]
        self.columns = int(evaluate([self._inputs.shape[1]])[0]) if known is None else known
        x = pt.dmatrix("Xnew")
        rows: dict[int, tuple[Any, Any, Any]] = {}
        for latent, functions in matched:
            cross = functions.covariance(functions.inputs, x).T
            variance = functions.variance(x)
            mean = pt.broadcast_to(functions.mean(x) if means else 0.0, (len(latent.classes), x.shape[0]))
            for output, k in enumerate(latent.classes):
                rows[k] = cross, variance, mean[output]
        ordered = [rows[k] for k in range(prior.n_functions)]
        distinct = ordered[:1] if len(matched) == 1 else ordered
        outputs = [
            pt.stack([cross for cross, _, _ in distinct]),
            pt.stack([variance for _, variance, _ in distinct]),
            pt.stack([mean for _, _, mean in ordered]),
        ]
        self._function = ModelFunctions(model, prior.hyperparameters, data)(outputs, [x], shared=True)

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Array:
        return inputs_by_name(x, new, self._named, self.columns)

    @property
    def inputs(self) -> Array:
        return np.asarray(evaluate([self._inputs])[0], dtype=np.float64)

    def __call__(self, point: PointType, x: Array) -> tuple[Array, Array, Array]:
        """Evaluate at the inputs `x` (m, d)."""
        return tuple(np.asarray(out) for out in self._function(point, x))  # type: ignore[return-value]  # three of them
