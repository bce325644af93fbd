"""Prior of an effect with local scales as a factor of EP: p(u) = ∫ N(u | m, v) p(λ) dλ.

The mean m and the variance v of an effect are functions of local variables λ. Examples are the scale of a horseshoe and
the indicator of a spike. Continuous local variables take unconstrained values t on a lattice. A sum over the lattice is
accurate to many digits (trapezoid rule for an analytic density). An indicator has two states. So p is a mixture of
Gaussians. Integrals over u have formulas, and the density p, which may be infinite at 0, is never evaluated.

A graph computes log p(t) + m f + ½ v f². At f = 0, its value and its derivatives in f are log p, m and v. So the
functions for derivatives in hyperparameters return the derivatives of log p, m and v.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.graphs.errors import distribution
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.kernels.scalar.normal_mixture import average
from pymc_gpep.kernels.scalar.normal_mixture import quantiles as of_mixtures
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import GaussianAverage, ParameterSlopes, PlainDensity
from pymc_gpep.likelihoods.standard_density import reading_of
from pymc_gpep.univariate.density import RowDensity, row_graph
from pymc_gpep.univariate.likelihood import depends_on_draws
from pymc_gpep.univariate.prior_factor import MIXTURE, SUFFIX, WEAK, PriorFactor, at_widths, relative_cavity

WITH_STATES, ON_A_SCALE, ON_THE_LINE = 2, 0, -1
"""Kinds of local variables: indicators, variables with a transform, variables without a transform."""

# Largest steps of the lattice, for a single continuous local variable and for several.
_STEPS = {ON_A_SCALE: (0.25, 0.35), ON_THE_LINE: (0.08, 0.25)}
_FURTHEST = {ON_A_SCALE: 640.0, ON_THE_LINE: 60.0}  # Largest unconstrained value on the lattice.
_COARSE = (4.0, 8.0)  # First steps in the search for the lattice's ends: for one continuous variable, and for several.
_POINTS = 24  # Least number of lattice points within the range of a density.
_FINER = 8.0  # Largest factor by which steps shrink from one lattice to the next.
_UNIT = 2.0**-20  # Distance from 0 within which lattice values of a variable without a transform are evenly spaced.
_DROP = 30.0  # The lattice ends where the log density is this much below its maximum.
_LARGEST = 1e280  # Variances of components are clipped at this value.
_END = 0.02  # The variance does not exist if rare components have more than this share of the second moment.
_IMPOSSIBLE = -1e10  # Log density at values of density 0, for importance weights of draws.
# Offsets of a search for quantiles, in widths: from the narrowest component (`_FINE`: infinite variance), and the mean.
_PLACES = np.r_[-(4.0 ** np.arange(12.0, -14.0, -1.0)), 0.0, 4.0 ** np.arange(-13.0, 13.0)]
_FINE = np.r_[-(2.0 ** np.arange(24.0, -26.0, -0.25)), 0.0, 2.0 ** np.arange(-25.75, 24.25, 0.25)]
_AROUND = np.linspace(-7.0, 7.0, 57)


class Components(NamedTuple):
    """Gaussian components of the priors of n effects: arrays (K, c) for K components and c distinct priors."""

    log_weights: Array
    means: Array
    variances: Array
    places: Array
    """Lattice values of the local variables in each component, (J, K)."""
    steps: list[float]
    """Steps of the lattice, (J,); 0 for indicators."""
    of: NDArray[np.intp]
    """Index of the prior of each effect, (n,)."""
    first: NDArray[np.intp]
    """Index of the first effect with each prior, (c,)."""
    rows: Array
    """Log weights, means and variances, (3, c, K)."""

    def at_effects(self) -> tuple[Array, Array, Array]:
        """Return log weights, means and variances of effects, each (K, n), or (K, 1) if all priors are equal."""
        given = self.log_weights, self.means, self.variances
        if len(self.first) == 1:
            return given
        log_weights, means, variances = (each[:, self.of] for each in given)
        return log_weights, means, variances


class _Tilted(NamedTuple):
    """Tilted distributions of n effects, which are mixtures of K Gaussians."""

    weights: Array
    """Probabilities of components, (K, n)."""
    deviations: Array
    """Means of the components minus the mean of the cavity, (K, n)."""
    variances: Array
    """Variances of the components, (K, n)."""
    log_z: Array
    """Log integrals, (n,)."""
    weak: NDArray[np.bool_]
    """Mask (n,) of effects whose mean and variance are determined neither by data nor by the prior."""
    diverges: NDArray[np.bool_]
    """Mask (n,) of effects whose tilted distribution is improper.

    These effects have the moments of the prior, and log_z is NaN.
    """
    gain: Array
    """1 + r v for the variances v of the prior's components, (K, n)."""
    pull: Array
    """Derivatives of the log integrals of components in their prior means, (K, n)."""
    precision: Array
    """Precision r of the cavity without the base, (n,)."""


