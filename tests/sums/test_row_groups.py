"""Rows with equal coefficients are grouped to one point of a fit. Similar rows are not."""

import numpy as np
import pymc as pm
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp

from pymc_gpep.approximations import EP, KL, ScalarLaplace
from pymc_gpep.graphs.interpreted import graph_function, initial_point
from pymc_gpep.prior_moments.prior_functions import by_groups
from pymc_gpep.reading import read_classifier

N = 12
GROUP = np.repeat([0, 1, 2], 4)
TWO = np.tile([0.0, 1.0], 6)
Y = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1])
BOTH = np.unique(np.stack([GROUP, TWO]), axis=1, return_inverse=True)[1].ravel()


def groups_of(argument, approximator=None, y=Y, observe=None):
    """Group of each row and the grouped classifier, or None if rows are not grouped."""
    with pm.Model() as model:
        eta = argument()
        if observe is None:
            pm.Bernoulli("y", logit_p=eta, observed=y)
        else:
            observe(eta)
    found = by_groups(read_classifier(model), approximator or EP())
    return None if found.groups is None else found.groups.of, found


def same_partition(a, b):
    pairs = {(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)}
    return len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


def effects():
    return pm.Normal("u", 0.0, pm.HalfNormal("s"), shape=3)


def standardised():
    x = pm.Data("x", TWO)
    return effects()[GROUP] + pm.Normal("b") * (x - x.mean()) / x.std()


def by_matrix():
    design = np.column_stack([np.ones(N), TWO, np.eye(3)[GROUP]])
    return pt.as_tensor(design) @ pm.Normal("b", 0.0, pm.HalfNormal("s"), shape=5)


def by_sparse_matrix():
    design = sp.csr_matrix(np.column_stack([TWO, np.eye(3)[GROUP]]))
    return ps.structured_dot(ps.as_sparse_variable(design), pm.Normal("b", shape=(4, 1)))[:, 0]


def of_levels():
    level = pm.Normal("a") + pm.Normal("b") * np.array([0.5, 0.5, 2.0])
    return level[GROUP]


def by_offsets_of_hyperparameters():
    return effects()[GROUP] + pm.HalfNormal("t") * TWO


def of_a_process():
    x = TWO[:, None] + 1.0 * (GROUP == 2)[:, None]
    return pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("l"))).prior("f", X=x) + pm.Normal("a")


def of_a_process_alone():
    x = pm.Data("x", TWO[:, None] + 1.0 * (GROUP == 2)[:, None])
    cov = pm.HalfNormal("s") ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("l")) + pm.gp.cov.Constant(0.1)
    return pm.gp.Latent(mean_func=pm.gp.mean.Linear(pm.Gamma("c", 2, 2, shape=1)), cov_func=cov).prior("f", X=x)


