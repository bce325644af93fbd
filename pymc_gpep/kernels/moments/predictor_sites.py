"""Cavities, tilted moments and sites of rows of several predictors, with precisions that may be indefinite.

A site of k predictors is packed into 2 d numbers, d = k (k + 1) / 2. The first d numbers are precisions, starting with
the diagonal. The last d numbers are locations, padded with zeros.

A cavity is N(μ, R Rᵀ), and f = μ + R z with standard normals z. Tilted moments are moments of z. The first elements of
z belong to outer predictors, the other elements to inner predictors. R is lower triangular, with rows in the order of
outer and inner predictors. So outer predictors depend only on the outer elements of z.

At each node of the outer elements, the inner elements have a conditional distribution. It is normal if the log density
is quadratic in inner predictors. Otherwise there is one inner element, with separate nodes.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.small_matrices import eigenvectors, from_eigenvectors, lower_factor, solve_square

_ROUNDING = 1e-12  # It is added to the diagonal of a covariance that may be singular, times the variances.
_TINY = 1e-30
_NOTHING = 1e-20  # A predictor with a smaller variance has no site.
_LEAST_REST = 1e-8  # Smaller conditional variances are replaced by this share of marginal variances.


@kernel
def packed_size(k):
    """Return the number of distinct entries of the precision matrix (k, k) of a site of k predictors."""
    return k * (k + 1) // 2


@kernel
def unpack_sites(sites, precision, location):
    """Write packed `sites` (2, n, d) as matrices `precision` (n, k, k) and `location` (k, n)."""
    n, k, _ = precision.shape
    for i in range(n):
        place = k
        for a in range(k):
            precision[i, a, a] = sites[0, i, a]
            location[a, i] = sites[1, i, a]
            for e in range(a + 1, k):
                precision[i, a, e] = sites[0, i, place]
                precision[i, e, a] = sites[0, i, place]
                place += 1


@kernel
def pack_precision(precision, sites, i):
    """Write the precision (k, k) of site i into packed sites (2, n, d)."""
    k = precision.shape[0]
    place = k
    for a in range(k):
        sites[0, i, a] = precision[a, a]
        for e in range(a + 1, k):
            sites[0, i, place] = precision[a, e]
            place += 1


@kernel
def shrink_negative(precision, factor, sites):
    """Multiply negative eigenvalues of precisions in packed sites by `factor`. Return whether there are any."""
    n, k, _ = precision.shape
    own, vectors = np.empty((k, k)), np.empty((k, k))
    found = False
    for i in range(n):
        own[:] = precision[i]
        eigenvectors(own, vectors)
        below = False
        for j in range(k):
            if own[j, j] < 0.0:
                own[j, j] *= factor
                below = True
        if below:
            found = True
            from_eigenvectors(np.diag(own), vectors, precision[i])
            pack_precision(precision[i], sites, i)
    return found


@kernel
def _root(cov):
    """Return the lower Cholesky factor of a covariance that may be singular, after adding to its diagonal."""
    k = cov.shape[0]
    own = cov.copy()
    jitter = _ROUNDING
    for _ in range(4):
        for a in range(k):
            own[a, a] = cov[a, a] * (1.0 + jitter) + _TINY
        lower = lower_factor(own)
        if np.isfinite(lower[k - 1, k - 1]):
            return lower
        jitter *= 1e3
    return lower


@kernel
def ordered_roots(cov, order, out):
    """Write R with R Rᵀ = `cov` (n, k, k) into `out`. Rows of R form a lower triangle if taken in `order`."""
    n, k, _ = cov.shape
    for i in range(n):
        out[i] = 0.0
        for j in range(k):
            pivot = 0.0
            for e in range(j, k):
                value = cov[i, order[e], order[j]]
                for a in range(j):
                    value -= out[i, order[e], a] * out[i, order[j], a]
                if e == j:
                    least = _LEAST_REST * cov[i, order[j], order[j]] + _TINY
                    value = least if value < least else value
                    pivot = math.sqrt(value)
                out[i, order[e], j] = value / pivot


@kernel
def block_cavities(mean, cov, precision, weights, widest, at, wide):
    """Write means (n, k) and covariances (n, k, k) of cavities: posterior marginals without the site of the point.

    Return Σ_i ½ bᵀVb + ½ log|V| − ½ log|C| with weights b and the covariances V of a cavity and C of the posterior. It
    is the log normaliser of cavities, for sites that are scaled to 1 at the posterior mean.

    Parameters
    ----------
    mean, cov, precision, weights : array (k, n), (n, k, k), (n, k, k), (k, n)
        Posterior moments, precisions of sites, and weights b.
    widest : array (k, n)
        Upper limits of cavity variances. Without the site a variance could be infinite or negative.
    at, wide : array (n, k), (n, k, k), overwritten with the means and covariances of cavities
    """
    k, n = mean.shape
    kept, vectors, half = np.empty((k, k)), np.empty((k, k)), np.empty((k, k))
    total = 0.0
    for i in range(n):
        lower = _root(cov[i])
        for a in range(k):
            for e in range(k):
                half[a, e] = 0.0
                for j in range(e, k):
                    half[a, e] += precision[i, a, j] * lower[j, e]
        for a in range(k):
            for e in range(a + 1):
                value = 1.0 if a == e else 0.0
                for j in range(a, k):
                    value -= lower[j, a] * half[j, e]
                kept[a, e] = value
                kept[e, a] = value
        eigenvectors(kept, vectors)
        wide[i] = 0.0
        for j in range(k):
            least = 0.0
            for a in range(k):
                half[a, j] = 0.0
                for e in range(a + 1):
                    half[a, j] += lower[a, e] * vectors[e, j]
                if widest[a, i] > _NOTHING:
                    least += half[a, j] * half[a, j] / widest[a, i]
            value = kept[j, j]
            if not value > least:
                value = least
            total -= 0.5 * math.log(value)
            for a in range(k):
                for e in range(k):
                    wide[i, a, e] += half[a, j] * half[e, j] / value
        for a in range(k):
            pulled = 0.0
            for e in range(k):
                pulled += wide[i, a, e] * weights[e, i]
            at[i, a] = mean[a, i] - pulled
            total += 0.5 * weights[a, i] * pulled
    return total


@kernel
def place_nodes(at, root, centre, scale, nodes, within, spread, inner, f, squares):
    """Write latent values `f` (k, m, d, e) at the nodes of m rows, and ½|z|² of outer elements into `squares` (m, d).

    Parameters
    ----------
    at, root : array (m, k), (m, k, k)
    centre, scale : array (m, o), (m, o, o)
        Outer elements are centre + scale · node.
    nodes : array (d, o)
    within : array (m, d, k − o)
        Centres of inner elements.
    spread : array (m, d)
        Scale of the first inner element, which is centre + spread · inner node.
    inner : array (e,)
    f, squares : array
    """
    (d, o), k = nodes.shape, at.shape[1]
    z, base = np.empty(k), np.empty(k)
    for i in range(at.shape[0]):
        for s in range(d):
            _place(nodes[s], centre[i], scale[i], within[i, s], z)
            total = 0.0
            for a in range(o):
                total += z[a] * z[a]
            squares[i, s] = 0.5 * total
            for a in range(k):
                base[a] = at[i, a]
                for e in range(k):
                    base[a] += root[i, a, e] * z[e]
            for j in range(inner.shape[0]):
                for a in range(k):
                    f[a, i, s, j] = base[a] + root[i, a, o] * spread[i, s] * inner[j]


@kernel
def inner_moments(values, within, spread, inner, log_weights, weights, log_z, mean, cov):
    """Write moments of one inner element of z, given the outer elements at each node, and weights of inner nodes.

    `log_z` (m, d) receives the log of the average of exp(values), `mean` (m, d, 1) and `cov` (m, d, 1, 1) the moments.
    """
    m, d, e = values.shape
    for i in range(m):
        for s in range(d):
            top = -np.inf
            for j in range(e):
                z = within[i, s, 0] + spread[i, s] * inner[j]
                own = values[i, s, j] - 0.5 * z * z + log_weights[j]
                if not own > -np.inf:
                    own = -np.inf
                weights[i, s, j] = own
                top = max(top, own)
            if top == -np.inf:
                log_z[i, s] = -np.inf
                mean[i, s, 0], cov[i, s, 0, 0] = within[i, s, 0], spread[i, s] ** 2
                weights[i, s] = 1.0 / e
                continue
            total, first, second = 0.0, 0.0, 0.0
            for j in range(e):
                own = math.exp(weights[i, s, j] - top)
                weights[i, s, j] = own
                total += own
                first += own * inner[j]
                second += own * inner[j] * inner[j]
            first /= total
            for j in range(e):
                weights[i, s, j] /= total
            log_z[i, s] = top + math.log(total * spread[i, s])
            mean[i, s, 0] = within[i, s, 0] + spread[i, s] * first
            cov[i, s, 0, 0] = spread[i, s] ** 2 * max(second / total - first * first, 0.0)


@kernel
def normal_moments(root, order, value, gradient, hessian, log_z, mean, cov):
    """Write moments of inner elements of z, given the outer elements, if the log density is quadratic in them.

    Parameters
    ----------
    root : array (m, k, k)
    order : array (k,)
    value, gradient, hessian : array (m, d), (q, m, d), (q, q, m, d)
        The log density and its derivatives in the q inner predictors, where the inner elements are 0.
    log_z, mean, cov : array (m, d), (m, d, q), (m, d, q, q)
    """
    (m, d), k, q = value.shape, root.shape[1], gradient.shape[0]
    o = k - q
    whole, right = np.empty((q, q)), np.empty((q, q + 1))
    for i in range(m):
        for s in range(d):
            for a in range(q):
                right[a, q] = 0.0
                for e in range(a, q):
                    right[a, q] += root[i, order[o + e], o + a] * gradient[e, i, s]
                for e in range(q):
                    own = 1.0 if a == e else 0.0
                    right[a, e] = own
                    for g in range(a, q):
                        for h in range(e, q):
                            own -= root[i, order[o + g], o + a] * hessian[g, h, i, s] * root[i, order[o + h], o + e]
                    whole[a, e] = own
            pull = right[:, q].copy()
            determinant = solve_square(whole, right)
            total = 0.0
            for a in range(q):
                mean[i, s, a] = right[a, q]
                total += pull[a] * right[a, q]
                for e in range(q):
                    cov[i, s, a, e] = 0.5 * (right[a, e] + right[e, a])
            log_z[i, s] = value[i, s] + 0.5 * total - 0.5 * math.log(determinant)


@kernel
def node_moments(log_inner, squares, log_weights, nodes, centre, scale, within, inner_cov, weights, log_z, mean, cov):
    """Write log normalisers `log_z` (m,) and tilted moments of z, and `weights` (m, d) of outer nodes.

    At each outer node, `log_inner` (m, d) is the log average over inner elements. `within` (m, d, q) and `inner_cov`
    (m, d, q, q) are the moments of inner elements given the outer elements.
    """
    (d, o), q = nodes.shape, within.shape[2]
    k = o + q
    z = np.empty(k)
    for i in range(log_inner.shape[0]):
        top = -np.inf
        for s in range(d):
            own = log_inner[i, s] - squares[i, s] + log_weights[s]
            if not own > -np.inf:
                own = -np.inf
            weights[i, s] = own
            top = max(top, own)
        total = 0.0
        for s in range(d):
            weights[i, s] = math.exp(weights[i, s] - top) if top > -np.inf else np.nan
            total += weights[i, s]
        log_z[i] = top + math.log(total)
        for a in range(o):
            log_z[i] += math.log(scale[i, a, a])
        mean[i] = 0.0
        cov[i] = 0.0
        for s in range(d):
            weights[i, s] /= total
            if weights[i, s] > 0.0:
                _place(nodes[s], centre[i], scale[i], within[i, s], z)
                for a in range(k):
                    mean[i, a] += weights[i, s] * z[a]
        for s in range(d):
            weight = weights[i, s]
            if not weight > 0.0:
                continue
            _place(nodes[s], centre[i], scale[i], within[i, s], z)
            for a in range(k):
                for e in range(a + 1):
                    own = (z[a] - mean[i, a]) * (z[e] - mean[i, e])
                    if e >= o:
                        own += inner_cov[i, s, a - o, e - o]
                    cov[i, a, e] += weight * own
        for a in range(k):
            for e in range(a):
                cov[i, e, a] = cov[i, a, e]


@kernel
def _place(node, centre, scale, within, z):
    """Write z (k,) at an outer node: the outer elements, followed by the means `within` of the inner elements."""
    o = node.shape[0]
    for a in range(o):
        z[a] = centre[a]
        for e in range(a + 1):
            z[a] += scale[a, e] * node[e]
    for a in range(within.shape[0]):
        z[o + a] = within[a]


@kernel
def lower_roots(cov, out):
    """Write lower Cholesky factors of covariances (m, k, k). For an indefinite covariance `out` is not changed."""
    k = cov.shape[1]
    for i in range(cov.shape[0]):
        lower = lower_factor(cov[i])
        if np.isfinite(lower[k - 1, k - 1]) and lower[k - 1, k - 1] > 0.0:
            out[i] = lower


@kernel
def matched_sites(at, root, mean, cov, posterior, least, target, scale):
    """Write packed sites (2, n, d) with which cavities have the tilted moments, and their scales (n, d).

    Parameters
    ----------
    at, root : array (n, k), (n, k, k)
        Cavities.
    mean, cov : array (n, k), (n, k, k)
        Tilted moments of z.
    posterior : array (n, k, k)
        Posterior covariances.
    least : float
        Lower limit of eigenvalues of a precision, 0 or −∞.
    target, scale : array
    """
    n, k = at.shape
    own, vectors, inverse, turned = np.empty((k, k)), np.empty((k, k)), np.empty((k, k)), np.empty((k, k))
    for i in range(n):
        own[:] = cov[i]
        eigenvectors(own, vectors)
        for j in range(k):
            own[j, j] = 1.0 / own[j, j] - 1.0 if own[j, j] > 0.0 else np.nan
            if own[j, j] < least:
                own[j, j] = least
        # The site precision of f is R⁻ᵀ (Σ_j λ_j v_j v_jᵀ) R⁻¹ = Σ_j λ_j (R⁻ᵀ v_j)(R⁻ᵀ v_j)ᵀ.
        for a in range(k):
            for e in range(k):
                turned[a, e] = vectors[a, e]
                inverse[a, e] = root[i, e, a]
        solve_square(inverse, turned)
        target[0, i] = 0.0
        target[1, i] = 0.0
        for j in range(k):
            value = own[j, j]
            pull, level = 0.0, 0.0
            for a in range(k):
                pull += vectors[a, j] * mean[i, a]
                level += turned[a, j] * at[i, a]
            force = (1.0 + value) * pull + value * level
            place = k
            for a in range(k):
                target[1, i, a] += force * turned[a, j]
                target[0, i, a] += value * turned[a, j] * turned[a, j]
                for e in range(a + 1, k):
                    target[0, i, place] += value * turned[a, j] * turned[e, j]
                    place += 1
        _settle(posterior[i], target, scale, i)


@kernel
def pack_sites(precision, location, posterior, target, scale):
    """Pack precisions (n, k, k) and locations (k, n) of sites into `target` (2, n, d).

    `scale` (n, d) receives the scales of the entries, from posterior covariances `posterior` (n, k, k).
    """
    n, k, _ = precision.shape
    for i in range(n):
        pack_precision(precision[i], target, i)
        target[1, i] = 0.0
        for a in range(k):
            target[1, i, a] = location[a, i]
        _settle(posterior[i], target, scale, i)


@kernel
def _settle(posterior, target, scale, i):
    """Write posterior variances as scales of site i. Set entries of the site to 0 for predictors of variance 0."""
    k = posterior.shape[0]
    place = k
    for a in range(k):
        scale[i, a] = posterior[a, a]
        if not posterior[a, a] > _NOTHING:
            target[0, i, a], target[1, i, a] = 0.0, 0.0
        for e in range(a + 1, k):
            scale[i, place] = math.sqrt(posterior[a, a] * posterior[e, e])
            if not min(posterior[a, a], posterior[e, e]) > _NOTHING:
                target[0, i, place] = 0.0
            place += 1
