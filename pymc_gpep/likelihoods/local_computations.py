"""Types of local computations: compiled functions of single points that likelihoods offer.

A likelihood offers computations of several types, and an approximation lists the types that it needs. Another package
adds computations as a `Computation`. Arrays: latent values `f` (c, n), labels
`y` (n,), covariances between the latent values of a point `cov` (n, c, c).

Kernels of one latent function drop its axis: `f`, `mean` and `variance` are (n,) and contiguous. `y` (n,) holds
classes, counts or categories as int64, and other numbers as float64. `parameters` (p, n) are the other parameters of
the density at each point. Without such parameters the array may be (0, 0) for any n. Kernels write NaN if a number
cannot be computed, for example for an impossible observation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.registry import Registry, table_of

type Kernel = Callable[..., Any]


class CoupledCurvature(NamedTuple):
    """Log-concave density. Its curvature W = −∇∇ log p at a point is diag(π) − ππᵀ / 1ᵀπ, for a vector π (c,)."""

    log_density: Kernel
    """`(f, y, pi, gradient)`: return Σ log p(y_i | f_i); write π and the gradient (c, n)."""
    along_line: Kernel
    """`(f, y, d, t)`: return the first, and minus the second, derivative in t of Σ log p(y_i | f_i + t d_i)."""
    curvature_slope: Kernel
    """`(pi, cov, slope)`: write −½ Σ_kl S_kl ∂W_kl / ∂f into `slope` (c, n), for S = `cov` and the curvature W."""


class CoupledQuadrature(NamedTuple):
    """Update of EP sites with coupled classes. Tilted moments under any cavity are computed by quadrature."""

    update: Kernel
    """Computes new coupled sites, see `pymc_gpep.kernels.methods.softmax_qep.softmax_qep_update`."""
    conditioned: int = 1
    """Number of classes that are integrated in closed form, without quadrature nodes."""


class BlockCurvature(NamedTuple):
    """Log-concave density. Its curvature at a point is a positive semi-definite matrix W. Rows of W sum to zero.

    A density that is not log-concave must not offer `BlockCurvature`: solvers assume a semi-definite W.
    """

    log_density: Kernel
    """`(f, y, gradient)`: return Σ log p(y_i | f_i); write the gradient (c, n)."""
    curvature: Kernel
    """`(f, y, w)`: write W = −∇∇ log p(y_i | f_i) (n, c, c)."""
    curvature_slope: Kernel
    """`(f, y, cov, slope)`: write −½ Σ_kl S_kl ∂W_kl / ∂f into `slope` (c, n), for S = `cov` and the curvature W."""


class PredictorsDensity(NamedTuple):
    """Density of several latent values of a point. Its curvature may have eigenvalues of any sign."""

    log_density: Kernel
    """`(f, y, parameters, gradient)`: return Σ log p(y_i | f_i); write the gradient (c, n)."""
    curvature: Kernel
    """`(f, y, parameters, w)`: write W = −∇∇ log p(y_i | f_i) (n, c, c)."""
    curvature_slope: Kernel
    """`(f, y, parameters, cov, slope)`: write −½ Σ_kl S_kl ∂W_kl / ∂f (c, n), for S = `cov` and the curvature W."""
    parameter_slopes: Kernel
    """`(f, y, parameters, cov, moved, out)`: write into `out` (p, n) the derivatives in each parameter of
    log p − ½ Σ_kl S_kl W_kl + uᵀ∇ log p, for S = `cov`, the curvature W and u = `moved` (c, n)."""


class PredictorsDerivatives(NamedTuple):
    """Derivatives of a density of several latent values of a point, for each point."""

    derivatives: Kernel
    """`(f, y, parameters)`: return log p(y_i | f_i) (n,), its gradient (c, n) and its second derivatives (n, c, c)."""
    slopes: Kernel
    """`(f, y, parameters)`: return derivatives (p, n) of log p(y_i | f_i) in each row of the parameters."""


class PredictorsNodes(NamedTuple):
    """Averages of a density of several latent values over normal latent values, by quadrature."""

    rows: Kernel
    """`(y, parameters, k)`: return `TiltedRows` (`pymc_gpep.likelihoods.tilted_rows`) with k latent values each."""


class Utilities(NamedTuple):
    """Labels that are a function of utilities. A utility is a latent value plus independent standard normal noise."""

    draw: Kernel
    """`(rng, f, y, v)`: draw utilities v ~ N(f, I) exactly, given the observations, and write them into `v` (c, n)."""


class UtilityBound(NamedTuple):
    """Lower bound of the log density, from utilities: latent values plus standard normal noise."""

    terms: Kernel
    """Computes the bound, see `pymc_gpep.kernels.likelihoods.multinomial_probit.bound_terms`."""


class DifferenceFactors(NamedTuple):
    """Density that is an average over u ~ N(0, 1) of a product of factors, for inner EP.

    Factor j is a function of g_j = f_y − f_j + u for the label y.
    """

    coupled_update: Kernel
    """Computes new scalar sites of all g, see `pymc_gpep.kernels.moments.inner_ep.inner_ep_update`."""
    energies: Kernel
    """Computes terms of the sites of g in EP's energy, see `pymc_gpep.kernels.methods.energy_descent.site_energies`."""
    average: Kernel
    """Kernel like `terms` of `GaussianAverage`, for a single factor as a function of g with the label 1."""


