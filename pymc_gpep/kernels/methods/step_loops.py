"""Loops over the arrays of a training step. A loop takes one pass over an array; products use BLAS elsewhere.

Arrays have a row for each of B rows of data. Features are w (B, M). Function k has the covariance Σ_k (M, M), and the
products Σ_k w of all c functions are (B, c M). Values of functions are (B, c), and values of sites (B, d).
"""

import math

from pymc_gpep.kernels.compile import kernel, summing_kernel


@summing_kernel
def scaled_inputs(inputs, squares, scaled, norms):
    """Write w_j x_j into `scaled` (n, d) and Σ_j w_j x_j² into `norms` (n,), for rows x of inputs, w = `squares`."""
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
    """Add derivatives in inducing inputs z (M, d) to `slopes`, and in `squares` (d,) to `of_squares`.

    G (B, M) are −2 times derivatives in squared distances of rows x from the z. H (M, M) is the same for distances
    between the z. `of_rows` is Gᵀ x, and `of_inducing` is H z. `row_weights` and `weights` (M,) are sums of G and H
    over the other axes. `of_squares` receives only the terms of z, see `row_slopes`.
    """
    for m in range(z.shape[0]):
        total = row_weights[m] + 2.0 * weights[m]
        for j in range(z.shape[1]):
            both = of_rows[m, j] + of_inducing[m, j]
            slopes[m, j] += squares[j] * (both + of_inducing[m, j] - total * z[m, j])
            of_squares[j] += z[m, j] * (both - 0.5 * total * z[m, j])


@kernel
def row_slopes(x, row_weights, of_squares):
    """Add the terms of rows x (B, d) in `input_slopes` to `of_squares` (d,). `row_weights` (B,) are sums of G."""
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
    """Replace inner products (B, M) by log(variance · exp(−r² / 2)), with squared distances r²."""
    for b in range(products.shape[0]):
        for m in range(products.shape[1]):
            products[b, m] = log_variance - 0.5 * max(left[b] + right[m] - 2.0 * products[b, m], 0.0)


@summing_kernel
def left_unsaid(variance, w, rest):
    """Write residual variances into `rest` (B,): variances minus squared norms of features w, at least 0."""
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
    """Write wᵀ Σ_k w of each row w and function k into `found` (B, c). `covariances` (B, c M) contains the Σ_k w."""
    size = w.shape[1]
    for b in range(w.shape[0]):
        for k in range(found.shape[1]):
            total = 0.0
            for m in range(size):
                total += w[b, m] * covariances[b, k * size + m]
            found[b, k] = total


@kernel
def feature_slopes(w, covariances, of_variance, of_rest, inducing, slopes):
    """Add derivatives in features w (B, M) to `slopes`, given derivatives in variances wᵀ Σ_k w and in residuals.

    Residual variances depend only on the squares of the first `inducing` features, the features of the process.
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
        root = 0.0 if weight < 0.0 else math.sqrt(weight)  # For a NaN the root is NaN too.
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
    """Replace the lower triangle of `s` (M, M) by that of the average (1 − beta) s + beta found."""
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
    """Write `values` (B, c) at the function of each site into `found` (B, d). `functions` (B, d) are indices."""
    for b in range(functions.shape[0]):
        for i in range(functions.shape[1]):
            found[b, i] = values[b, functions[b, i]]


@kernel
def by_function(values, functions, weights, found):
    """Write sums of `values` (B, d) over the sites of each function, times row weights, into `found` (B, c)."""
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
    """Write moments (B, d) without the sites: of x = wᵀv, and of the latent value prior mean + x + residual."""
    for b in range(mean.shape[0]):
        for i in range(mean.shape[1]):
            keep = 1.0 - t[b, i] * variance[b, i]
            cavity_mean[b, i] = (mean[b, i] - nu[b, i] * variance[b, i]) / keep
            cavity_variance[b, i] = variance[b, i] / keep
            latent_mean[b, i] = prior_mean[b, i] + cavity_mean[b, i]
            latent_variance[b, i] = rest[b, i] + cavity_variance[b, i]


@kernel
def matching_sites(in_mean, in_variance, mean, variance, t, nu):
    """Write precisions `t` and locations `nu` of sites that match tilted moments; see `StepArrays.matching_sites`."""
    for b in range(mean.shape[0]):
        for i in range(mean.shape[1]):
            gamma = max(in_mean[b, i] * in_mean[b, i] - 2.0 * in_variance[b, i], 0.0)
            narrower = 1.0 - gamma * variance[b, i]
            t[b, i] = gamma / narrower
            nu[b, i] = (in_mean[b, i] + gamma * mean[b, i]) / narrower


@kernel
def bounded_sites(variance, largest, t, nu):
    """Limit precisions `t` of sites to `largest` / variance. Locations are scaled too, so means ν/t do not change."""
    for b in range(variance.shape[0]):
        for i in range(variance.shape[1]):
            bound = largest / variance[b, i]
            if t[b, i] > bound:
                nu[b, i] *= bound / t[b, i]
                t[b, i] = bound


@kernel
def site_log_normalisers(t, nu, mean, variance, found):
    """Write log normalisers of sites under N(mean, variance) into `found` (B,), summed over the sites of a point."""
    for b in range(t.shape[0]):
        found[b] = 0.0
        for i in range(t.shape[1]):
            site, shift, m, v = t[b, i], nu[b, i], mean[b, i], variance[b, i]
            stretch = 1.0 + site * v
            quadratic = shift * shift * v + 2.0 * shift * m - site * m * m
            found[b] += 0.5 * (quadratic / stretch - math.log(stretch))
