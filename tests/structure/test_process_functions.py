"""A prior at other inputs from the graph of its model, against its functions; and where it cannot be had."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.structure import StructureError, read_processes
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.process_functions import process_functions

cov = pm.gp.cov
RNG = np.random.default_rng(3)
X, A, B = (RNG.normal(size=(size, 2)) for size in (7, 4, 5))
TABLE = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 1.5]])


class Differences(cov.Covariance):
    """A user's own covariance, by broadcasting."""

    def full(self, X, Xs=None):
        X, Xs = self._slice(X, Xs)
        Xs = X if Xs is None else Xs
        return pt.exp(-((X[:, None, :] - Xs[None, :, :]) ** 2).sum(-1)) + X[:, :1] * Xs[:, 0]

    def diag(self, X):
        return 1.0 + X[:, 0] ** 2


class Products(cov.Covariance):
    """A user's own covariance, by a product of matrices and another loop over the columns."""

    def full(self, X, Xs=None):
        X, Xs = self._slice(X, Xs)
        Xs = X if Xs is None else Xs
        each = [pt.outer(pt.sin(X[:, j]), pt.sin(Xs[:, j])) for j in range(2)]
        return pt.exp(X @ Xs.T) * pt.switch(pt.gt(pt.outer(X[:, 0], Xs[:, 0]), 0), 1.0, 0.5) + sum(each)

    def diag(self, X):
        return pt.exp((X**2).sum(1)) + (pt.sin(X) ** 2).sum(1)


COVARIANCES = {
    "ExpQuad": cov.ExpQuad(2, ls=[1.0, 2.0]),
    "Matern12": cov.Matern12(2, ls=0.7),
    "Matern32": cov.Matern32(2, ls=0.7),
    "Matern52": cov.Matern52(2, ls_inv=[1.0, 0.3]),
    "RatQuad": cov.RatQuad(2, alpha=0.7, ls=1.1),
    "Exponential": cov.Exponential(2, ls=0.8),
    "Cosine": cov.Cosine(2, ls=2.0),
    "Linear": cov.Linear(2, c=[0.1, 0.2]),
    "Polynomial": cov.Polynomial(2, c=0.1, d=3, offset=1.0),
    "Periodic": cov.Periodic(2, period=1.3, ls=0.5),
    "WrappedPeriodic": cov.WrappedPeriodic(cov.ExpQuad(2, ls=1.0), period=2.0),
    "Circular": cov.Circular(2, period=3.0, active_dims=[0]),
    "Constant": cov.Constant(2.0) + cov.ExpQuad(2, ls=1.0),
    "WhiteNoise": cov.ExpQuad(2, ls=1.0) + cov.WhiteNoise(0.3),
    "products and sums": 2 * (cov.ExpQuad(2, ls=1.0) * cov.Linear(2, c=0.0) + cov.WhiteNoise(0.3)),
    "powers": cov.Exponential(2, ls=1.0) ** 2,
    "active_dims": cov.ExpQuad(2, ls=1.0, active_dims=[1]) * cov.Matern32(2, ls=[1.0, 2.0]),
    "ScaledCov": cov.ScaledCov(2, cov.ExpQuad(2, ls=1.0), lambda x, a: 1 + a * x[:, 0] ** 2, args=(0.3,)),
    "WarpedInput": cov.WarpedInput(2, cov.ExpQuad(2, ls=1.0), pt.tanh),
    "Gibbs": cov.Gibbs(2, lambda x: 1 + x**2, active_dims=[0]),
    "Coregion": cov.Coregion(2, B=TABLE, active_dims=[0]) * cov.ExpQuad(2, ls=1.0, active_dims=[1]),
    "broadcasting": Differences(2),
    "matrix products": Products(2),
}
MEANS = (pm.gp.mean.Zero(), pm.gp.mean.Constant(2.0), pm.gp.mean.Linear(np.array([1.0, 2.0]), 0.3))
# These are 1 by decree where the graph has a distance of 1e-6 for zero.
ROUGH = ("Matern12", "Exponential", "powers")


def made(covariance, mean, X, as_data, rotated=True, outputs=1):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=covariance, mean_func=mean)
        inputs = pm.Data("X", X) if as_data else X
        gp.prior("f", X=inputs, reparameterize=rotated, **({"n_outputs": outputs} if outputs > 1 else {}))
    (functions,) = process_functions(read_processes(model), None)
    return functions


