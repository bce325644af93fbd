"""State of a fit by batches: variables that a step changes, sites of rows, and the state at which a fit stopped."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from pymc.blocking import DictToArrayBijection
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.solvers.common_shift import SiteSums, common_tests, own_features_shift, shared_features_shift
from pymc_gpep.solvers.inducing import Features, row_blocks
from pymc_gpep.solvers.whitened_posterior import whitened_posterior
from pymc_gpep.streaming.memories import Remembered, RowSites


class LeftOff(NamedTuple):
    """State at which a fit by batches stopped, and from which another fit continues."""

    settings: Mapping[str, Any]
    values: Mapping[str, Array]
    """Values of the state, by name."""
    losses: Array
    floored: Array

    @property
    def table(self) -> xr.Dataset:
        """Return the values as a Dataset. Names of its variables have the prefix `state_`."""
        return xr.Dataset(
            {f"state_{name}": ([f"{name}_{i}" for i in range(each.ndim)], each) for name, each in self.values.items()}
        )

    @classmethod
    def of(cls, tree: xr.DataTree) -> "LeftOff":
        """Return the state at which the fit of a file stopped.

        Raises
        ------
        ValueError
            If the file does not contain a fit by batches.
        """
        if "settings" not in tree.attrs or "posterior" not in tree.children:
            raise ValueError("it has no state of a fit by batches, or another version wrote it")
        history, state = tree["history"].to_dataset(), tree["posterior"].to_dataset()
        values = {
            str(name).removeprefix("state_"): np.asarray(state[name].values)
            for name in state.data_vars
            if str(name).startswith("state_")
        }
        settings = json.loads(tree.attrs["settings"])
        return cls(settings, values, -history["log_posterior"].values, history["floored"].values)

    def check(self, settings: Mapping[str, Any], inducing: Array) -> None:
        """Raise a ValueError if a fit with these settings and inducing inputs cannot continue from this state."""
        pairs = {name: (was, settings.get(name)) for name, was in self.settings.items()}
        was, now = pairs.get("parameters", ("", ""))
        if was != now:
            raise ValueError(
                f"start is a fit of another model: its hyperparameters were {was}, and this model has {now}. "
                "Declare the model as it was for start, or leave start out."
            )
        if "inducing" in self.values:
            (sets, size, _), (own_sets, own_size, _) = self.values["inducing"].shape, inducing.shape
            pairs["inducing"] = size, own_size
            if sets != own_sets:
                pairs["shared_inducing"] = sets == 1, own_sets == 1
        if differ := {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}:
            each = ", ".join(
                "random_seed differs" if name == "seed" else f"{name} was {was!r} and is {now!r}"
                for name, (was, now) in differ.items()
            )
            raise ValueError(
                f"start does not match this fit: {each}. Give pm.fit the same arguments, or leave start out."
            )


class StoredSites:
    """Sites exp(ν x − ½ t x²) of n rows, d sites each. Before the first visit of a row its sites are 0.

    A site acts on x = wᵀv, for features w and whitened inducing values v. The memory is n (4 q M + 18 d) bytes.

    Parameters
    ----------
    rows, per_row : int
        Numbers n and d.
    functions, sets, size : int
        Numbers c, q and M. If all functions have the same features, q is 1, else c.
    differences : bool
        Whether the likelihood depends only on differences of functions.
    """

    def __init__(self, rows: int, per_row: int, functions: int, sets: int, size: int, differences: bool) -> None:
        self._count = functions
        self._differences = differences
        self._precision = np.zeros((rows, per_row))
        self._location = np.zeros((rows, per_row))
        self._features = np.zeros((rows, sets, size), np.float32)
        self._functions = np.zeros((rows, per_row), np.int16)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, without copies."""
        return {
            "site_precision": self._precision,
            "site_location": self._location,
            "site_features": self._features,
            "site_functions": self._functions,
        }

    def of(self, rows: NDArray[np.int64]) -> RowSites:
        """Return the sites of these rows."""
        return RowSites(self._precision[rows], self._location[rows], self._features[rows])

    def put(self, rows: NDArray[np.int64], sites: RowSites, functions: NDArray[np.int64]) -> None:
        """Store the sites of B rows, and the function of each site, (B, d)."""
        self._precision[rows], self._location[rows], self._features[rows] = sites
        self._functions[rows] = functions

    def natural(self) -> tuple[Array, Array]:
        """Return the sums S = Σ t w wᵀ (c, M, M) and h = Σ ν w (c, M) over all sites of each function."""
        size = self._features.shape[2]
        precision, location = np.zeros((self._count, size, size)), np.zeros((self._count, size))
        for _, sums in self._blocks():
            w = sums.features.w
            precision += (w * sums.precision[:, None]) @ w.swapaxes(1, 2)
            location += (w @ sums.location[:, :, None])[:, :, 0]
        return precision, location

    def settled(self) -> tuple[Array, Array]:
        """Return S and h of `natural`, summed anew, without the rounding errors of updates in each step.

        If the likelihood depends only on differences of functions, sites are first moved by the best common shift.
        Steps approach this shift slowly. See `pymc_gpep.solvers.common_shift`.
        """
        precision, location = self.natural()
        if not self._differences:
            return precision, location
        try:
            posterior = whitened_posterior(precision, location)
        except LinAlgError:
            return precision, location
        if self._features.shape[1] == 1:
            _, common = shared_features_shift(posterior, precision, location)
        else:
            _, common = own_features_shift(posterior, self._each)
        for rows, sums in self._blocks():
            self._location[rows] += self._precision[rows] * common(sums)[:, None]
        return self.natural()

    def _each[R](self, work: Callable[[SiteSums], R]) -> Iterator[R]:
        return (work(sums) for _, sums in self._blocks())

    def _blocks(self) -> Iterator[tuple[slice, SiteSums]]:
        """Yield blocks of rows, with the sums of their sites on each function."""
        n, sets, size = self._features.shape
        for rows in row_blocks(n, sets * size):
            w = self._features[rows].transpose(1, 2, 0).astype(np.float64)
            acts = self._functions[rows][..., None] == np.arange(self._count)
            t, nu = (np.einsum("bd,bdc->cb", of[rows], acts) for of in (self._precision, self._location))
            yield rows, SiteSums(Features(w, np.empty(0), np.empty(0)), t, nu)


