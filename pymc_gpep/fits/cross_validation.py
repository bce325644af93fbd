"""Leave-one-out cross-validation of a fit, by rows or by groups of rows.

To leave a row out, the site of this row is removed from the posterior of the latent values, see
`pymc_gpep.log_posteriors.latent_functions.leave_one_out_moments`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Constant, Variable
from scipy.special import logsumexp, softmax

from pymc_gpep.argument_types import check_switches, check_whole, did_you_mean, few_of
from pymc_gpep.array_types import Array
from pymc_gpep.checks.left_out import Groups, LeftOutGroup, harmonic, left_out_group
from pymc_gpep.fits.fitted import Fitted, Gp
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.likelihoods.local_computations import ScalarDensity
from pymc_gpep.prior_moments.proper_posteriors import check_columns
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn

if TYPE_CHECKING:
    from pymc_gpep.checks.left_out import LeaveOneOut

_SEED = 2016  # Fixed seed of the draws, so that equal fits return equal results.


@one_blas_thread()
def loo(
    fit: Fitted,
    *,
    groups: ArrayLike | str | Mapping[str, ArrayLike | str] | None = None,
    response: str | None = None,
    gp: Gp = None,
    refit_above: float = np.inf,
    draws: int = 1000,
    tolerance: float = 5e-5,
    pit: bool = False,
    progressbar: bool = True,
) -> "LeaveOneOut":
    """Estimate leave-one-out scores from this fit (Vehtari, Mononen, Tolvanen, Sivula and Winther 2016).

    The log predictive density of each label given all other labels is log ∫ p(y_i | f_i) q₋ᵢ(f_i) df_i. Here q₋ᵢ is the
    cavity: the posterior of the latent values of a point with its own site left out.

    If the fit integrates over the hyperparameters, this function also integrates. The weights of the nodes then leave
    the label out. With `hyper="map"` the hyperparameters stay at the maximum. This maximum depends on the left-out
    label, so scores are a little too good. The bias grows with the number of hyperparameters.

    The sites of all other points stay fixed. This is accurate to first order in the effect of a label. At points with a
    large `p_loo_i` the error of `elpd_i` is some tenths. `refit_above` solves again without each of these points.

    With `groups` all rows of a group are left out together, to score predictions of unseen groups. The score is the
    joint log density of all labels of the group, log ∫ ∏ p(y_i | f_i) q₋(f) df over its rows. Here q₋ is the posterior
    without their sites. The density is estimated from weighted draws, half of them from the posterior of the fit and
    half from q₋.

    Inducing inputs and active rows stay fixed as well. A label also changes the residual variance of its row given the
    inducing values; `p_loo` omits this effect.

    Parameters
    ----------
    groups : array_like (n,), str or dict of these, optional
        A label for each row; rows with equal labels are left out together. A string is the name of data of the model,
        such as `"where"` of `alpha[where]`, or of a dim of an observed array. With several observed variables, pass a
        dict by their names. By default a vector with correlated noise is a group.
    response : str, optional
        Name of an observed variable, if the model has several. Only its rows are left out. By default the rows of all
        observed variables are left out.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, if their prior cannot be read from the graph of the model.
    refit_above : float
        Threshold of `p_loo_i`. For a point above it, the posterior given the other points is approximated again at the
        same hyperparameters, which takes one solve for each node. A good value is 0.3; `-inf` includes all points, and
        the default none. It cannot be combined with `groups`.
    draws : int
        Number of draws of the latent values for the density of a group, at least 100.
    tolerance : float
        Allowed absolute error of probabilities by quasi-Monte Carlo integration, for a multinomial probit with five
        classes or more and a softmax with four or more. If the error of a probability is above a hundredth of its
        value, it is computed again with a smaller error.
    pit : bool
        Whether to return probability integral transforms as well: the probability of an observation at most as large as
        the label, given all other labels. They are uniform if the model is right. For a count y the transform is drawn
        uniformly between P(< y) and P(≤ y) (Czado, Gneiting and Held 2009). For a censored time it is drawn uniformly
        among the probabilities beyond the bound. Classes have no transforms.
    progressbar : bool
        Whether to show progress if the computation takes more than a second.

    Returns
    -------
    LeaveOneOut
        An `arviz.ELPDDataLOO` for `az.compare`. `elpd_i` and `p_loo_i` have the dims and coords of the labels.
        `p_loo_i` is the log density of a label under the full posterior minus `elpd_i`. Without groups the result has
        no Pareto k. `warning` is True if the fit, or a repeated solve, did not converge. With `groups` there is a value
        for each group, with a standard error `error_i`. A `pareto_k` above 0.7 means that the density of a group is
        inaccurate. Coefficients with a flat prior may have an improper posterior without the rows of a group; then
        `elpd_i` of the group is NaN.

    With `pit` there is also `pit_i`.

    Raises
    ------
    TypeError
        If `pit` is True, and observations are classes or left out by groups.
    NotImplementedError
        If the approximation treats the functions of a row as independent. If `refit_above` is given, and the fit has no
        joint posterior of all latent values.
    ValueError
        If the posterior is not proper. If the rows came from `data=...` and the fit was read from a file: files do not
        contain rows. If groups do not match the rows, or are combined with `refit_above`.

    Warns
    -----
    UserWarning
        If `elpd_i` of a group is NaN. The message lists the groups.

    Examples
    --------
    >>> fit.loo(groups="where")
    >>> fit.loo(groups=school)
    """
    check_switches(pit=pit)
    if groups is None and response is None:
        groups = _vectors(fit.classifier)
    if groups is not None:
        if pit or response:
            asked = "pit=True" if pit else "response=..."
            raise TypeError(f"{asked} applies to rows that are left out one by one. Remove groups=...")
        return _groups_left_out(fit, groups, gp, refit_above, draws, tolerance, progressbar)
    if refit_above < np.inf:
        fit.log_posterior.check_joint("loo(refit_above=...)")
    return _rows_left_out(fit, response, gp, refit_above, tolerance, pit, progressbar)


def _vectors(classifier: GPClassifier) -> str | None:
    """Return the dim of vectors with correlated noise, since a vector is left out whole; None without such vectors.

    Raises
    ------
    ValueError
        If all entries of a response are a single vector, or if the model has several responses.
    """
    for part in classifier.each:
        axes, name = part.axes, part.response
        if axes is None or not axes.vectors:
            continue
        if axes.vectors == len(axes.dims):
            raise ValueError(
                f"The noise of all entries of {name!r} is correlated, so a single entry cannot be left out. "
                f"Score each entry given the entries before it: loo(groups=np.arange({np.prod(axes.shape)}))."
            )
        if classifier.parts:
            raise ValueError(
                f"The noise of entries of {name!r} is correlated along {axes.dims[-1]!r}. Leave vectors out whole: "
                f"loo(groups={{{name!r}: {axes.dims[0]!r}, ...}}), with labels for the rows of each response."
            )
        return axes.dims[0]
    return None


def _rows_left_out(
    fit: Fitted, response: str | None, gp: Gp, refit_above: float, tolerance: float, pit: bool, progressbar: bool
) -> "LeaveOneOut":
    from pymc_gpep.checks.left_out import ROUGH, summed_up  # This slow import loads ArviZ.

    classifier, weights, n_points = fit.classifier, fit.hyper_posterior.weights, len(fit.labels(gp))
    converged, several = fit.converged, bool(classifier.parts)
    classifier = classifier if response is None else classifier.part(response, "loo")
    wanted = (classifier.rows if response else classifier.seen) if several else slice(0, n_points)
    # Log densities (node, row) of each label: posterior given all labels, and given all other labels.
    within, without = np.full((2, len(weights), n_points), np.nan)
    ends = np.full((2, len(weights), n_points), np.nan) if pit else None
    with RowProgress("Leaving out", len(weights) * (wanted.stop - wanted.start), progressbar) as progress:
        for s, functions in enumerate(fit.functions(gp)):
            left_out, y, likelihood = functions.left_out(), functions.labels, functions.likelihood
            for rows, mean, cov, log_density in _within(left_out, wanted):
                at, back = _different(functions.alike, rows)
                chosen = at + rows.start
                own, own_y = likelihood.at(chosen), y[chosen]
                alone = log_predictive(own, mean[at], cov[at], own_y, tolerance=tolerance)
                if log_density is not None:
                    alone = np.where(np.isnan(log_density[at]), alone, log_density[at])
                without[s, rows] = alone[back]
                if ends is not None:
                    ends[:, s, rows] = np.stack(own.ends(own_y, mean[at], cov[at]))[:, back]
                own_mean, own_cov = functions.at_rows(rows)
                whole = log_predictive(own, own_mean.T[at], own_cov[at], own_y, tolerance=tolerance)
                within[s, rows] = whole[back]
                progress.advance(len(mean))
    log_weights = np.log(weights)[:, None]
    lpd = logsumexp(log_weights + within, axis=0)
    elpd = harmonic(log_weights, without)
    refitted = np.flatnonzero(lpd - elpd > refit_above) if len(lpd) > 1 else np.arange(0)
    # Only `refit_above` needs the solutions of all nodes. Solutions that are not in memory are computed again.
    with RowProgress("Refitting without", len(weights) * refitted.size, progressbar) as progress:
        for s, functions in enumerate(fit.functions(gp) if refitted.size else ()):
            for i in refitted:
                (_, mean, cov, log_density), succeeded = functions.refitted(int(i))
                likelihood, y = functions.likelihood.at([i]), functions.labels[[i]]
                if log_density is None:
                    log_density = log_predictive(likelihood, mean, cov, y, tolerance=tolerance)
                without[s, [i]] = log_density
                if ends is not None:
                    ends[:, s, [i]] = likelihood.ends(y, mean, cov)
                converged = converged and succeeded
                progress.advance(1)
    transforms = (
        None if ends is None else _drawn_between(*np.sum(softmax(log_weights - without, axis=0) * ends, axis=1))[wanted]
    )
    elpd = harmonic(log_weights, without)
    rough = np.setdiff1d(np.flatnonzero(lpd - elpd > ROUGH), refitted)
    n_rough = 0 if _has_moments(fit) else int(np.isin(rough, np.arange(wanted.start, wanted.stop)).sum())
    return summed_up(
        classifier, fit.name, lpd[wanted], elpd[wanted], converged, len(refitted), fit.rows is None, transforms, n_rough
    )


def _has_moments(fit: Fitted) -> bool:
    """Return whether leave-one-out moments are valid: sites match tilted moments (EP), or the noise is normal."""
    log_posterior, solution = fit.log_posterior, fit.solution
    if not log_posterior.joint or log_posterior.approximator.matches_moments:
        return True
    if not solution.likelihood.offers(ScalarDensity) or len(solution.mean) > 1:
        return False
    found = np.empty((4, solution.mean.size))
    kernel = solution.likelihood.computation(ScalarDensity).derivatives
    kernel(np.ascontiguousarray(solution.mean[0]), solution.labels, solution.likelihood.parameters, found)
    return not found[3].any()


def _different(alike: NDArray[np.int64] | None, rows: slice) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the position of each distinct row, (k,), and for each of B rows the index of its distinct row, (B,)."""
    if alike is None:
        every = np.arange(rows.stop - rows.start)
        return every, every
    _, first, back = np.unique(alike[rows], return_index=True, return_inverse=True)
    return first, back