PROCESS = np.unique(TWO + (GROUP == 2), return_inverse=True)[1]
SAME = {
    "effects of groups": (lambda: effects()[GROUP], GROUP),
    "one level": (lambda: pm.Normal("a") + np.zeros(N), np.zeros(N, int)),
    "columns standardised in the model": (standardised, BOTH),
    "a matrix": (by_matrix, BOTH),
    "a sparse matrix": (by_sparse_matrix, BOTH),
    "levels with the same covariate": (of_levels, GROUP // 2),
    "offsets": (by_offsets_of_hyperparameters, BOTH),
    "a process at the same inputs": (of_a_process, PROCESS),
    "a process alone at the same inputs": (of_a_process_alone, PROCESS),
    "a cumulative sum": (lambda: pt.cumsum(pm.Normal("w", shape=3))[GROUP] + TWO * pm.Normal("b"), BOTH),
}


@pytest.mark.parametrize("name", SAME)
def test_rows_with_equal_coefficients_are_one_point(name):
    argument, expected = SAME[name]
    found, classifier = groups_of(argument)
    assert same_partition(found, expected)
    assert classifier.prior.n_points == len(np.unique(expected))
    assert classifier.n_points == N


@pytest.mark.parametrize("name", SAME)
def test_prior_of_groups_equals_the_prior_of_their_rows(name):
    found, classifier = groups_of(SAME[name][0])
    rows = read_classifier(classifier.model)
    model = classifier.model
    value_vars = [model.rvs_to_values[rv] for rv in rows.hyperparameters]
    outputs = [rows.prior.covariances(), rows.prior.mean(), classifier.prior.covariances(), classifier.prior.mean()]
    function = graph_function(model, value_vars, model.replace_rvs_by_values(outputs))
    point = initial_point(model)
    k, mean, own, own_mean = function(*(point[v.name] + 0.3 for v in value_vars))
    first = classifier.groups.first
    np.testing.assert_allclose(own, k[:, first][:, :, first], atol=1e-12)
    np.testing.assert_allclose(own_mean, mean[:, first], atol=1e-12)
    off = ~np.eye(N, dtype=bool)  # a process has a jitter on the diagonal
    np.testing.assert_allclose(k[0][off], own[0][found][:, found][off], atol=2e-6)


def alike_at_first():
    """Powers of a scale that starts at 1: coefficients are equal at the start and differ elsewhere."""
    s = pm.HalfNormal("s", initval=1.0)
    return effects_of_one(GROUP) * s ** np.linspace(0.0, 1.0, N)


def effects_of_one(group):
    return pm.Normal("v", shape=3)[group]


def mixed_and_alike_at_first():
    """As `alike_at_first`, with an operation that mixes rows, so that coefficients are compared by value."""
    s = pm.HalfNormal("s", initval=1.0)
    return pt.cumsum(effects_of_one(GROUP) * 0.0 + pm.Normal("b")) * s ** np.linspace(0.0, 1.0, N)


def proportional():
    """Rows that are equal after division by their norm, or by the norms of the columns."""
    design = np.outer(np.linspace(1.0, 2.0, N), [1.0, 0.5])
    return pt.as_tensor(design) @ pm.Normal("b", shape=2)


def nearly_equal():
    return pm.Normal("b") * (1.0 + 1e-12 * np.arange(N))


def noise_at_each_point():
    cov = pm.gp.cov.ExpQuad(1, ls=1.0) + pm.gp.cov.WhiteNoise(pm.HalfNormal("e"))
    return pm.gp.Latent(cov_func=cov).prior("f", X=TWO[:, None])


def equal_in_the_column_of_the_covariance():
    """Rows that are equal in the column of the covariance.

    The mean depends on the other column, which differs within groups.
    """
    x = np.column_stack([TWO, np.arange(N)])
    mean = pm.gp.mean.Linear(np.array([0.0, 1.0]))
    cov = pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0])
    return pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=x)


APART = {
    "alike at the first hyperparameters": alike_at_first,
    "alike at the first hyperparameters, rows mixed": mixed_and_alike_at_first,
    "proportional rows": proportional,
    "nearly equal rows": nearly_equal,
    "an effect of each row": lambda: pm.Normal("e", 0.0, pm.HalfNormal("s"), shape=N) + pm.Normal("a"),
    "white noise": noise_at_each_point,
    "white noise of a process with a level": lambda: noise_at_each_point() + pm.Normal("a"),
    "means of a process": equal_in_the_column_of_the_covariance,
}


@pytest.mark.parametrize("name", APART)
def test_similar_but_different_rows_are_not_grouped(name):
    assert groups_of(APART[name])[0] is None


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
def test_only_rows_with_a_response_are_grouped():
    y = np.ma.masked_array(Y, mask=np.arange(N) % 5 == 0)
    found, classifier = groups_of(lambda: effects()[GROUP], y=y)
    assert same_partition(found, GROUP[~y.mask])
    assert classifier.n_rows == N


def test_rows_of_several_variables_are_grouped_by_variable():
    def observe(eta):
        pm.Bernoulli("y", logit_p=eta, observed=Y)
        pm.Poisson("k", mu=pm.math.exp(eta), observed=Y + 1)

    found, classifier = groups_of(lambda: effects()[GROUP], observe=observe)
    assert same_partition(found, np.concatenate([GROUP, GROUP + 3]))
    assert classifier.prior.n_points == 6


@pytest.mark.parametrize("approximator", [ScalarLaplace(), KL(), EP()])
def test_rows_with_different_offsets_are_grouped(approximator):
    def observe(eta):
        pm.Poisson("k", mu=pm.math.exp(eta + np.linspace(0.0, 1.0, N)), observed=Y)

    assert same_partition(groups_of(lambda: effects()[GROUP], approximator, observe=observe)[0], GROUP)
