"""Log evidence, and scores of predictions at held-out points, over a grid of hyperparameters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.approximations import approximator
from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.comparison.held_out_scores import scores_at
from pymc_gpep.graphs.interpreted import initial_point
from pymc_gpep.log_posteriors.hyperparameters import unconstrain
from pymc_gpep.prior_moments.prior_functions import by_groups, prior_moments
from pymc_gpep.progress import progress_bar
from pymc_gpep.reading import GPClassifier, read_classifier
from pymc_gpep.sums.new_data import by_name


def evidence_grid(
    model: pm.Model,
    values: Mapping[str, ArrayLike],
    *,
    method: str | None = None,
    at: Mapping[str, ArrayLike] | None = None,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
    Xnew: ArrayLike | None = None,
    ynew: ArrayLike | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    likelihood: str | None = None,
    progressbar: bool = True,
    **options: Any,
) -> xr.Dataset:
    """Compute the log evidence, and scores of held-out points if given, over a grid of hyperparameters.

    Solves follow the grid row by row, every second row backwards. So each solve starts from an adjacent solution. The
    evidence does not include priors of the hyperparameters. `gpep.plots.plot_evidence_grid` draws the result (Figure 7
    of the nested EP paper).

    Parameters
    ----------
    model : pm.Model
        A classifier with `pm.gp.Latent` priors.
    values : dict of str to array
        Values of hyperparameters on their natural scale, by name. All elements of an array hyperparameter have the same
        value, for example one length scale for all inputs.
    method : str, optional
        Name of the approximation, as for `pm.fit`. The default is nested EP for a multinomial probit, Laplace's
        approximation for a softmax, and EP for a likelihood of one latent function.
    at : dict of str to array, optional
        Values of all other hyperparameters, for example `fit.hyperparameters`.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, for predictions.
    Xnew : array (m, d), optional
        Inputs of held-out points.
    ynew : array (m,), optional
        Observations at held-out points.
    data : dict of str to array, optional
        Data of the likelihood at held-out points, such as an exposure, as for `Fit.predict`.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    progressbar : bool
    **options
        Options of the approximation; `pymc_gpep.methods` lists the options of each method.

    Returns
    -------
    xarray.Dataset
        A dataset with a dim and a coordinate for each name in `values`. `evidence` is the log evidence, NaN if the
        approximation failed; `converged` and `iterations` describe each solve. With held-out points there is `mlpd`,
        the mean log predictive density of the observations. For classes there is also `accuracy`, the share of points
        with a correct most probable class. `information` is the gain of predictions over the class frequencies in
        training, in bits per label (Nickisch and Rasmussen 2008). For ordered classes there is
        `ranked_probability`, the mean ranked probability score (0 at best). For counts there is `squared_error`, the
        squared error of the predictive mean.

    Raises
    ------
    StructureError
        If the model is not a Gaussian process classifier.
    ValueError
        If a name is not the name of a hyperparameter, or if a hyperparameter has no value. If `values` is empty, or if
        only some of `gp`, `Xnew` and `ynew` are given.
    TypeError
        If an option is not an option of the approximation.

    Examples
    --------
    >>> gpep.diagnostics.evidence_grid(model, {"ls": [0.5, 1.0], "eta": [1.0, 5.0]})["evidence"]
    """
    free = [str(rv.name) for rv in model.free_RVs]
    named = [name for name in (*values, *(at or {})) if name in free]
    classifier = read_classifier(model, likelihood, named, means=True)
    solver = approximator(method, classifier.likelihood_model, options, ", besides arguments of evidence_grid")
    classifier = by_groups(classifier, solver)
    axes = {name: np.asarray(taken, dtype=np.float64) for name, taken in values.items()}
    by_variable = _values_by_variable(classifier, axes, at)
    data = None if data is None else by_name(data, classifier.model)
    score = scores_at(classifier, solver, gp, Xnew, ynew, data)
    point_of, moments = unconstrain(classifier.prior), prior_moments(classifier)

    shape = tuple(map(len, axes.values()))
    columns = {name: np.full(shape, np.nan) for name in ("evidence", *(["mlpd"] if score else []))}
    converged, iterations = np.zeros(shape, bool), np.zeros(shape, np.int64)
    start: Array | None = None
    with progress_bar(progressbar) as progress:
        description = f"{solver.name} over the grid"
        for index in progress.track(serpentine(shape), total=int(np.prod(shape)), description=description):
            here = {name: taken[i] for (name, taken), i in zip(axes.items(), index, strict=True)}
            point = point_of(
                {name: np.broadcast_to(here.get(name, at_), at_.shape) for name, at_ in by_variable.items()}
            )
            k, mean, labels, given = moments(point)
            solution = solver.solve_near(k, mean, labels, start, likelihood=given)
            converged[index], iterations[index] = solution.convergence.converged, solution.convergence.iterations
            columns["evidence"][index] = solution.evidence
            if converged[index]:
                start = solution.start
            if score and np.isfinite(solution.evidence):
                for name, value in score(solution, point).items():
                    columns.setdefault(name, np.full(shape, np.nan))[index] = value
    return xr.Dataset(
        {name: (tuple(axes), column) for name, column in (columns | {"converged": converged}).items()}
        | {"iterations": (tuple(axes), iterations)},
        coords=axes,
        attrs={"approximation": solver.name},
    )


def serpentine(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all indices of an array. Consecutive indices are neighbours: they differ by 1 along one axis."""
    if not shape:
        yield ()
        return
    forward = True
    for first in serpentine(shape[:-1]):
        for last in range(shape[-1]) if forward else reversed(range(shape[-1])):
            yield *first, last
        forward = not forward


def _values_by_variable(
    classifier: GPClassifier, axes: Mapping[str, Array], at: Mapping[str, ArrayLike] | None
) -> dict[str, Array]:
    """Return arrays of all hyperparameters, by name. Hyperparameters of the grid have the placeholder 0."""
    known = {rv.name: rv for rv in classifier.hyperparameters}
    listed = ", ".join(map(repr, known)) or "none"
    if not axes:
        raise ValueError(f"values is empty. Give values of hyperparameters. The model has {listed}.")
    if unknown := [name for name in (*axes, *(at or {})) if name not in known]:
        raise ValueError(
            f"values names {', '.join(map(repr, unknown))}, but the hyperparameters of the model are: {listed}."
            f"{did_you_mean(unknown, known)}"
        )
    for name, taken in axes.items():
        if taken.ndim != 1 or not taken.size or not np.isfinite(taken).all():
            raise ValueError(f"values[{name!r}] must be a vector of finite numbers, but is {taken}.")
    if missing := [name for name in known if name not in axes and name not in (at or {})]:
        raise ValueError(f"The hyperparameters {', '.join(map(repr, missing))} have no value. Fix them: at={{...}}.")
    initial = initial_point(classifier.model)
    model = classifier.model
    shapes = {name: np.shape(initial[model.rvs_to_values[rv].name]) for name, rv in known.items()}
    return {
        name: np.zeros(shapes[name]) if name in axes else np.asarray((at or {})[name], dtype=np.float64)
        for name in known
    }
