"""Two checks of a sampler against the joint distribution of its model.

Both checks run a step directly, with labels that change after the step was tuned. A step may have adapted to other
labels, for example by the sites of its guide. Such a step may be slower, but its transition still leaves the posterior
given the current labels invariant. So nothing is compiled or fitted again, and poor guides are tested.

The posterior stays invariant if a transition depends only on the current labels and the state (θ, f). Auxiliary
variables, such as the utilities of a Gibbs sampler or the particles of an evidence estimate, must be drawn in each
transition given state and labels. A step that stores these variables between transitions must receive a new draw if the
labels change. A draw that ignores the state would not leave the joint distribution invariant.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.step_methods import CompoundStep
from scipy.special import log_expit, log_ndtr
from scipy.stats import ks_2samp, t

import pymc_gpep as gpep
from tests.reference.exact import log_likelihood
from tests.reference.rank_uniformity import ecdf_p_value, histogram_p_value

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

N = 8
X = np.linspace(-1.5, 1.5, N)[:, None]
JITTER = 1e-6  # jitter of PyMC's prior
ETA, LS = 1.5, 0.5  # scales of the priors
POINTS = (0, 3, 7)  # latent values that are ranked, one function after another
QUANTITIES = ("log_eta", "log_ls", *(f"f_{i}" for i in POINTS), "norm", "log_likelihood")


class State(NamedTuple):
    """Hyperparameters and latent values with a leading shape `s`."""

    eta: Array
    ls: Array
    f: Array
    """Latent values, (s, c, n)."""


class Likelihood(NamedTuple):
    """Distribution of labels given latent values, as part of a model and in NumPy."""

    functions: int
    observe: Callable[[Any, Any], Any]
    """Declare the labels in a model, given latent values (c, n) or (n,)."""
    draw: Callable[[np.random.Generator, Array], Labels]
    """Draw labels (s, n) given latent values (s, c, n)."""
    log_density: Callable[[Array, Labels], Array]
    """Log probabilities (s, n) of labels."""


def _signed(f: Array, labels: Labels) -> Array:
    return (2 * labels - 1) * f[:, 0]


LIKELIHOODS = {
    "multinomial_probit": Likelihood(
        3,
        lambda f, y: gpep.MultinomialProbit("y", f.T, observed=y),
        lambda rng, f: np.argmax(f + rng.standard_normal(f.shape), axis=1),
        lambda f, y: log_likelihood(f.swapaxes(1, 2), y),
    ),
    "bernoulli_probit": Likelihood(
        1,
        lambda f, y: gpep.Probit("y", f, observed=y),
        lambda rng, f: (f[:, 0] + rng.standard_normal(f[:, 0].shape) > 0).astype(np.int64),
        lambda f, y: log_ndtr(_signed(f, y)),
    ),
    "bernoulli": Likelihood(
        1,
        lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y),
        lambda rng, f: (f[:, 0] + rng.logistic(size=f[:, 0].shape) > 0).astype(np.int64),
        lambda f, y: log_expit(_signed(f, y)),
    ),
}


def draw_prior(rng: np.random.Generator, draws: int, functions: int, eta_scale: float = ETA) -> State:
    """Independent draws from the prior."""
    eta = np.abs(eta_scale * rng.standard_normal(draws))
    ls = np.exp(LS * rng.standard_normal(draws))
    noise = rng.standard_normal((draws, N, functions))
    return State(eta, ls, (roots(eta, ls) @ noise).swapaxes(1, 2))


def roots(eta: Array, ls: Array) -> Array:
    """Cholesky factors of the prior covariance, (s, n, n)."""
    squared = (X - X.T) ** 2
    k = eta[:, None, None] ** 2 * np.exp(-0.5 * squared / ls[:, None, None] ** 2) + JITTER * np.eye(N)
    return np.linalg.cholesky(k)


def quantities(state: State, labels: Labels, likelihood: Likelihood) -> Array:
    """Return values of `QUANTITIES`, (s, number of quantities). The last two depend on all latent values."""
    white = np.linalg.solve(roots(state.eta, state.ls), state.f.swapaxes(1, 2))
    return np.column_stack(
        [
            np.log(state.eta),
            np.log(state.ls),
            *(state.f[:, k % likelihood.functions, i] for k, i in enumerate(POINTS)),
            (white**2).sum(axis=(1, 2)),
            likelihood.log_density(state.f, labels).sum(axis=1),
        ]
    )


def build(likelihood: Likelihood, eta_scale: float = ETA) -> pm.Model:
    """The model. Its labels are `pm.Data`."""
    outputs = {} if likelihood.functions == 1 else {"n_outputs": likelihood.functions}
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", eta_scale)
        ls = pm.LogNormal("ls", 0, LS)
        labels = pm.Data("labels", np.arange(N) % max(likelihood.functions, 2))
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        likelihood.observe(gp.prior("f", X=X, **outputs), labels)
    return model


class Chain:
    """A step on a model. It is tuned while the labels change, and then fixed.

    Parameters
    ----------
    make : callable
        Function that returns one or more steps within the context of the model.
    seed : int
    likelihood : str
    model : pm.Model, optional
        The default is the model of the likelihood.
    tune : int
    """

    def __init__(
        self,
        make: Callable[[], Any],
        seed: int,
        likelihood: str = "multinomial_probit",
        model: pm.Model | None = None,
        tune: int = 400,
    ) -> None:
        self.likelihood = LIKELIHOODS[likelihood]
        self.model = build(self.likelihood) if model is None else model
        with self.model:
            step = make()
        self.step = CompoundStep(step) if isinstance(step, list) else step
        self._shape = (self.likelihood.functions, N) if self.likelihood.functions > 1 else (N,)
        self.step.setup_chain(np.random.default_rng(seed), tune, 1)
        self._successive(np.random.default_rng(seed + 1), tune)
        self.step.stop_tuning()
        self._tuned = self.step.sampling_state

    def transition(self, state: State, labels: Labels, draws: int = 1, thin: int = 1) -> State:
        """States after every `thin` transitions given labels (n,), from given first states."""
        self.model.set_data("labels", labels)
        white = np.linalg.solve(roots(state.eta[:1], state.ls[:1])[0], state.f[0].T).T
        white = white.reshape(self._shape)
        point = {"eta_log__": np.log(state.eta[0]), "ls_log__": np.log(state.ls[0]), "f_rotated_": white}
        visited = []
        for _ in range(draws):
            for _ in range(thin):
                point, _ = self.step.step(point)
            visited.append(point)
        eta, ls = (np.exp([p[name] for p in visited]) for name in ("eta_log__", "ls_log__"))
        white = np.stack([p["f_rotated_"].reshape(-1, N) for p in visited])
        return State(eta, ls, (roots(eta, ls) @ white.swapaxes(1, 2)).swapaxes(1, 2))

    def successive(self, rng: np.random.Generator, chains: int, draws: int) -> list[tuple[State, Labels]]:
        """Geweke's (2004) successive-conditional simulator: last states of chains and the labels they are given.

        Transitions given labels alternate with labels given latent values. Their stationary distribution is the joint
        distribution. Each chain starts with a draw from the prior, so that it needs no burn-in. Chains are independent,
        so that their spread gives standard errors. One long chain would not: for labels far from its sites, a sampler
        visits the tails rarely and then stays long.
        """
        self.step.sampling_state = self._tuned
        return [self._successive(rng, draws) for _ in range(chains)]

    def _successive(self, rng: np.random.Generator, draws: int) -> tuple[State, Labels]:
        state = draw_prior(rng, 1, self.likelihood.functions)
        states, labels = [], []
        for _ in range(draws):
            (y,) = self.likelihood.draw(rng, state.f)
            state = self.transition(state, y)
            states.append(state)
            labels.append(y)
        return State(*map(np.concatenate, zip(*states, strict=True))), np.stack(labels)

    def ranks(
        self, rng: np.random.Generator, replications: int, draws: int, thin: int, forget: int
    ) -> tuple[NDArray[np.int64], Array]:
        """Simulation-based calibration: ranks (replications, quantities) among the draws, and autocorrelations.

        The true state is itself a draw from the posterior. Chains start there. They need no burn-in, and `forget` times
        `thin` transitions make them independent of the start.
        """
        self.step.sampling_state = self._tuned
        truth = draw_prior(rng, replications, self.likelihood.functions)
        labels = self.likelihood.draw(rng, truth.f)
        true = quantities(truth, labels, self.likelihood)
        ranks = np.empty(true.shape, np.int64)
        products, squares = np.zeros(true.shape[1]), np.zeros(true.shape[1])
        for r, y in enumerate(labels):
            start = State(*(values[r : r + 1] for values in truth))
            visited = self.transition(start, y, forget + draws, thin)
            visited = State(*(values[forget:] for values in visited))
            found = quantities(visited, np.broadcast_to(y, (draws, N)), self.likelihood)
            ranks[r] = (found < true[r]).sum(axis=0)
            deviations = found - found.mean(axis=0)
            products += (deviations[1:] * deviations[:-1]).sum(axis=0) / (draws - 1)
            squares += (deviations**2).sum(axis=0) / draws
        return ranks, products / squares


def rank_p_values(ranks: NDArray[np.int64], draws: int) -> Array:
    """p values of uniformity, two for each of `QUANTITIES`, (2, quantities)."""
    return np.array([[histogram_p_value(r, draws, 16) for r in ranks.T], [ecdf_p_value(r, draws) for r in ranks.T]])


def joint_p_values(
    chains: list[tuple[State, Labels]], likelihood: Likelihood, rng: np.random.Generator, draws: int = 20_000
) -> tuple[Array, Array]:
    """Compare successive-conditional simulations with independent draws from the joint distribution.

    Returns
    -------
    means : ndarray
        p values of the means of `QUANTITIES`, of all latent values, and of the squares of both: t tests with the mean
        of each chain for an observation.
    distributions : ndarray
        p values of two-sample Kolmogorov-Smirnov tests of `QUANTITIES` in the last states of chains.
    """
    prior = draw_prior(rng, draws, likelihood.functions)
    expected = _moments(prior, likelihood.draw(rng, prior.f), likelihood)
    found = [_moments(*chain, likelihood) for chain in chains]
    of_chains = np.stack([each.mean(axis=0) for each in found])
    errors = np.hypot(of_chains.std(axis=0, ddof=1) / np.sqrt(len(chains)), expected.std(axis=0) / np.sqrt(draws))
    means = 2.0 * t.sf(np.abs(of_chains.mean(axis=0) - expected.mean(axis=0)) / errors, len(chains) - 1)
    last = np.stack([each[-1] for each in found])
    return means, np.array([ks_2samp(last[:, j], expected[:, j]).pvalue for j in range(len(QUANTITIES))])


def _moments(state: State, labels: Labels, likelihood: Likelihood) -> Array:
    f = state.f.reshape(len(state.f), -1)
    values = np.column_stack([quantities(state, labels, likelihood), f])
    return np.column_stack([values, values**2])