def _within(left_out: Iterable[LeftOut], wanted: slice) -> Iterator[LeftOut]:
    """Yield the left-out results of rows in the slice `wanted`."""
    for rows, mean, cov, log_density in left_out:
        cut = slice(max(rows.start, wanted.start), min(rows.stop, wanted.stop))
        if cut.start < cut.stop:
            own = slice(cut.start - rows.start, cut.stop - rows.start)
            yield LeftOut(cut, mean[own], cov[own], None if log_density is None else log_density[own])


def _drawn_between(below: Array, at: Array) -> Array:
    """Draw a uniform number between `below` and `at` for each row, (n,), with a constant seed."""
    return below + np.random.default_rng(_SEED).random(len(at)) * (at - below)


def _groups_left_out(
    fit: Fitted,
    groups: ArrayLike | str | Mapping[str, ArrayLike | str],
    gp: Gp,
    refit_above: float,
    draws: int,
    tolerance: float,
    progressbar: bool,
) -> "LeaveOneOut":
    fit.log_posterior.check_joint("loo(groups=...)")
    if refit_above < np.inf:
        raise ValueError("refit_above applies to single rows, not to groups. Remove refit_above or groups=...")
    check_whole("draws", draws, 100)
    from pymc_gpep.checks.left_out import groups_summed_up  # This slow import loads ArviZ.

    chosen, weights = _groups_of_rows(fit.classifier, groups, fit.log_posterior.space.data), fit.hyper_posterior.weights
    found = np.empty((len(LeftOutGroup._fields), len(weights), len(chosen.rows)))
    n_rows, improper = sum(map(len, chosen.rows)), np.zeros(len(chosen.rows), bool)
    with RowProgress("Leaving out", len(weights) * n_rows, progressbar) as progress:
        for s, functions in enumerate(fit.functions(gp)):
            if s == 0:  # The columns of flat coefficients are the same at all nodes.
                improper = _leaves_open(fit.classifier, functions, chosen)
            for g, rows in enumerate(chosen.rows):
                found[:, s, g] = np.nan if improper[g] else left_out_group(functions.group(rows), draws, tolerance)
                progress.advance(len(rows))
    if improper.any():
        names = few_of(map(repr, chosen.labels[improper].tolist()))
        warn(
            f"elpd_i is NaN for the groups {names}: without the rows of these groups, coefficients with a flat prior "
            "are undetermined. Give these coefficients a density, such as pm.Normal('b', 0, s)."
        )
    without, within, error, pareto_k = found
    log_weights = np.log(weights)[:, None]
    elpd = harmonic(log_weights, without)
    lpd = logsumexp(log_weights + within, axis=0)
    # All nodes use the same draws, so their errors are added. Node weights are w / p(left-out rows | other rows).
    share = softmax(log_weights - without, axis=0)
    sampled = (share * error).sum(axis=0), np.where(np.isnan(pareto_k), np.inf, pareto_k).max(axis=0)
    converged = fit.converged and bool(np.isfinite(elpd).all())
    return groups_summed_up(fit.classifier, fit.name, chosen, lpd, elpd, sampled, converged, draws)