class NoisyDifferenceFactors(NamedTuple):
    """`DifferenceFactors` with independent normal noise of the latent values."""

    update: Kernel
    """Computes new scalar sites, see `pymc_gpep.kernels.moments.inner_ep.noisy_inner_ep_update`."""
    site_parameters: Kernel
    """Computes sites of f from scalar sites, see `pymc_gpep.kernels.moments.inner_ep.noisy_site_parameters`."""


class MixedDifferenceFactors(NamedTuple):
    """Mixture of a constant and a product of factors as in `DifferenceFactors`, or of steps, for inner EP."""

    update: Kernel
    """Computes new sites of any sign, see `pymc_gpep.kernels.methods.label_noise.nested_label_noise_update`."""


class PointFactor(NamedTuple):
    """Density of a point that is a single factor of EP. Latent values are independent under the cavity."""

    derivatives: Kernel
    """`(mean, variance, y, parameters, log_z, rho, gamma)`: write log normalisers and their derivatives, see
    `pymc_gpep.kernels.methods.factors.point_derivatives`."""


class TabulatedFactor(NamedTuple):
    """Faster `PointFactor` of a likelihood without parameters, accurate to about ten digits."""

    derivatives: Kernel
    """`(mean, variance, y, log_z, rho, gamma)`: write log normalisers and their derivatives, see
    `pymc_gpep.kernels.methods.factors.tabulated_derivatives`."""


class PointAverage(NamedTuple):
    """Average of a point's log density under independent latent values, or a lower bound of the average."""

    terms: Kernel
    """`(mean, variance, y, parameters, value, of_mean, of_variance)`: write averages and their derivatives, see
    `pymc_gpep.kernels.methods.factors.noisy_probit_average`."""


class PairFactors(NamedTuple):
    """Lower bound of the density of a label: a product over the other classes. Each factor has two latent values."""

    derivatives: Kernel
    """Computes log normalisers, see `pymc_gpep.kernels.methods.factors.pair_derivatives`."""


class ScalarDensity(NamedTuple):
    """Density of one latent value."""

    derivatives: Kernel
    """`(f, y, parameters, out)`: write log p(y_i | f_i) and its first three derivatives in f into `out` (4, n)."""


class ColumnDensity(NamedTuple):
    """`ScalarDensity` in two steps: columns are computed once from `y` and `parameters`, then used for many `f`."""

    columns: Kernel
    """`(y, parameters)`: return columns (q, n)."""
    two_derivatives: Kernel
    """`(f, columns)`: return log p(y_i | f_i) and its first two derivatives (3, n)."""


class PlainDensity(NamedTuple):
    """Density of one latent value with a kink, unsuitable for Newton's method."""

    derivatives: Kernel
    """Derivatives as in `ScalarDensity`, but one-sided at jumps of the slope."""


