"""Loops of a training step other than matrix products, each in one pass over an array.

Arrays have a row for each of B rows of data. Features are w (B, M). Function k has the covariance Σ_k (M, M), and the
products Σ_k w of all c functions are (B, c M). Values of functions are (B, c), and values of sites (B, d).
"""

import math

from pymc_gpep.kernels.compile import kernel, summing_kernel


@summing_kernel
def scaled_inputs(inputs, squares, scaled, norms):
    """Write inputs x (n, d) times weights `squares` w (d,) into `scaled`, and Σ_j w_j x_j² into `norms` (n,)."""
    for i in range(inputs.shape[0]):
        norm = 0.0
        for j in range(inputs.shape[1]):
            value = inputs[i, j] * squares[j]
            scaled[i, j] = value
            norm += value * inputs[i, j]
        norms[i] = norm


@summing_kernel
def squared_norms(inputs, squares, norms):
    """Write squared norms (n,) of inputs (n, d), weighted by `squares` (d,)."""
    for i in range(inputs.shape[0]):
        norm = 0.0
        for j in range(inputs.shape[1]):
            norm += inputs[i, j] * inputs[i, j] * squares[j]
        norms[i] = norm


@kernel
def input_slopes(z, squares, of_rows, of_inducing, row_weights, weights, slopes, of_squares):
    """Add derivatives in inducing inputs z (M, d) and in `squares` (d,), from −2 × derivatives in squared distances.

    These arguments are G (B, M) for distances to rows x, and H (M, M) for distances between the z. `of_rows` is Gᵀ x,
    and `of_inducing` is H z. `row_weights` and `weights` (M,) are sums of G and H over the other axes. Results are
    added to `slopes` and, for the terms of z, to `of_squares`.
    """
    for m in range(z.shape[0]):
        total = row_weights[m] + 2.0 * weights[m]
        for j in range(z.shape[1]):
            both = of_rows[m, j] + of_inducing[m, j]
            slopes[m, j] += squares[j] * (both + of_inducing[m, j] - total * z[m, j])
            of_squares[j] += z[m, j] * (both - 0.5 * total * z[m, j])


@kernel
def row_slopes(x, row_weights, of_squares):
    """Add the terms of rows (B, d) to derivatives in `squares` (d,), from sums (B,) of G in `input_slopes`."""
    for b in range(x.shape[0]):
        half = 0.5 * row_weights[b]
        for j in range(x.shape[1]):
            of_squares[j] -= half * x[b, j] * x[b, j]


@kernel
def squared_distances(products, left, right):
    """Replace inner products (B, M) by squared distances, from squared norms (B,) and (M,)."""
    for b in range(products.shape[0]):
        for m in range(products.shape[1]):
            products[b, m] = max(left[b] + right[m] - 2.0 * products[b, m], 0.0)


@kernel
def log_squared_exponential(products, left, right, log_variance):
    """Replace inner products (B, M) by log(variance · exp(−r² / 2)), with the r² of `squared_distances`."""
    for b in range(products.shape[0]):
        for m in range(products.shape[1]):
            products[b, m] = log_variance - 0.5 * max(left[b] + right[m] - 2.0 * products[b, m], 0.0)


@summing_kernel
def left_unsaid(variance, w, rest):
    """Write residual variances to `rest` (B,): variances (B,) minus squared norms of features, at least 0."""
    for b in range(w.shape[0]):
        total = 0.0
        for m in range(w.shape[1]):
            total += w[b, m] * w[b, m]
        rest[b] = max(variance[b] - total, 0.0)


@summing_kernel
def squared_rows(rows, found):
    """Write squared norms (B,) of rows (B, M)."""
    for b in range(rows.shape[0]):
        total = 0.0
        for m in range(rows.shape[1]):
            total += rows[b, m] * rows[b, m]
        found[b] = total


@summing_kernel
def variances(w, covariances, found):
    """Write wᵀ Σ_k w into `found` (B, c)."""
    size = w.shape[1]
    for b in range(w.shape[0]):
        for k in range(found.shape[1]):
            total = 0.0
            for m in range(size):
                total += w[b, m] * covariances[b, k * size + m]
            found[b, k] = total


@kernel
def feature_slopes(w, covariances, of_variance, of_rest, inducing, slopes):
    """Add derivatives in w (B, M) to `slopes`, given derivatives (B, c) in wᵀ Σ_k w and in residual variances s.

    The first `inducing` features belong to the process; s depends only on their squares.
    """
    size = w.shape[1]
    for b in range(w.shape[0]):
        total = 0.0
        for k in range(of_variance.shape[1]):
            total += of_rest[b, k]
            twice = 2.0 * of_variance[b, k]
            for m in range(size):
                slopes[b, m] += twice * covariances[b, k * size + m]
        for m in range(inducing):
            slopes[b, m] -= 2.0 * total * w[b, m]


