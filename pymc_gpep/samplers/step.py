"""Base class of the step methods: their variables in a model, and the prior at the current hyperparameters."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pymc.step_methods.compound import BlockedStep, Competence
from pymc.util import get_random_generator
from pytensor.tensor.variable import TensorVariable
from rich.progress import TextColumn
from rich.table import Column

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.lowered_dims import lower_dims
from pymc_gpep.reading.classifier import ReadModel
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.solvers.team import one_blas_thread


def sampled_model(model: pm.Model | None) -> pm.Model:
    """Return the model of a step; by default the current model.

    Raises
    ------
    StructureError
        If the model has variables of `pymc.dims`, which steps cannot read.
    """
    model = pm.modelcontext(model)
    if lower_dims(model) is not model:
        raise StructureError(
            "Step methods of pymc_gpep do not support variables of pymc.dims. Sample the same model with ordinary "
            "variables: with gpep.samplers.lower_dims(model): pm.sample(step=...)."
        )
    return model


class LatentStep(BlockedStep):
    """Step method that moves the latent values of a model, and hyperparameters of its prior.

    Parameters
    ----------
    vars : sequence of TensorVariable, optional
        Variables of latent values, or the free variables on which they depend, and hyperparameters. The default is all
        latent values and all hyperparameters.
    processes : GPClassifier or GPModel
        Prior of the model.
    rng : int, Generator or None
    compile_kwargs : dict, optional
        Arguments of PyTensor's compilation.

    Raises
    ------
    ValueError
        If `vars` contains other variables, or lacks latent values of the model.
    """

    default_blocked = True
    progress: ClassVar[dict[str, tuple[str, str]]] = {}
    """Statistics in the progress bar: the header and the format of each, by name."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check names of options before the constructor runs. The error message then contains the class."""
        own = [vars(base).get("__init__") for base in cls.__mro__[: cls.__mro__.index(LatentStep)]]
        parameters = [p for init in own if init for p in list(signature(init).parameters.values())[1:]]
        known = dict.fromkeys(p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD)
        if unknown := sorted(set(kwargs) - set(known)):
            meant = did_you_mean(unknown, known)
            raise TypeError(f"{cls.__name__} has no option {', '.join(unknown)}. Options: {', '.join(known)}.{meant}")
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        vars: Sequence[TensorVariable] | TensorVariable | None,
        processes: ReadModel,
        rng: Any = None,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.processes = processes
        self.latent_model = LatentModel(processes, compile_kwargs)
        self.hyperparameters = _chosen(vars, self.latent_model)
        """Value variables of the hyperparameters that the step moves."""
        self.vars = [*self.latent_model.latent_value_vars(), *self.hyperparameters]
        self.rng = get_random_generator(rng)
        self.tune = True
        self._prior_at = self.latent_model.prior_function()
        self._missing = self.latent_model.missing_values()
        self._at: tuple[list[Array], Sampled] | None = None

    def prior(self, point: PointType) -> Sampled | None:
        """Return the prior of the latent values at a point. None if the prior covariance is not positive definite.

        The last prior is cached, since some steps do not move hyperparameters.
        """
        values = [np.asarray(point[v.name]) for v in self.latent_model.value_vars]
        if self._at is not None and all(map(np.array_equal, values, self._at[0])):
            return self._at[1]
        prior = self._prior_at(point)
        try:
            prior.check()
        except NotPositiveDefiniteError:
            return None
        self.remember(point, prior)
        return prior

    def remember(self, point: PointType, prior: Sampled) -> None:
        """Store the prior at a point. The next call of `prior` at this point returns it."""
        self._at = [np.array(point[v.name]) for v in self.latent_model.value_vars], prior

    def current(self, point: PointType) -> tuple[Sampled, Array]:
        """Return the prior and the latent values (c, n), or the standard normals of effects, at the current point.

        Raises
        ------
        ValueError
            If the prior covariance at the point is not positive definite.
        """
        prior = self.prior(point)
        if prior is None:
            at = {v.name: point[v.name] for v in self.latent_model.value_vars}
            raise NotPositiveDefiniteError.of("The prior covariance of the latent values", f" at {at}")
        return prior, self.latent_model.values.from_point(point, prior, self.rng)

    def moved(self, point: PointType, f: Array, prior: Sampled) -> PointType:
        """Return the point with new latent values, and with new draws of missing responses."""
        missing = {} if self._missing is None else self._missing(point, f, prior)
        return {**point, **self.latent_model.values.to_point(point, f, prior), **missing}

    @abstractmethod
    def advance(self, point: PointType) -> tuple[PointType, dict[str, Any]]:
        """Return the next point of the chain and its statistics."""

    def step(self, point: PointType) -> tuple[PointType, list[dict[str, Any]]]:
        with one_blas_thread(), np.errstate(all="ignore"):  # Diverging trajectories may overflow.
            after, statistics = self.advance(point)
        return after, [statistics]

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self.tune = tune > 0
        self._at = None
        if self._missing is not None:
            self._missing.seed(self.rng)

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        columns = [
            TextColumn(f"{{task.fields[{name}]:{how}}}", table_column=Column(header, ratio=1))
            for name, (header, how) in self.progress.items()
        ]
        return columns, {name: [0.0] * n_chains for name in self.progress}

    def _make_progressbar_update_functions(self) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], ...]:
        names = tuple(self.progress)
        return (lambda statistics: {name: statistics[name] for name in names},)

    @staticmethod
    def competence(var: TensorVariable, has_grad: bool) -> Competence:
        """Return `INCOMPATIBLE`. PyMC does not choose this step, since the role of a variable is unknown."""
        return Competence.INCOMPATIBLE


def _chosen(vars: Sequence[TensorVariable] | TensorVariable | None, latent_model: LatentModel) -> list[TensorVariable]:
    """Return the hyperparameters in `vars` as value variables. Raise an error for unknown variables."""
    processes, holders = latent_model.processes, latent_model.values.names
    model = processes.model
    value_of = {rv: model.rvs_to_values[rv] for rv in processes.hyperparameters}
    if vars is None:
        return list(value_of.values())
    given = list(vars) if isinstance(vars, Sequence) and not isinstance(vars, str) else [vars]
    if names := [v for v in given if isinstance(v, str)]:
        raise ValueError(f"vars must be variables, not names: model[{names[0]!r}] in place of {names[0]!r}.")
    with_others = {v for each in latent_model.missing for v in (each.unobserved, model.rvs_to_values[each.unobserved])}
    left = [v for v in given if v not in holders and v not in with_others]
    known_names = dict.fromkeys(holders.values())
    wanted = [v for v in known_names if v not in {holders.get(each) for each in given}]
    chosen = [value for rv, value in value_of.items() if any(v is rv or v is value for v in left)]
    known = {*value_of, *value_of.values()}
    if unknown := [v for v in left if v not in known]:
        raise ValueError(
            f"vars names {', '.join(repr(v.name) for v in unknown)}, which are not free variables of this model. Its "
            f"free variables are {', '.join(repr(rv.name) for rv in (*known_names, *value_of))}."
        )
    if wanted:
        raise ValueError(
            f"vars leaves out latent values, {', '.join(repr(f.name) for f in wanted)}. They are updated together: "
            "name all latent values, or leave vars out."
        )
    return chosen
