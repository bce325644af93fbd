"""Leave-one-out cross-validation of a fit, row by row, or by groups of rows as a user names them.

The latent values of a row given the other labels have the posterior with the site of that row left out, see
`pymc_gpep.log_posteriors.latent_functions.leave_one_out_moments`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Constant, Variable
from scipy.special import logsumexp, softmax

from pymc_gpep.argument_types import check_switches, check_whole, did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.checks.left_out import Groups, LeftOutGroup, harmonic, left_out_group
from pymc_gpep.fits.fitted import Fitted, Gp
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.team import one_blas_thread

if TYPE_CHECKING:
    from pymc_gpep.checks.left_out import LeaveOneOut

_SEED = 2016  # the same fit has the same answer


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
    """Leave-one-out cross-validation from this one fit (Vehtari, Mononen, Tolvanen, Sivula and Winther 2016).

    The log predictive density of each label given all the others is log ∫ p(y_i | f_i) q₋ᵢ(f_i) df_i. Here q₋ᵢ is
    the cavity: the posterior of the latent values of a point with its own site left out.

    A fit that integrates over the hyperparameters, `hyper="ccd"` and so on, does so here too, with weights that
    leave the label out. With `hyper="map"` they are held at the maximum. Their dependence on the label that is left
    out stays in then, and their uncertainty stays out. The result is a little too good, the more so the more
    hyperparameters there are for the data. Differences in this between models are differences in `elpd` as well.

    The other sites are held. This is right to first order in what a label does to the others' posterior. At points
    with a large `p_loo_i` it is wrong by some tenths; these can be fitted again at little cost.

    With `groups` all rows of a group are left out together. That is for rows to come of groups that the fit has not
    seen. The density is that of all labels of the group jointly, log ∫ ∏ p(y_i | f_i) q₋(f) df over its rows. Here
    q₋ is the posterior without their sites. It is computed by weighted draws of the fit and of q₋, half of each.

    Inducing inputs and active rows are held as well. Inducing values leave a part of a latent value unsaid. The
    effect of a row's own label on that part is not in `p_loo`, which compares with `predict` at the same inputs.

    Parameters
    ----------
    groups : array_like (n,), str or dict of these, optional
        A label for each row; rows with the same one are left out together. A string names data of the model that
        are such labels, as `"where"` of `alpha[where]`. With several observed variables it is a dict that has them
        by the name of each.
    response : str, optional
        Name of the observed variable whose rows are left out, one by one, where the model has several. If not given
        the rows of all are left out.
    gp : pm.gp.Latent or sequence of them, optional
        Processes that made the latent values, where the graph of the model does not say what their prior is.
    refit_above : float
        Points whose `p_loo_i` from the cavity is larger are left out by approximating the posterior of the others,
        at the same hyperparameters. Each such point takes one solve for each node. A good value is 0.3, and `-inf`
        refits all. Groups are not fitted again.
    draws : int
        How many draws of the latent values of each group its density is an average over; at least 100.
    tolerance : float
        Error to begin with in probabilities that have to be integrated by quasi-Monte Carlo. These are a
        multinomial probit with five classes or more and a softmax with four or more. Where the error would be more
        than a hundredth of a probability, the probability is computed to a higher precision.
    pit : bool
        Whether to return probability integral transforms as well: the probability, given all others, that an
        observation is at most what was seen. These are uniform numbers where the model is right. For a count the
        transform is drawn between the probabilities of less and of at most that (Czado, Gneiting and Held 2009).
        For a censored time it is drawn beyond the bound. Classes have no order, and no transforms.
    progressbar : bool
        Whether to show how many rows are done and the time that is left, where that takes more than a second.

    Returns
    -------
    LeaveOneOut
        An `arviz.ELPDDataLOO` that `az.compare` takes beside results of `az.loo`. `elpd_i` and `p_loo_i`, the
        excess of a label's log density under the whole posterior, have the dims and coords of the labels. There
        are no draws, and so no Pareto k. `warning` is set where the fit, or one without a point, did not converge.
        With `groups` they have a value for each group. Draws then have an `error_i`, and a `pareto_k`, which is
        above 0.7 where the density of a group is not known well.

    With `pit` there is `pit_i`.

    Raises
    ------
    TypeError
        If `pit` is asked for, and observations are classes or left out by groups.
    NotImplementedError
        If sites leave several functions of a row independent. Without the site of a row its functions do not move
        as they would without its label. If there is a `refit_above`, and the fit has no joint posterior of all
        latent values.
    ValueError
        If there is no posterior, or if the rows came from `data=...` and this fit from a file, which has none. If
        groups do not fit the rows, or are to be fitted again.

    Examples
    --------
    >>> fit.loo(groups="where")
    >>> fit.loo(groups=school)
    """
    check_switches(pit=pit)
    if groups is not None:
        if pit or response:
            asked = "pit=True" if pit else "response=..."
            raise TypeError(f"{asked} is for rows that are left out one by one: ask for it without groups.")
        return _groups_left_out(fit, groups, gp, refit_above, draws, tolerance, progressbar)
    if refit_above < np.inf:
        fit.log_posterior.check_joint("loo(refit_above=...)")
    return _rows_left_out(fit, response, gp, refit_above, tolerance, pit, progressbar)


def _rows_left_out(
    fit: Fitted, response: str | None, gp: Gp, refit_above: float, tolerance: float, pit: bool, progressbar: bool
) -> "LeaveOneOut":
    from pymc_gpep.checks.left_out import summed_up  # with it comes ArviZ

    classifier, weights, n_points = fit.classifier, fit.hyper_posterior.weights, len(fit.labels(gp))
    converged, several = fit.converged, bool(classifier.parts)
    classifier = classifier if response is None else classifier.part(response, "loo")
    wanted = classifier.rows if several else slice(0, n_points)
    within, without = np.full((2, len(weights), n_points), np.nan)  # log densities (node, row)
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
    # Solutions that are not kept in memory are solved again; without rows to refit that would be for nothing.
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
    elpd = harmonic(log_weights, without)[wanted]
    return summed_up(classifier, fit.name, lpd[wanted], elpd, converged, len(refitted), fit.rows is None, transforms)


def _different(alike: NDArray[np.int64] | None, rows: slice) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first of equal ones among some rows, (k,), and which of these each row is equal to, (B,)."""
    if alike is None:
        every = np.arange(rows.stop - rows.start)
        return every, every
    _, first, back = np.unique(alike[rows], return_index=True, return_inverse=True)
    return first, back


