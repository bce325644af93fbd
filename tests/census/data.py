"""Simulated data in the shapes of the galleries, and the registry of their models."""

from collections.abc import Callable

import numpy as np

rng = np.random.default_rng(20261129)
N, J, T, P, K = 60, 8, 40, 12, 5
X = rng.normal(size=N)
Z = rng.normal(size=N)
XZ = np.column_stack([X, Z])
GROUP = np.concatenate([np.arange(J), rng.integers(0, J, N - J)])
OTHER = np.concatenate([np.arange(K), rng.integers(0, K, N - K)])
EFFECT = rng.normal(size=J)
ETA = 0.3 + 0.6 * X - 0.4 * Z + 0.5 * EFFECT[GROUP]
Y = ETA + 0.7 * rng.normal(size=N)
COUNTS = rng.poisson(np.exp(ETA))
BINARY = (rng.random(N) < 1 / (1 + np.exp(-ETA))).astype(int)
TRIALS = rng.integers(5, 20, N)
HITS = rng.binomial(TRIALS, 1 / (1 + np.exp(-ETA)))
TIMES = np.exp(ETA) * rng.weibull(1.5, N)
CENSORED = TIMES > 2.5
TIMES_SEEN = np.minimum(TIMES, 2.5)
RATINGS = np.digitize(ETA + rng.logistic(size=N), [-1.5, -0.3, 0.8, 2.0])
CHOICE = rng.integers(0, 3, N)
SHARE = np.clip(1 / (1 + np.exp(-Y)), 0.02, 0.98)
DAYS = np.arange(T) / T
SERIES = np.cumsum(0.3 * rng.normal(size=T)) + 0.2 * rng.normal(size=T)
SERIES_COUNTS = rng.poisson(np.exp(1 + 0.5 * SERIES))
TWO_SERIES = np.column_stack([SERIES, 0.5 * SERIES + 0.3 * rng.normal(size=T)])
MATRIX = rng.normal(size=P)[:, None] + rng.normal(size=K) + 0.5 * rng.normal(size=(P, K))
PASSED = (MATRIX + rng.logistic(size=(P, K)) > 0).astype(int)
VISITS = rng.poisson(np.exp(0.5 * MATRIX))
PLACES = rng.uniform(0, 4, size=(J, 2))
LINE = np.linspace(0, 3, 25)[:, None]
CURVE = np.sin(2 * LINE[:, 0]) + 0.2 * rng.normal(size=25)
W = np.zeros((J, J))
for _i in range(J):
    W[_i, (_i + 1) % J] = W[(_i + 1) % J, _i] = 1.0

MODELS: dict[str, Callable[[], object]] = {}


def model(function: Callable[[], object]) -> Callable[[], object]:
    """Register a model under the name of its function."""
    MODELS[function.__name__] = function
    return function
