"""Explanation of a prior without a density at a point: the variable or the inputs at fault, and a remedy."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.distributions.multivariate import CARRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.sparse.basic import dense_from_sparse
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.random.basic import MvNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import describe
from pymc_gpep.graphs.interpreted import ModelFunctions
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.likelihoods.observed import rows_text
from pymc_gpep.recipes.recipe import inverse_root, parameters, read_root
from pymc_gpep.recipes.sparse_normal import SparseNormalRV

# A negative eigenvalue below this fraction of the largest is an error of rounding.
_EIGENVALUE_ROUNDING = 1e-6
# Largest matrix whose eigenvalues are computed for a message.
_LARGEST = 2000
# Loss of relative precision of squared distances that a message names, and that a warning is given for.
_NAMED, LOST = 1e-9, 1e-7
_EPSILON = float(np.finfo(np.float64).eps)
_CONSTANT = 1e-13  # relative spread of a column below which it is constant


def why_improper(
    prior: LatentPrior, point: PointType, covariance: Callable[[], tuple[Array, object]] | None = None
) -> str:
    """Return the cause of a prior without a density, with the code that mends it; empty if no cause is found.

    Parameters
    ----------
    prior : LatentPrior
    point : dict
        Values of the model's value variables.
    covariance : callable, optional
        Returns the prior covariance (c, n, n) of some rows at this point, and something else. Gaussian processes are
        looked at if it is given.
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
    """Return the inputs whose offset makes squared distances inaccurate, and their remedy; empty without such inputs.

    PyMC computes |a − b|² as |a|² + |b|² − 2 aᵀb. The relative error of a distance of one standard deviation is about
    ε (max |x| / sd)².

    Parameters
    ----------
    processes : iterable of LatentGP
    least : float
        Error that counts.
    """
    for latent in processes:
        length = next((each for each in latent.cov.type.shape if each is not None), None)
        for _, array in columns_by_row(latent.cov, length):
            spread, largest = array.std(axis=0), np.abs(array).max(axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                # A spread of rounding is that of a constant column.
                varies = spread > _CONSTANT * largest
                lost = np.where(varies, _EPSILON * (largest / spread) ** 2, 0.0)
            if (lost > least).any():
                j = int(lost.argmax())
                return (
                    f"Column {j} of the inputs of {latent.f.name!r} is {array[:, j].mean():.3g} ± {spread[j]:.2g}: "
                    "squared distances lose their digits at such an offset. Subtract it, from new inputs as well: "
                    "X - X.mean(axis=0)."
                )
    return ""


def _missing_inputs(processes: Iterable[LatentGP]) -> str:
    """Return the rows of inputs that are not finite, and what to do with them; empty without such rows."""
    for latent in processes:
        length = next((each for each in latent.cov.type.shape if each is not None), None)
        for name, array in columns_by_row(latent.cov, length, finite=False):
            bad = ~np.isfinite(array).all(axis=1)
            if bad.any():
                x = name or "X"
                return (
                    f"The inputs of {latent.f.name!r} are not finite in {rows_text(bad)}. Leave such rows out, of the "
                    f"labels as well: {x}[keep] and y[keep] with keep = np.isfinite({x}).all(axis=1)."
                )
    return ""


def columns_by_row(variable: Variable, rows: int | None, finite: bool = True) -> Iterator[tuple[str, Array]]:
    """Yield the name and the columns (n, d) of each array of numbers behind a variable with so many rows.

    Square arrays are left out: they are matrices of rows by rows, such as distances.
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
    """Return parameters of a variable at a point."""
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
    """Return what is wrong with a covariance or a precision of a variable; empty if it is proper."""
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
            f"{what} is not positive semi-definite (smallest eigenvalue {least:.2g}). No jitter makes it a "
            f"{'precision' if inverted else 'covariance'}: look at how it is computed."
        )
    return (
        f"{what} is singular to rounding (smallest eigenvalue {least:.2g}). Add to its diagonal: "
        f"{called} + {_power_of_ten(_EIGENVALUE_ROUNDING * largest):g} * {eye}({n})."
    )


def _of_processes(processes: Sequence[LatentGP], k: Array) -> str:
    """Return what is wrong with prior covariances (c, n, n) of functions that are made of Gaussian processes."""
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
        return f"{wrong} That is more than rounding, so that no jitter mends it: check the covariance function."
    jitter = _power_of_ten(-10.0 * least)
    return f"{wrong} That is rounding: give the prior a larger jitter, gp.prior(..., jitter={jitter:g})."


def _power_of_ten(value: float) -> float:
    """Return the power of ten that is at least as large."""
    return float(10.0 ** np.ceil(np.log10(max(value, 1e-300))))