def _within(left_out: Iterable[LeftOut], wanted: slice) -> Iterator[LeftOut]:
    """Yield what is left out at rows that are wanted."""
    for rows, mean, cov, log_density in left_out:
        cut = slice(max(rows.start, wanted.start), min(rows.stop, wanted.stop))
        if cut.start < cut.stop:
            own = slice(cut.start - rows.start, cut.stop - rows.start)
            yield LeftOut(cut, mean[own], cov[own], None if log_density is None else log_density[own])


def _drawn_between(below: Array, at: Array) -> Array:
    """Uniform numbers (n,) between two ends, always the same ones."""
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
        raise ValueError("refit_above is for rows; groups are not fitted again. Leave one of the two out.")
    check_whole("draws", draws, 100)
    from pymc_gpep.checks.left_out import groups_summed_up  # with it comes ArviZ

    chosen, weights = _groups_of_rows(fit.classifier, groups, fit.log_posterior.space.data), fit.hyper_posterior.weights
    found = np.empty((len(LeftOutGroup._fields), len(weights), len(chosen.rows)))
    n_rows = sum(map(len, chosen.rows))
    with RowProgress("Leaving out", len(weights) * n_rows, progressbar) as progress:
        for s, functions in enumerate(fit.functions(gp)):
            for g, rows in enumerate(chosen.rows):
                found[:, s, g] = left_out_group(functions.group(rows), draws, tolerance)
                progress.advance(len(rows))
    without, within, error, pareto_k = found
    log_weights = np.log(weights)[:, None]
    elpd = harmonic(log_weights, without)
    lpd = logsumexp(log_weights + within, axis=0)
    # The errors of nodes, which share draws, count as the densities of their labels do.
    share = softmax(log_weights - without, axis=0)
    sampled = (share * error).sum(axis=0), pareto_k.max(axis=0)
    converged = fit.converged and bool(np.isfinite(elpd).all())
    return groups_summed_up(fit.classifier, fit.name, chosen, lpd, elpd, sampled, converged, draws)


def _groups_of_rows(
    classifier: GPClassifier,
    groups: ArrayLike | str | Mapping[str, ArrayLike | str],
    data: Mapping[Variable, Variable],
) -> Groups:
    """Return the rows of each group, of those that were fitted; `data` are the model's with their constants.

    Raises
    ------
    ValueError
        If there is no label for a row, if all rows have the same one, or if the model has no data of that name.
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
    if unknown := [i for i, label in enumerate(given.tolist()) if label is None or label != label]:  # NaN
        raise ValueError(f"groups has no label for {len(unknown)} rows, the first of which is {unknown[0]}.")
    found, place = np.unique(given, return_inverse=True)
    if len(found) < 2:
        raise ValueError("groups has one label for all rows. There must be another group to predict one from.")
    order = np.argsort(place, kind="stable")
    return Groups(name, found, np.split(order, np.cumsum(np.bincount(place))[:-1]))


def _labels_at(classifier: GPClassifier, groups: ArrayLike | str, data: Mapping[Variable, Variable]) -> NDArray[Any]:
    """Return labels of the rows of an observed variable that were fitted."""
    given = np.asarray(_labels_of(classifier, groups, data) if isinstance(groups, str) else groups)
    n, rows = classifier.rows.stop - classifier.rows.start, classifier.n_rows
    if given.shape not in ((n,), (rows,)):
        raise ValueError(f"groups must be a label for each of {rows} rows, ({rows},), but has the shape {given.shape}.")
    return given[classifier.missing.fitted] if classifier.missing is not None and given.shape == (rows,) else given


def _labels_of(classifier: GPClassifier, name: str, data: Mapping[Variable, Variable]) -> ArrayLike:
    by_name = {str(v.name): value.data for v, value in data.items() if isinstance(value, Constant)}
    own = [v.name for v in classifier.model.data_vars]
    if name not in own or name not in by_name:
        raise ValueError(
            f"groups is {name!r}, but the data of the model are {', '.join(map(repr, own)) or 'none'}. Give an array "
            f"of labels, or put the index into the model as pm.Data.{did_you_mean([name], own)}"
        )
    values: ArrayLike = by_name[name]
    return values
