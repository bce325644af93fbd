"""Selection of the Gaussian variables of a model that are integrated out, and reasons for an improper prior."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.distributions.multivariate import CARRV, ICARRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul
from pytensor.sparse.basic import dense_from_sparse
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import MvNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean, rows_text
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.errors import StructureError, describe, listing
from pymc_gpep.graphs.interpreted import ModelFunctions
from pymc_gpep.latent.gp_latent import LatentGP, as_it_is, is_process, latents_among, refuse_common_variables
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.latent.lowered_dims import unobserved_responses
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.recipes import Recipe, recipe, why_no_recipes
from pymc_gpep.recipes.recipe import inverse_root, is_random, parameters, read_root
from pymc_gpep.recipes.sparse_normal import SparseNormalRV


@dataclass
class Gaussians:
    """The Gaussian variables of a model that can be integrated out, in the order of the graph.

    Attributes
    ----------
    model : pm.Model
    processes : dict of TensorVariable to LatentGP
        Latent values → their Gaussian process.
    recipes : dict of TensorVariable to Recipe
        Other Gaussian variables that may still be integrated out → their recipes.
    kept : dict of TensorVariable to str
        Gaussian variables that are hyperparameters → the reason.
    missing : frozenset of TensorVariable
        Missing responses. They are neither integrated out nor hyperparameters.
    """

    model: pm.Model
    processes: dict[TensorVariable, LatentGP]
    recipes: dict[TensorVariable, Recipe]
    kept: dict[TensorVariable, str] = field(default_factory=dict)
    missing: frozenset[TensorVariable] = frozenset()

    @property
    def sources(self) -> frozenset[Variable]:
        """Gaussian variables that may be integrated out, including values of Gaussian processes."""
        return frozenset([*self.processes, *self.recipes])

    def keep(self, variables: Iterable[Variable], why: str) -> bool:
        """Make variables hyperparameters. Return whether this changed any variable."""
        found = [v for v in self.recipes if v in set(variables)]
        for variable in found:
            del self.recipes[variable]
            self.kept[variable] = why
        return bool(found)

    def settle(
        self, read: Callable[[Collection[Variable]], Reading | None], observed: Sequence[TensorVariable]
    ) -> Reading:
        """Make variables hyperparameters until the likelihood's argument is affine in all other Gaussian variables.

        Parameters
        ----------
        read : callable
            Function that reads the likelihood, given the variables that may be integrated out.
        observed : sequence of TensorVariable
            The observed variable, or several that are read together.

        Returns
        -------
        Reading
            The reading. Then `processes` and `recipes` contain only the Gaussian variables of the argument.

        Raises
        ------
        StructureError
            If no variable remains, or if the choice between two variables is ambiguous.
        """
        open_choices: list[tuple[str, str]] = []
        known = dict(self.recipes), dict(self.kept)
        while True:
            self._keep_what_others_need(observed)
            reading = read(self.sources)
            if reading is None and not self.sources:
                raise StructureError(self._nothing(observed, *observed))
            if reading is None:
                raise StructureError(
                    f"The reader cannot separate the argument of {quoted(observed)} from its other parameters. "
                    f"{self._how_to_keep()}"
                )
            if reading.parameters is not None and self.keep(
                Affinity(self.sources).reached([reading.parameters]),
                f"a parameter of {quoted(observed)} other than its argument depends on it",
            ):
                continue
            try:
                used = self._behind(reading.argument)
            except NotAffineError as error:
                known = known if open_choices else (dict(self.recipes), dict(self.kept))
                open_choices += self._resolve(error, observed)
                continue
            self._refuse_nested(used, reading.argument, observed)
            self.recipes = {v: each for v, each in self.recipes.items() if v in used}
            self.processes = {v: each for v, each in self.processes.items() if v in used}
            if not used:
                raise StructureError(self._nothing(observed, reading.argument))
            if open_choices:
                self.recipes, self.kept = known
                self._refuse_open(open_choices, observed)
            return reading

    def _refuse_nested(
        self, used: Collection[Variable], argument: TensorVariable, observed: Sequence[TensorVariable]
    ) -> None:
        """Raise an error if a covariance or scale depends on a process, or if processes share a free variable."""
        processes = Affinity(frozenset(self.processes))
        for variable in used:
            own = variable in self.processes
            scales = (self.processes[variable].cov,) if own else self.recipes[variable].scales
            if found := processes.reached(scales):
                what = "covariance" if own else "scale"
                raise StructureError(
                    f"The prior of {variable.name!r} depends on latent values, {listing(found)}. Its {what} may depend "
                    f"on hyperparameters only. {as_it_is(self.model)}"
                )
        latents = [each for f, each in self.processes.items() if f in used]
        refuse_common_variables(latents)
        beside = {latent.free for latent in latents if latent.rotated}.intersection(
            ancestors([argument], blockers=self.sources)
        )
        if beside:
            raise StructureError(
                f"The argument of {quoted(observed)} depends on {listing(beside)} other than by latent values. "
                f"{as_it_is(self.model)}"
            )

    def _behind(self, argument: TensorVariable) -> set[Variable]:
        """Return the integrated variables on which an argument depends, directly or through means of variables."""
        affinity = Affinity(self.sources)
        found: set[Variable] = set()
        pending = [*affinity.behind(argument)]
        while pending:
            variable = pending.pop()
            if variable in found:
                continue
            found.add(variable)
            means = [self.processes[variable].mean] if variable in self.processes else self.recipes[variable].means
            for mean in means:
                pending += affinity.behind(mean)
        return found

    def _keep_what_others_need(self, observed: Sequence[TensorVariable]) -> None:
        """Make variables hyperparameters if a term of the model depends on them, other than the argument and means."""
        while any(self.keep(found, why) for found, why in self._needed(observed)):
            pass

    def _needed(self, observed: Sequence[TensorVariable]) -> Iterable[tuple[frozenset[Variable], str]]:
        """Yield the variables of each term of the model, and a reason. The argument and means are not such terms."""
        model = self.model
        affinity = Affinity(self.sources)
        for latent in self.processes.values():
            yield affinity.reached([latent.cov]), f"the covariance of {latent.f.name!r} depends on it"
        for variable, each in list(self.recipes.items()):
            yield affinity.reached(each.scales), f"the scale of {variable.name!r} depends on it"
        own = {*self.recipes, *(latent.free for latent in self.processes.values()), *observed, *self.missing}
        for variable in model.basic_RVs:
            if variable not in own:
                what = "is observed and" if variable in model.observed_RVs else "is not an integrated variable and"
                yield affinity.reached(variable.owner.inputs), f"{variable.name!r} {what} depends on it"
        for potential in model.potentials:
            yield affinity.reached([potential]), f"the Potential {potential.name!r} depends on it"

    def _resolve(self, error: NotAffineError, observed: Sequence[TensorVariable]) -> list[tuple[str, str]]:
        """Make the smallest side of an operation hyperparameters, so that the operation is affine in its other sides.

        A side is a set of variables. If two sides have the same number of entries, the first side is chosen, and the
        choice is ambiguous. For an ambiguous choice, return a description and the name of each variable.
        """
        sides = [side for side in error.sides if side.isdisjoint(self.processes)]
        sizes = [sum(self.recipes[v].size for v in side) for side in sides]
        operation = _words(error)
        names = listing(v for side in error.sides for v in side)
        if not sides:
            raise StructureError(
                f"The argument of {quoted(observed)} must be affine in latent values, but {operation} of {names} is "
                "not. Sums, selections, and products with data, hyperparameters or their matrices can be read. "
                f"{as_it_is(self.model)}"
            )
        flat = [side for side in sides if all(self.recipes[v].flat for v in side)]
        if len(flat) == 1:  # A factor with a flat prior becomes a hyperparameter, such as the slope of an item.
            sides, sizes = flat, [0]
        least = sides[sizes.index(min(sizes))]
        others = [v for side in error.sides if side is not least for v in side]
        beside = f" with {listing(others)}" if others else ""
        self.keep(least, f"the argument contains {operation} of it{beside}")
        is_open = len(sides) > 1 and sizes.count(min(sizes)) > 1
        what = f"{operation} of the Gaussian variables {names}"
        return [(what, str(variable.name)) for variable in least] if is_open else []

    def _refuse_open(self, choices: Sequence[tuple[str, str]], observed: Sequence[TensorVariable]) -> None:
        """Raise an error for ambiguous choices. The message lists the variables that can be hyperparameters."""
        operations = " and ".join(dict.fromkeys(operation for operation, _ in choices))
        names = list(dict.fromkeys(name for _, name in choices))
        raise StructureError(
            f"The argument of {quoted(observed)} contains {operations}. Only one factor can be integrated. Name the "
            f"variables that stay hyperparameters: pm.fit(..., hyperparameters={names})."
        )

    def _how_to_keep(self) -> str:
        name = next(iter(self.recipes)).name if self.recipes else "beta"
        return f"Name the variables that stay hyperparameters: pm.fit(..., hyperparameters=[{name!r}])."

    def _nothing(self, observed: Sequence[TensorVariable], *arguments: TensorVariable) -> str:
        """Return the reason why no variable remains to be integrated out."""
        behind = [v for v in ancestors(list(arguments)) if v in self.model.free_RVs]
        whys = [(v, self.kept[v]) for v in behind if v in self.kept]
        kept = "; ".join(f"{describe(v)} stays a hyperparameter, since {why}" for v, why in whys)
        sentences = [
            f"The argument of {quoted(observed)} depends on no Gaussian variable that can be integrated.",
            f"{kept}." if kept else "",
            why_no_recipes([v for v in behind if v not in self.kept], self.model),
            as_it_is(self.model),
        ]
        return " ".join(filter(None, sentences))


def gaussians_of(model: pm.Model, hyperparameters: Sequence[str] = ()) -> Gaussians:
    """Return the Gaussian variables of a model.

    Parameters
    ----------
    model : pm.Model
    hyperparameters : sequence of str
        Names of variables that are not integrated out. A process may be named by its values, or by its standard
        normals.

    Raises
    ------
    StructureError
        If a name is not the name of a free variable, or if PyMC computes a wrong density for a variable.
    """
    for variable in model.free_RVs:
        # PyMC's density lacks a power of sigma. If the variable were a hyperparameter, this density would be wrong.
        if isinstance(variable.owner.op, ICARRV) and is_random(parameters(variable)[1]):
            raise StructureError(why_no_recipes([variable], model))
    latents = [
        each
        for each in latents_among([*model.free_RVs, *model.deterministics], model)
        if is_process(each) and model.rvs_to_transforms[each.free] is None
    ]
    missing = unobserved_responses(model)
    values = {latent.free: latent.f for latent in latents}
    free = {str(values.get(rv, rv).name): rv for rv in model.free_RVs if rv not in missing}
    named = free | {str(rv.name): rv for rv in free.values()}
    if unknown := [name for name in hyperparameters if name not in named]:
        raise StructureError(
            f"hyperparameters names {', '.join(map(repr, unknown))}, but the free variables of the model are "
            f"{', '.join(map(repr, free)) or 'none'}.{did_you_mean(unknown, named)}"
        )
    asked = {named[name] for name in hyperparameters}
    processes = {latent.f: latent for latent in latents if latent.free not in asked}
    own = {latent.free for latent in processes.values()}
    found = {rv: recipe(rv, model) for rv in model.free_RVs if rv not in own | missing}
    recipes = {rv: each for rv, each in found.items() if each is not None}
    gaussians = Gaussians(model, processes, recipes, missing=missing)
    gaussians.keep([rv for rv in recipes if rv in asked], "hyperparameters=[...] names it")
    return gaussians


def _words(error: NotAffineError) -> str:
    """Return the name of the operation that is not affine, for a message."""
    op = error.node.op
    match op:
        case Elemwise(scalar_op=Mul()):
            return "a product"
        case Elemwise():
            return f"the function {type(op.scalar_op).__name__.lower()!r}"
    name = type(getattr(op, "core_op", op)).__name__
    walk = " (a walk in closed form is pt.cumsum(steps), pm.GaussianRandomWalk or pm.AR)" * (name == "Scan")
    return f"the operation {name!r}{walk}"


# A smaller negative eigenvalue, relative to the largest eigenvalue, counts as a rounding error.
_EIGENVALUE_ROUNDING = 1e-6
# For a message, eigenvalues are computed for matrices up to this size.
_LARGEST = 2000
# Relative errors of squared distances: an error message names inputs above the first, a fit warns above the second.
_NAMED, LOST = 1e-9, 1e-7
_EPSILON = float(np.finfo(np.float64).eps)
_CONSTANT = 1e-13  # A column with a smaller relative spread counts as constant.


def why_improper(
    prior: LatentPrior, point: PointType, covariance: Callable[[], tuple[Array, object]] | None = None
) -> str:
    """Return the reason why a prior has no density, and code that repairs it; empty if no reason is found.

    Parameters
    ----------
    prior : LatentPrior
    point : dict
        Values of the model's value variables.
    covariance : callable, optional
        Function that returns the prior covariance (c, n, n) of rows at this point, and a second, unused value. If the
        function is given, Gaussian processes are checked.
    """
    processes = {latent.free for latent in prior.processes}
    for variable in prior.integrated:
        if variable in processes:
            continue
        match variable.owner.op:
            case CARRV():
                why = _of_areas(prior, variable, point)
            case MvNormalRV():
                why = _of_matrix(prior, variable, point)
            case SparseNormalRV():
                why = _of_sparse(prior, variable, point)
            case _:
                why = ""
        if why:
            return why
    if why := _missing_inputs(prior.processes):
        return why
    if not prior.processes or covariance is None:
        return ""
    try:
        k, _ = covariance()
    except (ValueError, np.linalg.LinAlgError):
        k = np.full((1, 1, 1), np.nan)
    return _of_processes(prior.processes, k)


def large_offset(processes: Iterable[LatentGP], least: float = _NAMED) -> str:
    """Return a message on inputs with a large offset, since squared distances are inaccurate; else an empty text.

    PyMC computes |a − b|² as |a|² + |b|² − 2 aᵀb. For a distance of one standard deviation, the relative error is about
    ε (max |x| / sd)², where ε is the machine precision.

    Parameters
    ----------
    processes : iterable of LatentGP
    least : float
        Smallest relative error that is reported.
    """
    for latent in processes:
        length = next((each for each in latent.cov.type.shape if each is not None), None)
        for _, array in columns_by_row(latent.cov, length):
            spread, largest = array.std(axis=0), np.abs(array).max(axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                # A spread that is due to rounding counts as 0.
                varies = spread > _CONSTANT * largest
                lost = np.where(varies, _EPSILON * (largest / spread) ** 2, 0.0)
            if (lost > least).any():
                j = int(lost.argmax())
                return (
                    f"Column {j} of the inputs of {latent.f.name!r} is {array[:, j].mean():.3g} ± {spread[j]:.2g}: "
                    "squared distances lose their digits at such an offset. Subtract the offset from fitted and new "
                    "inputs: X - X.mean(axis=0)."
                )
    return ""


def _missing_inputs(processes: Iterable[LatentGP]) -> str:
    """Return a message with the rows of inputs that are not finite; empty without such rows."""
    for latent in processes:
        length = next((each for each in latent.cov.type.shape if each is not None), None)
        for name, array in columns_by_row(latent.cov, length, finite=False):
            bad = ~np.isfinite(array).all(axis=1)
            if bad.any():
                x = name or "X"
                return (
                    f"The inputs of {latent.f.name!r} are not finite in {rows_text(bad)}. Remove these rows from "
                    f"inputs and labels: {x}[keep] and y[keep] with keep = np.isfinite({x}).all(axis=1)."
                )
    return ""


def columns_by_row(variable: Variable, rows: int | None, finite: bool = True) -> Iterator[tuple[str, Array]]:
    """Yield name and columns (n, d) of numeric arrays with `rows` rows on which a variable depends.

    Square arrays are left out, since they may be matrices over pairs of rows, such as distances.
    """
    for leaf in ancestors([variable]):
        if not isinstance(leaf, SharedVariable | Constant) or not isinstance(leaf.type, pt.TensorType):
            continue
        data = np.asarray(leaf.data if isinstance(leaf, Constant) else leaf.get_value(borrow=True))
        if data.dtype.kind in "fiu" and data.ndim in (1, 2) and len(data) > 1 and rows in (None, len(data)):
            array = data.astype(np.float64).reshape(len(data), -1)
            square = array.shape[0] == array.shape[1]
            if array.size and not square and (not finite or np.isfinite(array).all()):
                yield leaf.name or "", array


def _values(prior: LatentPrior, outputs: Sequence[Variable], point: PointType) -> list[NDArray[np.float64]]:
    """Return the values of expressions at a point."""
    function = ModelFunctions(prior.model, prior.hyperparameters)(outputs)
    return [np.asarray(each, dtype=np.float64) for each in function(point)]


def _of_areas(prior: LatentPrior, variable: TensorVariable, point: PointType) -> str:
    _, weights, alpha, tau, _ = parameters(variable)
    dense = dense_from_sparse(weights) if isinstance(weights.type, SparseTensorType) else weights
    w, a, _ = _values(prior, [dense, alpha, tau], point)
    name = describe(variable)
    if not np.all(np.abs(a) < 1.0):
        return (
            f"{name} has no proper density at alpha = {float(np.ravel(a)[0]):g}, which must be between -1 and 1. Give "
            f"it alpha=0.99, or write sigma * pm.ICAR({variable.name!r}, W), the limit of alpha = 1."
        )
    alone = np.flatnonzero(w.sum(axis=-1) == 0.0)
    if alone.size:
        return (
            f"{name} has no proper density: area {alone[0]} has no neighbours, and a precision of 0. Leave such areas "
            "out of W, and give each a pm.Normal of its own."
        )
    return ""


def _of_matrix(prior: LatentPrior, variable: TensorVariable, point: PointType) -> str:
    root = read_root(parameters(variable)[1])
    by_precision = root.of is inverse_root
    matrix = root.scale if by_precision else parameters(variable)[1]
    (found,) = _values(prior, [matrix], point)
    return _of_eigenvalues(describe(variable), found, "tau" if by_precision else "cov", by_precision)


def _of_sparse(prior: LatentPrior, variable: TensorVariable, point: PointType) -> str:
    _, _, _, entries, first, second = parameters(variable)
    own, rows, columns = _values(prior, [entries, first, second], point)
    size = int(max(rows.max(), columns.max())) + 1
    matrix = np.zeros((size, size))
    for i, j in ((rows, columns), (columns, rows)):
        matrix[i.astype(int), j.astype(int)] = own
    return _of_eigenvalues(describe(variable), matrix, "tau", True, "scipy.sparse.eye_array")


def _of_eigenvalues(name: str, matrix: Array, called: str, inverted: bool, eye: str = "np.eye") -> str:
    """Return the reason why a covariance or precision matrix is invalid; empty if it is valid."""
    n = matrix.shape[-1]
    what = f"The {'precision' if inverted else 'covariance'} {called} of {name}"
    if not np.isfinite(matrix).all():
        return f"{what} has values that are not finite. Look for missing values in the data that it is computed from."
    if n > _LARGEST:
        return ""
    values = np.linalg.eigvalsh(0.5 * (matrix + np.swapaxes(matrix, -1, -2)))
    least, largest = float(values.min()), float(np.abs(values).max(initial=0.0))
    if not np.allclose(matrix, np.swapaxes(matrix, -1, -2), atol=1e-8 * largest):
        return f"{what} is not symmetric. Give it ({called} + {called}.T) / 2."
    if least > _EPSILON * n * largest:
        return ""
    if least < -_EIGENVALUE_ROUNDING * largest:
        return (
            f"{what} is not positive semi-definite (smallest eigenvalue {least:.2g}). No jitter repairs this "
            f"{'precision' if inverted else 'covariance'}. Check its computation."
        )
    return (
        f"{what} is singular to rounding (smallest eigenvalue {least:.2g}). Add to its diagonal: "
        f"{called} + {_power_of_ten(_EIGENVALUE_ROUNDING * largest):g} * {eye}({n})."
    )


def _of_processes(processes: Sequence[LatentGP], k: Array) -> str:
    """Return the reason why prior covariances (c, n, n) of processes are invalid; empty if they are valid."""
    found = large_offset(processes)
    if not np.isfinite(k).all() or k.shape[-1] > _LARGEST or k.shape[-1] != k.shape[-2]:
        return found
    values = np.linalg.eigvalsh(0.5 * (k + np.swapaxes(k, -1, -2)))
    least, largest = float(values.min()), float(np.abs(values).max(initial=0.0))
    wrong = f"The prior covariance is not positive semi-definite (smallest eigenvalue {least:.2g})."
    if found:
        return f"{wrong} {found}" if least < 0.0 else found
    if least >= 0.0:
        return ""
    if least < -_EIGENVALUE_ROUNDING * largest:
        return f"{wrong} A jitter does not repair it: it is not a rounding error. Check the covariance function."
    jitter = _power_of_ten(-10.0 * least)
    return f"{wrong} This is a rounding error. Give the prior a larger jitter, gp.prior(..., jitter={jitter:g})."


def _power_of_ten(value: float) -> float:
    """Return the smallest power of ten that is at least `value`."""
    return float(10.0 ** np.ceil(np.log10(max(value, 1e-300))))


def quoted(variables: Iterable[Variable]) -> str:
    """Return the quoted names of variables: `'a'`, or `'a' and 'b'`."""
    return " and ".join(repr(variable.name) for variable in variables)