class GaussianAverage(NamedTuple):
    """Log of the density averaged over a normal latent value, h(μ, D) = log ∫ p(y | f) N(f | μ, D) df."""

    terms: Kernel
    """`(mean, variance, y, parameters, out)`: write h and its first four derivatives in μ into `out` (5, n).

    D = 0 is allowed. Derivatives in D follow by the heat equation, ∂h/∂D = ½ (h″ + h′²).
    """
    rough: Kernel | None = None
    """Faster kernel like `terms` for h and two derivatives (rows 0 to 2 of `out`) to nine digits, or None."""
    normal: Kernel | None = None
    """`(y, parameters, out)`: write precision and precision × mean (2, n) of a density that is normal in f, or NaN."""
    of_rows: Kernel | None = None
    """`(y, parameters, rough=False)`: return a faster function for repeated averages of the same rows, or None.

    The function `(mean, variance, out, rows)` writes like `terms`, for the numbers `rows` (m,), or for all rows if
    None. If `rough`, its errors are about 1e-7.
    """


class PowersAverage(NamedTuple):
    """Log average of powers of class probabilities over a normal latent value, log ∫ p(1 | f)ᵃ p(0 | f)ᵇ N(f) df."""

    terms: Kernel
    """`(mean, variance, powers, out)`: write the log average and four derivatives (5, n), for powers a and b (2, n)."""


class AverageLogDensity(NamedTuple):
    """Average of the log density over a normal latent value, g(m, v) = ∫ log p(y | f) N(f | m, v) df."""

    terms: Kernel
    """`(mean, variance, y, parameters, out)`: write g, ∂g/∂m and ∂g/∂v into `out` (3, n). ∂²g/∂m² is 2 ∂g/∂v."""


class QuadraticBound(NamedTuple):
    """Lower bound of `AverageLogDensity` in closed form, from a quadratic lower bound of the log density."""

    terms: Kernel
    """`(mean, variance, y, parameters, out)`: write the bound and its derivatives in m and v into `out` (3, n)."""


class ParameterSlopes(NamedTuple):
    """Derivatives with respect to each parameter, for gradients of evidences."""

    derivatives: Kernel
    """`(f, y, parameters, out)`: write slopes (p, 3, n) of log p(y_i | f_i) and its first two derivatives in f."""
    average: Kernel
    """`(mean, variance, y, parameters, out)`: write slopes (p, n) of h of `GaussianAverage` at fixed moments."""
    average_log: Kernel
    """`(mean, variance, y, parameters, out)`: write slopes (p, n) of g of `AverageLogDensity` at fixed moments."""


# The types below name densities. Batch fits use formulas for these densities in their graphs.


class NormalResponse(NamedTuple):
    """Density Φ((2y − 1) f) of one latent value."""


class LogisticResponse(NamedTuple):
    """Density 1 / (1 + exp(−(2y − 1) f)) of one latent value."""


class LargestUtility(NamedTuple):
    """Probability that the class has the largest utility, where utilities are latent values plus normal noise.

    A parameter, if any, is the share ε of labels drawn uniformly from all classes.
    """

    noise: float
    """Variance of the noise of a utility."""


class Computation(NamedTuple):
    """Local computation that another package adds to a likelihood."""

    likelihood: str
    """Name of the likelihood."""
    local: object
    """Instance of a type in `pymc_gpep.likelihoods.local_computations`, or of another NamedTuple."""

    @property
    def name(self) -> str:
        """Names of type and likelihood, for messages."""
        return f"{type(self.local).__name__} of {self.likelihood}"

    def check(self) -> None:
        """Raise a TypeError unless the computation is a named tuple."""
        if not isinstance(self.local, tuple) or not hasattr(self.local, "_fields"):
            raise TypeError(
                f"The local computation of {self.likelihood!r} is {self.local!r}, but must be an instance of a "
                "NamedTuple, such as ScalarDensity(derivatives)."
            )

    def why_unused(self) -> str:
        """Return a text on why methods do not use the computation; empty if they use it."""
        likelihoods = table_of("likelihood")
        if self.likelihood not in likelihoods.names:
            meant = did_you_mean([self.likelihood], likelihoods.names)
            return (
                f"The computation {self.name} is for {self.likelihood!r}, which is not a registered likelihood.{meant}"
            )
        if any(type(one) is type(self.local) for one in likelihoods[self.likelihood].local):
            return f"The computation {self.name} is not used: {self.likelihood!r} already has one."
        return ""


COMPUTATIONS: Registry[Computation] = Registry(
    "computation", (), of=Computation, classes=False, check=Computation.check, check_read=Computation.why_unused
)
"""Registry of the added computations."""
