"""Evidence of observed arrays with normal noise, against dense normal algebra of their entries."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

PERSONS, ITEMS = 6, 4
RNG = np.random.default_rng(0)
Y = RNG.normal(size=(PERSONS, ITEMS))
MASK = RNG.random((PERSONS, ITEMS)) < 0.3
SOME = np.ma.masked_array(Y, MASK)
BY_ITEM, BY_PERSON = RNG.uniform(0.5, 1.5, ITEMS), RNG.uniform(0.5, 1.5, PERSONS)
X = np.linspace(0.0, 2.0, PERSONS)[:, None]
KERNEL = np.exp(-0.5 * (X - X.T) ** 2)
PERSON, ITEM = np.repeat(np.arange(PERSONS), ITEMS), np.tile(np.arange(ITEMS), PERSONS)
SAME_PERSON, SAME_ITEM = (1.0 * (each[:, None] == each) for each in (PERSON, ITEM))
MIXING = np.arange(8.0).reshape(2, ITEMS) / 4.0
JOINT = np.eye(ITEMS) + 0.5


def persons_and_items():
    a, b = pm.Normal("a", 0, 1, shape=PERSONS), pm.Normal("b", 0, 2, shape=ITEMS)
    return a[:, None] + b


def process(**options):
    covariance = pm.gp.cov.ExpQuad(1, ls=1.0)
    return pm.gp.Latent(cov_func=covariance).prior("f", X=X, jitter=1e-9, **options)


def items():
    return pm.Normal("b", 0, 2, shape=ITEMS)


CROSSED = SAME_PERSON + 4.0 * SAME_ITEM
OF_PERSONS = KERNEL[PERSON][:, PERSON]
# Linear predictor, its covariance, standard deviation of the noise, and observed values.
ARRAYS = {
    "scale by item": (persons_and_items, CROSSED, BY_ITEM, Y),
    "transposed": (lambda: persons_and_items().T, CROSSED, BY_ITEM[:, None], Y.T),
    "process and items": (lambda: process()[:, None] + items(), OF_PERSONS + 4.0 * SAME_ITEM, BY_PERSON[:, None], Y),
    "outputs by column": (lambda: process(n_outputs=ITEMS).T, OF_PERSONS * SAME_ITEM, BY_ITEM, Y),
    "mixed outputs": (
        lambda: process(n_outputs=2).T @ MIXING,
        OF_PERSONS * (MIXING.T @ MIXING)[ITEM][:, ITEM],
        BY_ITEM,
        Y,
    ),
    "correlated columns, reversed": (
        lambda: pm.MvNormal("a", np.zeros(ITEMS), JOINT, shape=(PERSONS, ITEMS))[::-1],
        SAME_PERSON * JOINT[ITEM][:, ITEM],
        BY_ITEM,
        Y,
    ),
    "masked, scale by item": (persons_and_items, CROSSED, BY_ITEM, SOME),
    "masked, scale by person": (persons_and_items, CROSSED, BY_PERSON[:, None], SOME),
    "masked, items alone": (items, 4.0 * SAME_ITEM, BY_PERSON[:, None], SOME),
    "masked, one mean": (lambda: pm.Normal("b", 0, 2), np.full((len(ITEM),) * 2, 4.0), 0.7, SOME),
}


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing", "ignore::pymc.exceptions.ImputationWarning")
@pytest.mark.parametrize("name", ARRAYS)
def test_evidence_of_array_equals_evidence_of_its_entries(name):
    argument, covariance, scale, observed = ARRAYS[name]
    with pm.Model():
        pm.Normal("y", argument(), scale, observed=observed)
        fit = pm.fit(method="ep", progressbar=False)
    turned = observed.shape != Y.shape
    noise = np.broadcast_to(scale, observed.shape)
    values, noise = (each.T if turned else each for each in (observed, noise))
    keep = ~np.ma.getmaskarray(values).ravel()
    matrix = (covariance + np.diag(noise.ravel() ** 2))[keep][:, keep]
    y = np.ma.getdata(values).ravel()[keep]
    exact = multivariate_normal(cov=matrix).logpdf(y)
    assert fit.log_evidence == pytest.approx(exact, abs=1e-6)
