"""Rows drawn from a model, in any number, so that the best possible predictions are known."""

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr

from benchmarks.paper.data import Split

Array = np.ndarray

ROWS, HELD_OUT = 2_000_000, 10_000
CLASSES, WAVES = 3, 200
MAGNITUDE = 3.0
LENGTHS = np.array([2.0, 2.0, 2.0, 2.0, 5.0, 5.0, np.inf, np.inf])
"""Length scales of the inputs. The last two inputs are irrelevant."""
_PART, _NODES = 20_000, 64


def drawn(folder: str, rows: int = ROWS, held_out: int = HELD_OUT) -> Split:
    """Normal inputs of eight columns, and three classes of a multinomial probit; `folder` is not used."""
    rng = np.random.default_rng(20261123)
    X = rng.standard_normal((rows + held_out, len(LENGTHS)))
    utilities = np.concatenate([part + rng.standard_normal(part.shape) for part in _parts(X)])
    y = utilities.argmax(axis=1)
    return Split(X[:rows], y[:rows], X[rows:], y[rows:])


class Truth:
    """The model that the rows were drawn from, as a classifier of scikit-learn."""

    def fit(self, X: Array, y: Array) -> "Truth":
        """Do nothing: the model is known."""
        return self

    def predict_proba(self, X: Array) -> Array:
        """Probabilities (m, c) given the latent values of the draw."""
        return np.concatenate([probit_probabilities(part) for part in _parts(X)])


def probit_probabilities(f: Array) -> Array:
    """Multinomial probit (n, c) of latent values (n, c): ∫ N(u | 0, 1) Π_{j≠k} Φ(u + f_k − f_j) du by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    p = np.empty_like(f)
    for k in range(f.shape[1]):
        others = np.delete(f, k, axis=1)
        below = ndtr(nodes + f[:, k, None, None] - others[:, :, None]).prod(axis=1)
        p[:, k] = below @ weights
    return p / p.sum(axis=1, keepdims=True)


def _parts(X: Array) -> Iterator[Array]:
    """Latent values (·, c) of rows, in parts.

    A sum of random waves approximates a draw of functions with a squared exponential covariance (Rahimi and Recht
    2007).
    """
    rng = np.random.default_rng(2017)
    frequencies = rng.standard_normal((CLASSES, WAVES, len(LENGTHS))) / LENGTHS
    phases = rng.uniform(0.0, 2.0 * np.pi, (CLASSES, WAVES))
    for at in range(0, len(X), _PART):
        waves = np.cos(np.einsum("nd,cwd->ncw", X[at : at + _PART], frequencies, optimize=True) + phases)
        yield MAGNITUDE * np.sqrt(2.0 / WAVES) * waves.sum(axis=2)