def _leaves_open(classifier: GPClassifier, functions: Any, chosen: Groups) -> NDArray[np.bool_]:
    """Return a mask (groups,): True if the posterior of flat coefficients is improper without the group."""
    found = np.zeros(len(chosen.rows), bool)
    if not classifier.prior.flat:
        return found
    columns = functions.solution.posterior.prior.flat_columns
    of = np.arange(columns.shape[1]) if classifier.groups is None else classifier.groups.of
    for g, rows in enumerate(chosen.rows):
        others = np.delete(np.arange(len(of)), rows)
        own = columns[:, of[others]], functions.labels[others], functions.likelihood.at(others)
        # `own` leaves out the rows of the group. `first` also leaves out other rows with the same latent values.
        first = np.delete(columns, of[rows], axis=1).reshape(-1, columns.shape[2])
        try:
            check_columns(*own, classifier.prior.recipes)
            found[g] = np.linalg.matrix_rank(first) < first.shape[1]
        except StructureError:
            found[g] = True
    return found


def _groups_of_rows(
    classifier: GPClassifier,
    groups: ArrayLike | str | Mapping[str, ArrayLike | str],
    data: Mapping[Variable, Variable],
) -> Groups:
    """Return the positions of the fitted rows of each group. `data` maps the data of the model to constants.

    Raises
    ------
    ValueError
        If a row has no label, if all labels are equal, or if the model has no data with the name `groups`.
    """
    by_name = groups if isinstance(groups, Mapping) else {classifier.response: groups}
    if by_name.keys() != (own := {part.response for part in classifier.each}):
        raise ValueError(
            f"groups must have labels for the rows of each observed variable, {', '.join(map(repr, sorted(own)))}: "
            "groups={name: labels, ...}."
        )
    names = {each if isinstance(each, str) else "group" for each in by_name.values()}
    name = names.pop() if len(names) == 1 else "group"
    given = np.concatenate([_labels_at(part, by_name[part.response], data) for part in classifier.each])
    # NaN differs from itself.
    if unknown := [i for i, label in enumerate(given.tolist()) if label is None or label != label]:
        raise ValueError(f"groups has no label for {len(unknown)} rows. The first is row {unknown[0]}.")
    along = len(by_name) == 1 and classifier.axes is not None and name in classifier.axes.dims
    # Labels of a dim stay in the order of the dim. Other labels are sorted.
    place, found = pd.factorize(given, sort=not along)
    if len(found) < 2:
        raise ValueError("groups has one label for all rows. Give at least two different labels.")
    order = np.argsort(place, kind="stable")
    return Groups(name, found, np.split(order, np.cumsum(np.bincount(place))[:-1]))