@kernel
def scaled_rows(w, weights, k, sign, scaled):
    """Write rows of w times √|weight| of function k into `scaled`, if the weight (B, c) has this sign; else zeros."""
    for b in range(w.shape[0]):
        weight = sign * weights[b, k]
        root = 0.0 if weight < 0.0 else math.sqrt(weight)  # NaN stays NaN.
        for m in range(w.shape[1]):
            scaled[b, m] = root * w[b, m]


@kernel
def precisions(s, share, found):
    """Write I + β S, β = `share`, into the lower triangle of `found` (M, M), which may be in single precision."""
    for i in range(s.shape[0]):
        for j in range(i):
            found[i, j] = share * s[i, j]
        found[i, i] = 1.0 + share * s[i, i]


@kernel
def average(s, found, beta):
    """Replace the lower triangle of S (M, M) by the lower triangle of (1 − β) S + β `found`."""
    for i in range(s.shape[0]):
        for j in range(i + 1):
            s[i, j] += beta * (found[i, j] - s[i, j])


@kernel
def add_lower(matrix, part, total):
    """Add `part` times the lower triangle of `matrix` (M, M) to `total`."""
    for i in range(total.shape[0]):
        for j in range(i + 1):
            total[i, j] += part * matrix[i, j]


@kernel
def at_sites(values, functions, found):
    """Write the entry of `values` (B, c) for the function of each site, `functions` (B, d), into `found` (B, d)."""
    for b in range(functions.shape[0]):
        for i in range(functions.shape[1]):
            found[b, i] = values[b, functions[b, i]]


@kernel
def by_function(values, functions, weights, found):
    """Write sums of site values (B, d) over the sites of each function, times row weights (B,), into `found` (B, c)."""
    for b in range(found.shape[0]):
        for k in range(found.shape[1]):
            found[b, k] = 0.0
        for i in range(functions.shape[1]):
            found[b, functions[b, i]] += weights[b] * values[b, i]


@kernel
def move(values, slopes, first, second, rate, of_first, of_second, least):
    """Take an ascent step of Adam in place; `rate` includes the bias corrections of both moments."""
    for i in range(values.size):
        slope = -slopes[i]
        first[i] = of_first * first[i] + (1.0 - of_first) * slope
        second[i] = of_second * second[i] + (1.0 - of_second) * slope * slope
        values[i] -= rate * first[i] / (math.sqrt(second[i]) + least)


@kernel
def cavities(mean, variance, t, nu, prior_mean, rest, cavity_mean, cavity_variance, latent_mean, latent_variance):
    """Write cavity moments (B, d), without the sites t, ν: of x = wᵀv, and of prior mean + x + residual."""
    for b in range(mean.shape[0]):
        for i in range(mean.shape[1]):
            keep = 1.0 - t[b, i] * variance[b, i]
            cavity_mean[b, i] = (mean[b, i] - nu[b, i] * variance[b, i]) / keep
            cavity_variance[b, i] = variance[b, i] / keep
            latent_mean[b, i] = prior_mean[b, i] + cavity_mean[b, i]
            latent_variance[b, i] = rest[b, i] + cavity_variance[b, i]


@kernel
def matching_sites(in_mean, in_variance, mean, variance, t, nu):
    """Write sites t, ν that match the moments of the tilted distributions; see `StepArrays.matching_sites`."""
    for b in range(mean.shape[0]):
        for i in range(mean.shape[1]):
            gamma = max(in_mean[b, i] * in_mean[b, i] - 2.0 * in_variance[b, i], 0.0)
            narrower = 1.0 - gamma * variance[b, i]
            t[b, i] = gamma / narrower
            nu[b, i] = (in_mean[b, i] + gamma * mean[b, i]) / narrower


@kernel
def bounded_sites(variance, largest, t, nu):
    """Limit precisions so that t times the variance is at most `largest`; the means of the sites do not change."""
    for b in range(variance.shape[0]):
        for i in range(variance.shape[1]):
            bound = largest / variance[b, i]
            if t[b, i] > bound:
                nu[b, i] *= bound / t[b, i]
                t[b, i] = bound


@kernel
def site_log_normalisers(t, nu, mean, variance, found):
    """Write log normalisers of sites t, ν (B, d) under N(mean, variance), summed over the sites of each point, (B,)."""
    for b in range(t.shape[0]):
        found[b] = 0.0
        for i in range(t.shape[1]):
            site, shift, m, v = t[b, i], nu[b, i], mean[b, i], variance[b, i]
            stretch = 1.0 + site * v
            quadratic = shift * shift * v + 2.0 * shift * m - site * m * m
            found[b] += 0.5 * (quadratic / stretch - math.log(stretch))