@pytest.mark.parametrize("as_data", [False, True])
@pytest.mark.parametrize("name", COVARIANCES)
def test_a_prior_at_other_inputs_is_that_of_its_functions(name, as_data):
    covariance, mean = COVARIANCES[name], MEANS[list(COVARIANCES).index(name) % 3]
    x, a, b = X, A, B
    if name == "Coregion":
        x, a, b = (np.column_stack([np.arange(len(each)) % 3, each[:, 1]]) for each in (X, A, B))
    functions = made(covariance, mean, x, as_data, rotated=as_data, outputs=3 if as_data else 1)
    (inputs,) = evaluate([functions.inputs])
    short_a, short_b = a, b
    if inputs.shape[1] < 2:  # an array whose other column nothing depends on
        assert not as_data
        short_a, short_b = a[:, covariance.active_dims], b[:, covariance.active_dims]
    found = evaluate(
        [functions.covariance(pt.constant(short_a), pt.constant(short_b)), functions.variance(pt.constant(short_b)),
         functions.mean(pt.constant(short_b))]
    )  # fmt: skip
    expected = evaluate(list(map(pt.as_tensor, (covariance(a, b), covariance(b, diag=True), mean(b)))))
    assert_allclose(found[0], expected[0], rtol=1e-14, atol=1e-15)
    assert_allclose(found[1], expected[1], rtol=2e-6 if name in ROUGH else 1e-10)
    assert_allclose(found[2] if found[2].ndim == 1 else found[2][1], expected[2], rtol=1e-6)  # PyMC's is float32


def test_between_different_points_there_is_no_noise():
    functions = made(cov.ExpQuad(2, ls=1.0) + cov.WhiteNoise(0.3), MEANS[0], X, as_data=True)
    same, variance = evaluate(
        [functions.covariance(pt.constant(A), pt.constant(A)), functions.variance(pt.constant(A))]
    )
    assert_allclose(same.diagonal(), 1.0)
    assert_allclose(variance, 1.09)


def test_one_column_without_an_axis_for_it():
    x = np.linspace(0, 1, 6)
    with pm.Model() as model:
        pm.gp.Latent(cov_func=cov.ExpQuad(1, ls=0.5)).prior("f", X=pm.Data("x", x)[:, None])
    (functions,) = process_functions(read_processes(model), None)
    found, inputs = evaluate([functions.covariance(pt.constant(A[:, :1]), pt.constant(B[:, :1])), functions.inputs])
    assert_allclose(found, np.exp(-2 * (A[:, :1] - B[:, 0]) ** 2), rtol=1e-12)
    assert_allclose(inputs, x[:, None])


def test_nothing_on_the_way_has_two_axes_over_the_data():
    n = 200_000  # a matrix would have 320 GB
    inputs = np.random.default_rng(0).normal(size=(n, 2))
    covariance = 2.0 * cov.Matern52(2, ls=1.0) + cov.WhiteNoise(0.1) + cov.Constant(1.0) * cov.Linear(2, c=0.0)
    for as_data in (False, True):
        functions = made(covariance, MEANS[1], inputs, as_data, rotated=False, outputs=3)
        found = evaluate(
            [functions.covariance(pt.constant(A), pt.constant(B)), functions.variance(functions.inputs),
             functions.mean(functions.inputs)]
        )  # fmt: skip
        assert [each.shape for each in found] == [(4, 5), (n,), (3, n)]


class Refused:
    """Covariances whose graph cannot be had over other points."""

    class Inverse(cov.Covariance):
        """By a matrix function of all points."""

        def full(self, X, Xs=None):
            return pt.linalg.inv(X @ X.T + 1.0) if Xs is None else X @ Xs.T

    class Normalised(cov.Covariance):
        """By a number that all points together have."""

        def full(self, X, Xs=None):
            k = X @ (X if Xs is None else Xs).T
            return k / k.max()

    class Numeric(cov.Covariance):
        """By NumPy."""

        def full(self, X, Xs=None):
            return pt.constant(np.eye(7)) + X @ X.T

    class Weights(cov.Covariance):
        """By other data with a value for each point."""

        def full(self, X, Xs=None):
            w = pt.constant(np.arange(7.0))
            return pt.outer(w, w) * pt.exp(X @ X.T)


REFUSED = {
    "Inverse": (Refused.Inverse(2), "it goes through MatrixInverse"),
    "Normalised": (Refused.Normalised(2), "it takes a number from 'X' that is of all points together"),
    "Numeric": (Refused.Numeric(2), r"it has the points of a constant of shape \(7, 7\) along an axis"),
    "Weights": (Refused.Weights(2), r"it depends on a constant of shape \(7,\) besides 'X'"),
}


@pytest.mark.parametrize(("covariance", "why"), REFUSED.values(), ids=REFUSED)
def test_refused(covariance, why):
    with pytest.raises(StructureError, match=f"The prior of 'f' cannot be had at other inputs.*{why}.*Give gp=..."):
        made(covariance, MEANS[0], X, as_data=True)


def test_columns_of_arrays_that_the_graph_does_not_put_side_by_side():
    covariance = cov.ExpQuad(2, ls=1.0, active_dims=[1]) + cov.ExpQuad(2, ls=1.0, active_dims=[0])
    with pytest.raises(StructureError, match=r"besides a constant of shape \(7, 1\).*as one pm.Data"):
        made(covariance, MEANS[0], X, as_data=False)
