"""Third and fourth cumulants of tilted distributions, for skewed marginals and for corrections of EP.

In EP, a factor t depends on a single number g. The tilted distribution of g is its cavity N(μ, D) times t. At a fixed
point the tilted distribution has the mean and variance of g under the posterior. Let h(μ) = log ∫ t(g) N(g | μ, D) dg.
The tilted cumulant of order l > 2 is D^l times the derivative of order l of h.

For skewed marginals, the factor of a row is its likelihood p(y | f). With one latent function, f is a number, and the
third cumulant is D³ h‴. With c functions, the third cumulant is an array (c, c, c). It is computed from weighted
points: normal numbers with variance s², and their mirror images. The weights contain the ratio of likelihood to site.
For a Gaussian, the third cumulants are exactly 0 because of the mirror images.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtri, softmax
from scipy.stats import qmc

from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.local_computations import GaussianAverage

_BLOCK = 50_000  # Largest number of correlations in a block of rows.


class TiltedFactors(NamedTuple):
    """Factors of EP at its fixed point, each of one number g. The unit of g is its posterior standard deviation."""

    evidence: float
    """EP's log evidence at the fixed point."""
    converged: bool
    """Whether EP converged to a fixed point."""
    correlation: Array
    """Posterior correlations of all g, (N, N)."""
    third: Array
    """Third cumulants of the tilted distributions, (N,)."""
    fourth: Array
    """Fourth cumulants, (N,)."""

    @property
    def lines(self) -> Array:
        """Posterior correlations between different factors (N, N), zero on the diagonal."""
        return self.correlation - np.diag(self.correlation.diagonal())

    @property
    def two_loops(self) -> Array:
        """Second-order correction of EP's log evidence, as a sum of contributions (N,) of the factors.

        The contribution of factor s is Σ_t κ₃(s) κ₃(t) ρ_st³ / 12, with third cumulants κ₃ and the correlations ρ in
        `lines` (Opper, Paquet and Winther 2013, section 3).
        """
        return self.third * self.by_cubes(self.third) / 12.0

    def by_cubes(self, weights: Array) -> Array:
        """Return Σ_t ρ_st³ w_t over all other factors t, (N,), for correlations ρ and `weights` w."""
        return np.concatenate([(lines * lines * lines) @ weights for lines in self._lines])

    def by_fourth_powers(self, weights: Array) -> Array:
        """Return Σ_t ρ_st⁴ w_t over all other factors t, (N,), for correlations ρ and `weights` w."""
        return np.concatenate([((square := lines * lines) * square) @ weights for lines in self._lines])

    @property
    def _lines(self) -> Iterator[Array]:
        """Blocks of rows of `lines` that fit into a processor's cache."""
        step = max(1, _BLOCK // max(len(self.third), 1))
        for start in range(0, len(self.third), step):
            block = self.correlation[start : start + step].copy()
            block[np.arange(len(block)), start + np.arange(len(block))] = 0.0
            yield block


class ScalarCavities(NamedTuple):
    """Cavities of factors that each depend on one number g, and the joint posterior covariance of all g."""

    covariance: Array
    """Posterior covariance of all g, (N, N)."""
    mean: Array
    """Cavity mean of each g, (N,)."""
    variance: Array
    """Cavity variance of each g, (N,)."""


def tilted_factors(
    solution: Solution, cavities: ScalarCavities, average: Callable[..., object], labels: Observed
) -> TiltedFactors:
    """Return the factors of EP at its fixed point, with their cumulants.

    Parameters
    ----------
    solution : Solution
        Fixed point of EP.
    cavities : ScalarCavities
    average : callable
        Kernel that writes log normalisers of tilted distributions and their derivatives, such as `terms` of
        `pymc_gpep.likelihoods.local_computations.GaussianAverage`.
    labels : array (N,)
        Labels of the factors.
    """
    h = np.empty((5, len(labels)))
    average(cavities.mean, cavities.variance, labels, solution.likelihood.parameters, h)
    scale = 1.0 / np.sqrt(cavities.covariance.diagonal())
    unit = cavities.variance * scale
    correlation = cavities.covariance * scale[:, None] * scale
    converged = solution.convergence.converged
    return TiltedFactors(solution.evidence, converged, correlation, unit**3 * h[3], unit**4 * h[4])


def difference_cavities(solution: Solution, alpha: Array, beta: Array) -> ScalarCavities:
    """Return the cavities of differences g_j = f_y − f_j + u of the latent values f of each point.

    Here y is the label of the point, j another class, and u the standard normal noise of the probit. Each g_j has a
    site with precision α and location β, in arrays (n, c − 1). Given f and the sites, u has the precision 1 + 1ᵀα and
    the mean (1ᵀβ − Σ α_j (f_y − f_j)) / (1 + 1ᵀα).
    """
    y, posterior = solution.labels, solution.posterior
    c, n = solution.mean.shape
    points = np.arange(n)
    others = np.array([np.delete(np.arange(c), label) for label in y])
    total = 1.0 + alpha.sum(axis=1)
    # Matrix that maps the differences f_y − f_j of a point to the means of its g.
    reaction = np.eye(c - 1) - (alpha / total[:, None])[:, None, :]

    cov = posterior.covariance_among(points)
    cov = cov[y, points][:, None] - cov[others, points[:, None]]
    cov = cov[:, :, y, points][..., None] - cov[:, :, others, points[:, None]]
    cov = np.einsum("iab,ibjd->iajd", reaction, cov)
    cov = np.einsum("jcd,iajd->iajc", reaction, cov)
    cov[points, :, points, :] += (1.0 / total)[:, None, None]

    differences = solution.mean[y, points][:, None] - solution.mean[others, points[:, None]]
    mean = np.einsum("iab,ib->ia", reaction, differences) + (beta.sum(axis=1) / total)[:, None]
    size = n * (c - 1)
    whole, precision = cov.reshape(size, size), alpha.reshape(size)
    variance = whole.diagonal()
    kept = 1.0 - precision * variance
    return ScalarCavities(whole, (mean.reshape(size) - beta.reshape(size) * variance) / kept, variance / kept)


_LOG2_POINTS = 9  # Base-2 logarithm of the number of points, without mirror images.
_WIDER = 1.5  # Variance of the points, in units of the posterior variance. Cavities may be three times as wide.
_AT_A_TIME = 1_000_000  # Largest number of latent values in a batch of points.
_ROUNDING = 1e-12  # Eigenvalues of a covariance below this fraction of the largest count as 0.
DISTANCES = 61  # Number of distances of a combination t from its mean at which `log_ratios` is evaluated.
_PROPER = 1e-3  # Smallest share of the precision of a latent value given t that remains without the site of its row.
_NARROW = 1e-12  # Variances of a latent value given t are at least this fraction of its posterior variance.
_SWEEPS, _UNDAMPED, _TOLERANCE = 80, 20, 1e-6  # EP given t: limit on sweeps, sweeps without damping, tolerance.
_EVERY = 3  # EP given t is run at every third of the `DISTANCES`.
_SHARE = 3e-3  # Largest total probability of the distances at which EP given t may fail.
_SEED = 20_090_401


def third_cumulants(solution: Solution) -> Array | None:
    """Return arrays A_i (n, c, c, c) that determine third cumulants of linear combinations of latent values.

    A combination t has the third cumulant Σ_i A_i(k_i, k_i, k_i), where k_i = Cov(f_i, t) for the latent values f_i
    (c,) of row i. A_i is the third cumulant of the tilted distribution of f_i, multiplied along each axis by the
    inverse posterior covariance of f_i. Cavities are computed from the Gaussian posterior of any approximation.

    Returns
    -------
    array (n, c, c, c) or None
        None if the likelihood of one function does not offer `GaussianAverage`.
    """
    if len(solution.mean) > 1:
        return _of_several(solution)
    likelihood = solution.likelihood
    if not likelihood.offers(GaussianAverage):
        return None
    mean, wide = solution.posterior.cavities(solution.mean, solution.cov)
    mean, wide = np.ascontiguousarray(mean[:, 0]), np.ascontiguousarray(wide[:, 0, 0])
    h = np.empty((5, mean.size))
    likelihood.computation(GaussianAverage).terms(mean, wide, solution.labels, likelihood.parameters, h)
    cumulants, variance = wide**3 * h[3], solution.cov[:, 0, 0]
    usable = (variance > 0.0) & np.isfinite(cumulants)
    found = np.divide(cumulants, variance**3, out=np.zeros_like(variance), where=usable)
    return np.asarray(found[:, None, None, None])


def _of_several(solution: Solution) -> Array:
    """Return `third_cumulants` of several functions, from weighted points mean + R z with row covariances R Rᵀ."""
    c, n = solution.mean.shape
    values, vectors = np.linalg.eigh(solution.cov)
    kept = values > _ROUNDING * values[:, -1:]
    scale = np.sqrt(np.where(kept, values, 1.0))
    roots = vectors * np.where(kept, scale, 0.0)[:, None, :]
    inverse = (vectors * np.where(kept, 1.0 / scale, 0.0)[:, None, :]).swapaxes(1, 2)
    z = _points(c)
    log_weights = np.empty((len(z), n))
    step = max(1, _AT_A_TIME // (c * n))
    for start in range(0, len(z), step):
        some = slice(start, start + step)
        log_weights[some] = _log_ratios(solution, np.einsum("iab,sb->sai", roots, z[some]))
    log_weights -= (0.5 * (1.0 - 1.0 / _WIDER) * (z**2).sum(axis=1))[:, None]
    log_weights[np.isnan(log_weights)] = -np.inf
    weights = softmax(log_weights, axis=0).T
    first = weights @ z
    squares = np.einsum("sa,sb->sab", z, z)
    second = np.tensordot(weights, squares, 1)
    third = (weights @ np.einsum("sab,sd->sabd", squares, z).reshape(len(z), -1)).reshape(n, c, c, c)
    mixed = np.einsum("iab,id->iabd", second, first)
    third -= mixed + mixed.transpose(0, 1, 3, 2) + mixed.transpose(0, 3, 1, 2)
    third += 2.0 * np.einsum("ia,ib,id->iabd", first, first, first)
    third = np.where(np.isfinite(third).all(axis=(1, 2, 3), keepdims=True), third, 0.0)
    return np.einsum("ijkl,ija,ikb,ild->iabd", third, inverse, inverse, inverse, optimize=True)


def _log_ratios(solution: Solution, x: Array) -> Array:
    """Return log likelihoods minus log sites, (s, n), at mean + x, x (s, c, n). Log sites are 0 at the mean."""
    posterior, f = solution.posterior, solution.mean + x
    log_sites = ((posterior.weights - 0.5 * posterior.sites.product(x)) * x).sum(axis=1)
    return solution.likelihood.log_densities(f, solution.labels) - log_sites


@lru_cache(maxsize=8)
def _points(c: int) -> Array:
    """Return quasi-random normal numbers (s, c) with variance `_WIDER`, and after these their mirror images."""
    u = qmc.Sobol(c, rng=_SEED).random_base2(_LOG2_POINTS)
    z = np.sqrt(_WIDER) * ndtri(np.clip(u, 1e-12, 1.0 - 1e-12))
    return np.concatenate([z, -z])


def second_order(weights: Array, cov: Array) -> Array:
    """Return a matrix M (nc, nc) that determines second-order corrections of variances of linear combinations.

    For a combination t of latent values, the correction of Var t is kᵀMk with k = Cov(f, t). Diagonal blocks of M are
    0. The block of rows i and j is ½ A_i(·, b, e) C_ij(b, f) C_ij(e, g) A_j(·, f, g), summed over the functions b, e,
    f, g. Here C is the posterior covariance `cov`, and A are the `weights`.

    Parameters
    ----------
    weights : array (n, c, c, c)
        Arrays A_i of `third_cumulants`.
    cov : array (c, n, c, n)
        Posterior covariance of latent values.
    """
    c, n = cov.shape[:2]
    if c == 1:
        own, pairs = weights.reshape(n), cov.reshape(n, n)
        pairs = 0.5 * own * pairs * pairs
        pairs *= own[:, None]
        np.fill_diagonal(pairs, 0.0)
        return pairs
    found = np.empty((n, c, n, c))
    for i, own in enumerate(weights):
        with_others = cov[:, i]
        half = np.einsum("aefj,egj->afgj", np.tensordot(own, with_others, 1), with_others)
        found[i] = 0.5 * np.einsum("afgj,jdfg->ajd", half, weights)
        found[i, :, i] = 0.0
    return found.reshape(n * c, n * c)


def log_ratios(solution: Solution, along: Array, variance: float, at: Array, rows: NDArray[np.intp]) -> Array:
    """Return log ratios (G,) of the marginal density of a linear combination t to its Gaussian, up to a constant.

    The log ratio is Σ_i log E[p(y_i | f_i) / site_i(f_i) | t], averaged over the Gaussian posterior of f_i given t.
    This marginal includes all cumulants of each row (Cseke and Heskes 2011, EP-FACT). It is exact if t determines all
    f_i. The result is NaN if a row without its site has no proper distribution given t.

    Parameters
    ----------
    solution : Solution
        A fixed point of EP with one latent function.
    along : array (n,)
        Cov(f_i, t).
    variance : float
        Var t.
    at : array (G,)
        Distances of t from its mean.
    rows : array of int
        Indices i of the rows in the sum.
    """
    cavities = solution.posterior.cavities(solution.mean, solution.cov)
    cavity, wide = (each.reshape(-1)[rows] for each in cavities)
    mean, own, slope = solution.mean[0, rows], solution.cov[rows, 0, 0], along[rows] / variance
    # The site is proportional to exp(shift (f − mean) − ½ precision (f − mean)²).
    precision, shift = 1.0 / own - 1.0 / wide, (mean - cavity) / wide
    given = np.maximum(own - along[rows] * slope, 0.0)
    kept = 1.0 - precision * given
    if not (kept > _PROPER).all():
        return np.full(at.size, np.nan)
    spread = np.maximum(given / kept, _NARROW * own)
    likelihood, labels = solution.likelihood.at(rows), solution.labels[rows]
    average, h, found = likelihood.computation(GaussianAverage), np.empty((5, rows.size)), np.empty(at.size)
    for i, distance in enumerate(at):
        x = slope * distance
        average.terms(mean + (x - shift * given) / kept, spread, labels, likelihood.parameters, h)
        site = precision * x**2 - 2.0 * shift * x + shift**2 * given
        found[i] = (h[0] + 0.5 * site / kept).sum()
    return found


def marginal_log_ratios(
    solution: Solution,
    along: Array,
    variance: float,
    at: Array,
    masses: Array,
    rows: NDArray[np.intp],
    others: NDArray[np.intp],
    most: float,
) -> tuple[Array, bool]:
    """Return log ratios (G,) of the marginal of t to its Gaussian, and whether EP given t corrected them.

    `log_ratios` is evaluated at `DISTANCES` distances, and interpolated between them. If EP of all rows given t is
    cheap, it corrects the ratios at every third distance, to second order in the third cumulants.

    Parameters
    ----------
    solution, along, variance
        See `log_ratios`.
    at : array (G,)
        Increasing distances of t from its mean.
    masses : array (G,)
        Gaussian probability of t near each distance.
    rows : array of int
        Rows that are correlated with t.
    others : array of int
        Rows with a positive variance, except the row of t.
    most : float
        Number of products in one sweep above which EP is not run.
    """
    some = np.linspace(0, at.size - 1, DISTANCES).astype(int)
    first = log_ratios(solution, along, variance, at[some], rows) if rows.size else np.zeros(some.size)
    if not np.isfinite(first).all():
        return np.full(at.size, np.nan), False
    if not rows.size:
        return np.zeros(at.size), False
    few = slice(None, None, _EVERY)
    share = softmax((first + np.log(masses[some]))[few])
    again = _log_evidences(solution, along, variance, at[some][few], others, share, most)
    known = np.isfinite(again)
    refitted = bool(share[~known].sum() <= _SHARE)
    if refitted:
        places = some[few][known]
        change = PchipInterpolator(places, (again - first[few])[known])
        first = first + change(np.clip(some, places[0], places[-1]))
    return PchipInterpolator(some, first)(np.arange(at.size)), refitted


def _log_evidences(
    solution: Solution, along: Array, variance: float, at: Array, rows: NDArray[np.intp], share: Array, most: float
) -> Array:
    """Return EP's log evidence of the rows given t (G,), up to a constant; NaN if EP is expensive or does not converge.

    EP starts at the sites of the fit. With these sites the evidence is `log_ratios` of all rows. `share` (G,) is the
    probability of each distance. EP ends once the unconverged distances have a total probability of at most `_SHARE`.
    """
    root = solution.posterior.root_among(rows)[0]
    if at.size * root.size * root.shape[1] > most:
        return np.full(at.size, np.nan)
    own, slope = solution.cov[rows, 0, 0], along[rows] / variance
    w = np.linalg.lstsq(root, along[rows], rcond=_ROUNDING)[0]
    values, vectors = np.linalg.eigh(np.eye(w.size) - np.outer(w, w) / variance)
    root = root @ (vectors * np.sqrt(np.maximum(values, 0.0)))[:, values > _ROUNDING]
    if not root.shape[1]:  # t determines all rows, so `log_ratios` is exact.
        return np.full(at.size, np.nan)
    start = solution.mean[0, rows] + at[:, None] * slope
    cavity, wide = (each.reshape(-1)[rows] for each in solution.posterior.cavities(solution.mean, solution.cov))
    fitted = np.stack([1.0 / own - 1.0 / wide, solution.mean[0, rows] / own - cavity / wide])  # Precisions, locations.
    likelihood, labels = solution.likelihood.at(rows), solution.labels[rows]
    average, h = likelihood.computation(GaussianAverage), np.empty((at.size, 5, rows.size))
    added = np.zeros((2, at.size, rows.size))
    for sweep in range(_SWEEPS):
        precision = np.eye(root.shape[1]) + np.einsum("gi,ia,ib->gab", added[0], root, root, optimize=True)
        cov, force = np.linalg.inv(precision), added[1] - added[0] * start
        variances = np.maximum(np.einsum("ia,gab,ib->gi", root, cov, root, optimize=True), _NARROW * own)
        pulled = np.einsum("gab,ib,gi->ga", cov, root, force, optimize=True)
        mean = start + pulled @ root.T
        tau, nu = added + fitted[:, None]
        kept = 1.0 - tau * variances
        far, centre = variances / kept, (mean - nu * variances) / kept
        for own_centre, own_far, out in zip(centre, far, h, strict=True):
            average.terms(own_centre, own_far, labels, likelihood.parameters, out)
        h0, h1, h2 = h[:, :3].swapaxes(0, 1)
        rest = 1.0 + far * h2
        step = np.stack([-h2 / rest - tau, (h1 - centre * h2) / rest - nu])
        size = (np.abs(step[0]) * variances + np.abs(step[1] - step[0] * mean) * np.sqrt(variances)).max(axis=1)
        if share[~(size <= _TOLERANCE)].sum() <= _SHARE or not np.isfinite(size).any():
            break
        step[:, ~(size > _TOLERANCE)] = 0.0
        added += step * (1.0 if sweep < _UNDAMPED else 0.5)
    # EP's evidence: the normaliser of `added` sites, times ∫ cavity × likelihood / ∫ cavity × site for each row.
    whole = (added[1] * start - 0.5 * added[0] * start**2).sum(axis=1)
    sign, log_determinant = np.linalg.slogdet(precision)
    whole += 0.5 * np.einsum("ga,gab,gb->g", pulled, precision, pulled) - 0.5 * log_determinant
    sites = 0.5 * (nu**2 * far + 2.0 * nu * centre - tau * centre**2) / (1.0 + tau * far) - 0.5 * np.log1p(tau * far)
    found = whole + (h0 - sites).sum(axis=1)
    return np.where((size <= _TOLERANCE) & (sign > 0.0), found, np.nan)