def _labels_at(classifier: GPClassifier, groups: ArrayLike | str, data: Mapping[Variable, Variable]) -> NDArray[Any]:
    """Return the group labels of the fitted rows, from labels or from the name of data or of a dim."""
    given = np.asarray(_labels_of(classifier, groups, data) if isinstance(groups, str) else groups)
    given = given.ravel() if classifier.axes is not None and given.shape == classifier.axes.shape else given
    n, rows = classifier.rows.stop - classifier.rows.start, classifier.n_rows
    if given.shape not in ((n,), (rows,)):
        raise ValueError(f"groups must have a label for each of {rows} rows, but has the shape {given.shape}.")
    return given[classifier.missing.fitted] if classifier.missing is not None and given.shape == (rows,) else given


def _labels_of(classifier: GPClassifier, name: str, data: Mapping[Variable, Variable]) -> ArrayLike:
    by_name = {str(v.name): value.data for v, value in data.items() if isinstance(value, Constant)}
    own = [v.name for v in classifier.model.data_vars]
    if classifier.axes is not None and name in classifier.axes.dims:
        return classifier.labels_of_rows()[name]
    if name not in own or name not in by_name:
        raise ValueError(
            f"groups is {name!r}, but the data of the model are {', '.join(map(repr, own)) or 'none'}. Give an array "
            f"of labels, or put the index into the model as pm.Data.{did_you_mean([name], own)}"
        )
    values: ArrayLike = by_name[name]
    return values