class ScaleDensity(RowDensity):
    """Log density of local variables, with mean and variance of the effect given these, as functions of arrays.

    Parameters
    ----------
    graph : RowGraph
    learned : sequence of bool
        Whether each parameter depends on hyperparameters.
    states : tuple of int
        Kind of each local variable: `WITH_STATES`, `ON_A_SCALE` or `ON_THE_LINE`.
    """

    def __init__(self, graph: object, learned: Collection[bool], states: tuple[int, ...] = ()) -> None:
        super().__init__(graph, learned)  # type: ignore[arg-type]
        self.states = states
        self._last: tuple[bytes, Components] | None = None

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"states": self.states}

    def components(self, parameters: Array) -> Components:
        """Return the Gaussian components for effects with these parameters (p, n)."""
        key = parameters.tobytes()
        if (last := self._last) is None or last[0] != key:
            last = self._last = key, self._made(parameters)
        return last[1]

    def _made(self, parameters: Array) -> Components:
        known = parameters[: len(self.learned)]
        unique, first, of = np.unique(known, axis=1, return_index=True, return_inverse=True)
        if not len(known):
            first, of = np.zeros(1, np.intp), np.zeros(parameters.shape[1], np.intp)
            unique = np.zeros((0, 1))
        places, steps = self._lattice(unique)
        values = self._values(places, unique)
        log_weights = values[0] + sum(np.log(each) for each in steps if each)
        kept = (log_weights > log_weights.max(axis=0) - _DROP).any(axis=1)
        variances = np.minimum(np.nan_to_num(values[2], nan=0.0, posinf=_LARGEST), _LARGEST)
        chosen = log_weights[kept], values[1, kept], variances[kept]
        rows = np.ascontiguousarray(np.stack(chosen).swapaxes(1, 2))
        return Components(*chosen, places[:, kept], steps, np.ravel(of).astype(np.intp), first, rows)

    def _lattice(self, unique: Array) -> tuple[Array, list[float]]:
        """Return lattice values (J, K) of the local variables, and the steps, 0 for indicators."""
        free = [j for j, each in enumerate(self.states) if each != WITH_STATES]
        several = int(len(free) > 1)
        steps = [0.0 if each == WITH_STATES else _COARSE[several] for each in self.states]
        ends = [(-each, each) for each in (_FURTHEST.get(each, 0.0) for each in self.states)]
        while True:
            grids = [
                step * np.arange(np.floor(low / step), np.ceil(high / step) + 1.0) if step else np.arange(2.0)
                for step, (low, high) in zip(steps, ends, strict=True)
            ]
            places = np.stack([each.ravel() for each in np.meshgrid(*grids, indexing="ij")])
            if not free:
                return places, steps
            height = self._values(places, unique)[0]
            likely = height > height.max(axis=0) - _DROP
            finished, old = True, list(steps)
            for j in free:
                least = np.where(likely, places[j][:, None], np.inf).min(axis=0)
                most = np.where(likely, places[j][:, None], -np.inf).max(axis=0)
                wanted = _STEPS[self.states[j]][several]
                width = float((most - least).min()) + steps[j]
                wanted *= 2.0 ** -np.ceil(max(np.log2(wanted * _POINTS / width), 0.0))
                if steps[j] > wanted:
                    finished = False
                    steps[j] = max(wanted, steps[j] / _FINER)
                ends[j] = float(least.min()) - old[j], float(most.max()) + old[j]
            if finished:
                return places, steps

    def _values(self, places: Array, unique: Array) -> Array:
        """Return log density, mean and variance (3, K, c) at lattice values (J, K)."""
        count, c = places.shape[1], unique.shape[1]
        nodes, slopes = self.nodes(places)
        f = np.concatenate([np.zeros((1, count * c)), np.repeat(nodes, c, axis=1)])
        found = self.orders(f, np.zeros(count * c), np.tile(unique, (1, count))).reshape(3, count, c)
        found[0] = np.nan_to_num(found[0], nan=-np.inf, posinf=-np.inf) + slopes[:, None]
        return found

    def nodes(self, places: Array) -> tuple[Array, Array]:
        """Return the unconstrained values for lattice values (J, K), in the same shape, and the log Jacobian (K,)."""
        nodes, slopes = places.copy(), np.zeros(places.shape[1])
        for j in np.flatnonzero(np.array(self.states) == ON_THE_LINE):
            nodes[j] = _UNIT * np.sinh(places[j])
            slopes += np.log(_UNIT) + np.logaddexp(places[j], -places[j]) - np.log(2.0)
        return nodes, slopes

    def slopes_of_components(self, parameters: Array) -> Array:
        """Return the derivatives (p, 3, K, c) of log density, mean and variance of components in p parameters."""
        own = self.components(parameters)
        unique = parameters[: len(self.learned), own.first]
        count, c = own.places.shape[1], unique.shape[1]
        f = np.concatenate([np.zeros((1, count * c)), np.repeat(self.nodes(own.places)[0], c, axis=1)])
        found = self.slopes(f, np.zeros(count * c), np.tile(unique, (1, count)), 3)
        return np.nan_to_num(found.reshape(-1, 3, count, c), nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class LocalScaleFactor(PriorFactor):
    """The factor p(u) / N(u | base) of an effect u with local scales.

    Parameters
    ----------
    kept : tuple of str
        Names of the local variables.
    """

    kept: tuple[str, ...] = ()

    @property
    def effects(self) -> list[str]:
        return list(self.kept)

    @property
    def _scales(self) -> ScaleDensity:
        assert isinstance(self.density, ScaleDensity)
        return self.density

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        if self.density is None:
            return ()
        slopes = ParameterSlopes(self._no_slopes, self._average_slopes, self._no_slopes)
        return PlainDensity(self._derivatives), GaussianAverage(self._average), slopes

    def may_be(self, variable: TensorVariable) -> bool:
        return distribution(variable) == MIXTURE

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        argument, count, *given = variable.owner.op.dist_params(variable.owner)
        (locals_,) = (int(np.ravel(each)[0]) for each in evaluate([count]))
        numbers, values = given[:locals_], given[locals_ : 2 * locals_]
        states = tuple(int(np.ravel(each)[0]) for each in evaluate(numbers))
        rows = given[2 * locals_ :]
        graph, parts = row_graph(variable, argument, *values)
        density = ScaleDensity(graph, [depends_on_draws(part) for part in parts], states)
        effect = str(variable.name).removesuffix(SUFFIX)
        kept = tuple(getattr(variable.tag, "local_variables", ()))
        likelihood = replace(self, density=density, whole=True, effect=effect, kept=kept)
        return reading_of(argument, *rows[:OWN], *parts)._replace(likelihood=likelihood)

    def components(self, parameters: Array) -> Components:
        """Return the Gaussian components for effects with these parameters (p, n) of the factor."""
        return self._scales.components(parameters[OWN:])

    def quantiles(self, mean: Array, variance: Array, levels: Array) -> Array:
        with np.errstate(all="ignore"):
            return _quantiles(self._tilted(mean, variance, self.parameters), mean, levels, self.parameters[1])

    def without_moments(self, mean: Array, variance: Array) -> NDArray[np.bool_]:
        with np.errstate(all="ignore"):
            return self._tilted(mean, variance, self.parameters).weak

    def log_densities(self, f: Array, observed: Observed) -> Array:
        values = f[..., 0, :]
        own = values.reshape(-1, values.shape[-1])
        out = np.empty((4, *own.shape))
        for i, each in enumerate(own):
            self._derivatives(each, observed, self.parameters, out[:, i])
        found = np.nan_to_num(out[0], nan=_IMPOSSIBLE, posinf=_IMPOSSIBLE, neginf=_IMPOSSIBLE)
        return np.maximum(found, _IMPOSSIBLE).reshape(values.shape)

    def _derivatives(self, f: Array, y: Observed, parameters: Array, out: Array) -> None:
        """Write log density and three derivatives of the factors. A component with variance 0 has no density."""
        log_weights, means, variances = self.components(parameters).at_effects()
        base_mean, base = parameters[0], parameters[1] ** 2
        with np.errstate(all="ignore"):
            precision = np.where(variances > 0.0, 1.0 / variances, 0.0)
            deviation = f - means
            height = log_weights - 0.5 * deviation**2 * precision + 0.5 * np.log(precision / (2.0 * np.pi))
            top = height.max(axis=0)
            weights = np.exp(height - top)
            total = weights.sum(axis=0)
            weights /= total
            slope = -deviation * precision
            first = (weights * slope).sum(axis=0)
            second = (weights * (slope**2 - precision)).sum(axis=0)
            third = (weights * (slope**3 - 3.0 * slope * precision)).sum(axis=0)
            d = (f - base_mean) / base
            out[0] = top + np.log(total) + 0.5 * d * (f - base_mean) + 0.5 * np.log(2.0 * np.pi * base)
            out[1] = first + d
            out[2] = second - first**2 + 1.0 / base
            out[3] = third - 3.0 * second * first + 2.0 * first**3

    def _tilted(self, mean: Array, variance: Array, parameters: Array) -> _Tilted:
        """Return the tilted distributions p(u) N(u | mean, variance) / N(u | base). Cavities include the base."""
        log_weights, means, variances = self.components(parameters).at_effects()
        precision, slope, constant, alone = relative_cavity(parameters[0], parameters[1] ** 2, mean, variance)
        diverges = ~alone & ((1.0 + precision * variances) <= 0.0).any(axis=0)
        nothing = alone | diverges
        precision, slope, constant = (np.where(nothing, 0.0, each) for each in (precision, slope, constant))
        e = means - mean
        gain = 1.0 + precision * variances
        pull = (slope - precision * e) / gain
        # The exponent is slope e − ½ precision e² + ½ own² v / gain. The slope `own` at e is accurate also for large v.
        own = slope - precision * e
        height = log_weights - 0.5 * np.log(gain) + 0.5 * own**2 * (variances / gain)
        height += (slope - 0.5 * precision * e) * e
        top = height.max(axis=0)
        top = np.where(np.isfinite(top), top, 0.0)
        weights = np.exp(height - top)
        total = weights.sum(axis=0)
        weights /= total
        log_z = np.where(diverges, np.nan, top + np.log(total) + constant)
        left = variances / gain
        share = weights * left
        rare = log_weights < log_weights.max(axis=0) - 0.5 * _DROP
        ends = (share * rare).sum(axis=0) > _END * share.sum(axis=0)
        return _Tilted(
            weights, e + variances * pull, left + 0.0 * e, log_z, nothing & ends, diverges, gain, pull, precision
        )

    def _average(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        if (chosen := at_widths(self._derivatives, mean, variance, y, parameters, out)).size:
            own = self.components(parameters)
            found, scratch = np.empty((5, chosen.size)), np.empty((3, own.rows.shape[2]))
            cavities = np.stack([mean[chosen], variance[chosen]])
            bases = np.stack([parameters[0, chosen], parameters[1, chosen] ** 2])
            average(own.rows, own.of[chosen], cavities, bases, (WEAK, 0.5 * _DROP, _END), scratch, found)
            out[:, chosen] = found

    def _average_slopes(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = 0.0
        learned = np.flatnonzero(self._scales.learned)
        if not learned.size:
            return
        with np.errstate(all="ignore"):
            at = self._tilted(mean, variance, parameters)
            of_variance = 0.5 * (at.pull**2 - at.precision / at.gain)
            by = at.weights, at.weights * at.pull, at.weights * of_variance
            found = self._scales.slopes_of_components(parameters[OWN:])[learned]
            of = self.components(parameters).of
            if found.shape[-1] > 1:
                found = found[..., of]
            out[OWN + learned] = sum((each * found[:, k]).sum(axis=1) for k, each in enumerate(by))

    @staticmethod
    def _no_slopes(*given: Array) -> None:
        given[-1][:] = np.nan


def _quantiles(at: _Tilted, mean: Array, levels: Array, unit: Array) -> Array:
    """Return quantiles (k, n) of mixtures at levels (k, n)."""
    weights = np.ascontiguousarray(np.broadcast_to(at.weights, (len(at.weights), len(mean))))
    deviations, variances = (np.ascontiguousarray(np.broadcast_to(each, weights.shape)) for each in at[1:3])
    first = (weights * deviations).sum(axis=0)
    sd = np.sqrt((weights * ((deviations - first) ** 2 + variances)).sum(axis=0))
    short = np.isfinite(sd) & ~at.weak
    found = np.empty(levels.shape)
    middle, width = np.where(short, first, np.nan), np.where(short, sd, unit)
    of_mixtures(
        weights, deviations, variances, middle, width, (_PLACES, _FINE, _AROUND), np.ascontiguousarray(levels), found
    )
    return mean + found


class LocalVariables(RandomVariable):
    """Posterior draws of unconstrained local variables, given the effects.

    Parameters
    ----------
    density : ScaleDensity
    """

    signature = "(j,n),(p,n)->(j,n)"
    dtype = "float64"
    _print_name = ("LocalVariables", "LocalVariables")
    __props__ = ("name", "signature", "dtype", "inplace", "density")

    def __init__(self, density: ScaleDensity, name: str = "local_variables", **kwargs: Any) -> None:
        self.density = density
        super().__init__(name=name, **kwargs)

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> Any:
        return dist_params[0].shape[-2], dist_params[0].shape[-1]

    def rng_fn(self, rng: np.random.Generator, effects: Array, parameters: Array, size: Any = None) -> Array:
        u = effects[0]
        own = self.density.components(np.ascontiguousarray(parameters))
        log_weights, means, variances = own.at_effects()
        with np.errstate(all="ignore"):
            d = u - means
            atom = (variances == 0.0) & (d == 0.0)
            height = log_weights - 0.5 * d**2 / variances - 0.5 * np.log(variances)
            height = np.where(variances == 0.0, -np.inf, height)
            height = np.where(atom.any(axis=0), np.where(atom, log_weights, -np.inf), height)
        chosen = np.argmax(height + rng.gumbel(size=height.shape), axis=0)
        near = np.array(own.steps)[:, None] * (rng.random((len(own.steps), len(u))) - 0.5)
        return self.density.nodes(own.places[:, chosen] + near)[0]


OWN = 5
"""Number of parameters of the factor itself: mean and standard deviation of the base, two bounds, and a centre."""

LOCAL_SCALE_FACTOR = LocalScaleFactor()
"""Reader of observed variables that are priors with local scales, as factors."""