class State:
    """State of a fit by batches: hyperparameters, inducing inputs, q(v), and the variables of the optimiser.

    Parameters
    ----------
    theta : array (p,)
        Hyperparameters, flat and unconstrained.
    inducing : array (1 or c, M, d)
        Inducing inputs.
    units : array (d,)
        Unit of each column of the inducing inputs.
    functions : int
        Number c of functions.
    jitter : float
        Jitter added to the diagonal of the covariance of inducing values, relative to the mean of the diagonal.
    learn : bool
        Whether inducing inputs are learned.
    effects : int
        Number of standard normals of effects.

    Attributes
    ----------
    learned : list of SharedVariable
        Variables that the optimiser changes.
    common : list of SharedVariable
        Averages for the common shift of all functions, if the likelihood depends only on differences of functions.
    sites : StoredSites or None
        Sites of all rows, if the memory stores them.
    """

    def __init__(
        self,
        theta: Array,
        inducing: Array,
        units: Array,
        functions: int,
        jitter: float,
        learn: bool,
        effects: int = 0,
    ) -> None:
        size = inducing.shape[1] + effects
        self.units = units
        self.theta = pytensor.shared(np.array(theta, np.float64), "theta", shape=theta.shape)
        self.inducing = pytensor.shared(inducing / units, "inducing", shape=inducing.shape)
        self.precision = pytensor.shared(np.zeros((functions, size, size)), "precision", shape=(functions, size, size))
        self.location = pytensor.shared(np.zeros((functions, size)), "location", shape=(functions, size))
        self.jitter = pytensor.shared(np.array(jitter), "jitter", shape=())
        self.learned = [self.theta] * bool(theta.size) + [self.inducing] * learn
        self.common: list[SharedVariable] = []
        self.sites: StoredSites | None = None
        self._of_optimiser: list[SharedVariable] = []

    def hold(self, of_optimiser: Sequence[SharedVariable]) -> None:
        """Store the variables of an optimiser as a part of the state."""
        self._of_optimiser = list(of_optimiser)

    def hold_common(self, own: bool) -> None:
        """Allocate averages for the common shift. `own` is True if functions have different features."""
        if not self.common:
            functions, size = self.location.type.shape
            tests = common_tests(functions, size) if own else size
            shapes: dict[str, tuple[int, ...]] = {"common_location": (tests,)}
            if own:
                shapes |= {"common_cross": (functions, tests, size), "common_precision": (tests, tests)}
            self.common = [pytensor.shared(np.zeros(shape), name, shape=shape) for name, shape in shapes.items()]

    def hold_sites(self, rows: int, per_row: int, sets: int, differences: bool) -> StoredSites:
        """Allocate the sites of all rows, if necessary, and return them. See `StoredSites` for the arguments."""
        if self.sites is None:
            functions, size = self.location.type.shape
            self.sites = StoredSites(rows, per_row, functions, sets, size, differences)
        return self.sites

    def remembered(self) -> Remembered:
        """Return the averages or sums over sites without copies. A step may overwrite these arrays."""
        precision, location, *common = (
            each.get_value(borrow=True) for each in (self.precision, self.location, *self.common)
        )
        return Remembered(precision, location, tuple(common))

    def remember(self, after: Remembered) -> None:
        """Replace the averages or sums over sites."""
        for variable, new in zip(
            (self.precision, self.location, *self.common), (*after[:2], *after.common), strict=True
        ):
            variable.container.storage[0] = new  # Without `set_value`, arrays of JAX stay on the device.

    def stored_rows(self, rows: NDArray[np.int64]) -> RowSites | None:
        """Return the stored sites of these rows; None if sites are not stored."""
        return self.sites.of(rows) if self.sites else None

    def settle(self) -> None:
        """Replace the sums over sites by `StoredSites.settled`, if sites are stored."""
        if self.sites is not None:
            precision, location = self.sites.settled()
            self.precision.set_value(precision)
            self.location.set_value(location)

    @property
    def _variables(self) -> dict[str, SharedVariable]:
        own = [self.theta, self.inducing, self.precision, self.location, self.jitter]
        own += self.common
        return {each.name: each for each in own} | {f"optimiser_{i}": each for i, each in enumerate(self._of_optimiser)}

    def values(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays of the state, by name."""
        return {name: np.array(each) for name, each in self.held().items()}

    def held(self) -> dict[str, NDArray[Any]]:
        """Return the arrays without copies. The state must not change afterwards."""
        variables = {name: np.asarray(each.get_value(borrow=True)) for name, each in self._variables.items()}
        return variables | {"units": self.units} | (self.sites.arrays if self.sites else {})

    def set_values(self, values: Mapping[str, Array]) -> None:
        """Set all arrays of the state to `values`, a result of the method of this name.

        Raises
        ------
        ValueError
            If names, shapes or units differ.
        """
        own = self.held()
        found = {name: np.shape(each) for name, each in values.items()}
        wanted = {name: each.shape for name, each in own.items()}
        if found != wanted:
            differ = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            if all(name.startswith("optimiser_") for name in differ):
                raise ValueError(
                    "start is a fit with another optimiser, whose state does not match. Give "
                    "the same obj_optimizer, or leave start out."
                )
            each = ", ".join(f"{name} was {_shape(found, name)} and is {_shape(wanted, name)}" for name in differ)
            raise ValueError(f"start does not match this fit: {each}. Give the same options, or leave start out.")
        if not np.array_equal(values["units"], self.units):
            raise ValueError("The data differ from the data of start: their columns have other standard deviations.")
        for name, variable in self._variables.items():
            variable.set_value(np.asarray(values[name], own[name].dtype))
        for name, kept in (self.sites.arrays if self.sites else {}).items():
            kept[:] = values[name]

    def inducing_inputs(self) -> Array:
        """Return the inducing inputs in the units of the data, (1 or c, M, d)."""
        return np.asarray(self.inducing.get_value(borrow=True)) * self.units

    def value_expressions(self, space: Hyperparameters, theta: TensorVariable) -> list[TensorVariable]:
        """Return expressions of the model's value variables: parts of the flat vector `theta`."""
        layout = DictToArrayBijection.map(space.point(self.theta.get_value(borrow=True))).point_map_info
        places, start = {}, 0
        for name, shape, size, dtype in layout:
            places[name] = pt.reshape(theta[start : start + size], shape).astype(dtype)
            start += size
        return [
            pt.specify_shape(places[v.name], v.type.shape) if None not in v.type.shape else places[v.name]
            for v in space.value_vars
        ]


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return f"an array {shapes[name]}" if name in shapes else "not there"
