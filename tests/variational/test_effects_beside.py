"""A process with inducing inputs plus effects, against dense EP of the same prior, and with rows in files."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import EP, SparseEP, SparseVI
from pymc_gpep.approximations.sparse_ep import InducedArrays
from pymc_gpep.likelihoods.bernoulli import LogitLikelihood
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import StructureError, read_classifier
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import RowError
from tests.approximations.sparse import solved

N, J = 40, 5
RNG = np.random.default_rng(4)
X = RNG.uniform(-2, 2, size=(N, 1))
GROUP = np.concatenate([np.arange(J), RNG.integers(0, J, N - J)])
C = RNG.normal(size=(N, 2))
Y = (RNG.random(N) < 1 / (1 + np.exp(-np.sin(2 * X[:, 0]) - C[:, 0]))).astype(int)
NEW = {"group": np.array([0, 3, 4]), "c": C[:3] + 0.1}
XNEW = np.array([[-1.0], [0.2], [1.5]])
OPTIONS = {"method": "sparse_ep", "hyper": "map", "progressbar": False, "random_seed": 1}


class Arrays(InducedArrays):
    """Prior of a process plus effects, as arrays."""

    def __init__(self, effects, *moments):
        super().__init__(*moments)
        self._block = self._block._replace(effects=effects[None])
        self.n_effects = len(effects)


def arrays():
    rng = np.random.default_rng(2)
    k = np.exp(-0.5 * (X - X.T) ** 2) * 1.5
    m, j = rng.normal(size=(1, N)), rng.normal(size=(3, N))
    some = slice(0, N, 5)
    return [j, k[some][:, some], k[some], np.diag(k).copy(), m]


def sparse(moments, method=SparseEP, **options):
    given = {"tolerance": 1e-11, "jitter": 1e-14} | options
    solution, _, bars = solved(method(**given), Arrays(*moments), Y, LogitLikelihood())
    return solution, bars


def test_fit_equals_dense_ep_of_the_same_prior():
    j, inducing, cross, variance, mean = moments = arrays()
    nearly = cross.T @ np.linalg.solve(inducing, cross)
    k = nearly + np.diag(variance - np.diag(nearly)) + j.T @ j
    dense = EP(tolerance=1e-11).solve(k[None], mean, Y, likelihood=LogitLikelihood())
    solution, _ = sparse(moments)
    assert_allclose(solution.log_evidence, dense.log_evidence, rtol=1e-9)
    found, _ = solution.posterior.predict(Arrays(*moments).block(slice(None)))
    assert found.shape == (1, N)
    z = solution.posterior.whitened.mean[0, -3:]
    assert_allclose(z, j @ np.linalg.solve(k, (dense.mean - mean)[0]), atol=1e-8)


@pytest.mark.parametrize("method", [SparseEP, SparseVI])
def test_derivatives_in_coefficients_match_differences(method):
    moments = arrays()
    solution, bars = sparse(moments, method)
    direction = np.random.default_rng(5).normal(size=moments[0].shape)
    ends = [sparse([moments[0] + h * direction, *moments[1:]], method)[0].evidence for h in (1e-5, -1e-5)]
    assert_allclose((bars.effects[0] * direction).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-6)
    assert np.isfinite(solution.evidence)


def declared(rows=slice(None), named=True, mean=False):
    """A sum of a process and effects, with arrays as `pm.Data` or as constants."""
    data = pm.Data if named else lambda name, values: values
    with pm.Model(coords={"level": range(J)}) as model:
        x, group, c = data("x", X[rows]), data("group", GROUP[rows]), data("c", C[rows])
        cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 3, 3))
        own = pm.gp.mean.Linear(coeffs=[0.5]) if mean else pm.gp.mean.Zero()
        f = pm.gp.Latent(mean_func=own, cov_func=cov).prior("f", X=x)
        top = pm.HalfNormal("top", 1)
        a = pm.Normal("a", pm.Normal("centre", 0, 3), pm.HalfNormal("s", 1), dims="level")
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Deterministic("twice", 2 * a, dims="level")
        pm.Bernoulli(
            "y", logit_p=top**2 + a[group] + c @ b + f, observed=pm.Data("seen", Y[rows]) if named else Y[rows]
        )
    return model


def log_posterior(model, inducing=X[::4], **options):
    space = Hyperparameters(by_inducing(read_classifier(model)))
    blocks = InducingBlocks(space.classifier, None, space.data)
    return SparseLogPosterior(space, SparseEP(**{"tolerance": 1e-11} | options), blocks, inducing[None], True)


def test_gradient_matches_differences():
    posterior = log_posterior(declared(mean=True))
    flat = posterior.flat(posterior.space.initial_point())
    here = posterior(flat)
    assert here.usable
    h = 1e-5 * np.random.default_rng(3).normal(size=flat.size)
    h[len(posterior.space.parameters) + 1 :] = 0.0  # set derivatives of inducing inputs to zero, except one
    ends = [posterior(flat + step, here.start).log_posterior for step in (h, -h)]
    assert here.gradient @ h == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-6, abs=1e-11)


@pytest.mark.variation
def test_arrays_and_model_data_give_equal_fits():
    first, second = (log_posterior(declared(named=named, mean=True)) for named in (True, False))
    flat = first.flat(first.space.initial_point())
    assert_allclose(first(flat).log_posterior, second(flat).log_posterior, rtol=1e-12)


@cache
def fits():
    """One fit by all rows, and one fit by as many inducing inputs."""
    model = declared()
    exact = pm.fit(model=model, **OPTIONS | {"method": "ep"})
    start = {name: float(value) for name, value in exact.hyperparameters.items()}
    return SimpleNamespace(model=model, exact=exact, few=pm.fit(model=model, inducing=X, start=start, **OPTIONS))


def assert_gaussian_moments(found, exact):
    """Compare effects with the Gaussian posterior. An exact fit corrects effects that are far from normal."""
    for name in ("a", "b"):
        assert_allclose(found[name], np.stack([exact.mean_data[name], exact.std_data[name]]), atol=2e-4)
    assert_allclose(found["twice"], 2 * found["a"])
    assert_allclose(found["centre"], exact.effects("centre")["centre"], atol=2e-4)


@pytest.mark.variation
def test_fit_with_all_inputs_as_inducing_inputs_is_exact():
    given = fits()
    assert_allclose(given.few.log_evidence, given.exact.log_evidence, atol=1e-4)
    assert_gaussian_moments(given.few.effects(), given.exact)
    assert set(given.few.effects()) == {"a", "b", "centre", "twice"}
    assert "a[0]" in given.few.summary().index
    assert_allclose(given.few.mean_data["a"], given.exact.mean_data["a"], atol=2e-4)
    ours, theirs = (fit.predict(XNEW, data=NEW) for fit in (given.few, given.exact))
    assert_allclose(ours["p"], theirs["p"], atol=1e-4)
    assert_allclose(ours["p"], given.few.predict(data={"x": XNEW, **NEW})["p"])
    assert_allclose(given.few.loo().elpd, given.exact.loo().elpd, atol=1e-3)


def test_draws_and_files_contain_the_effects():
    given = fits()
    drawn = given.few.sample(2000, random_seed=1)["posterior"]
    assert "f" not in drawn
    moments = given.few.effects("b")["b"]
    assert_allclose(drawn["b"].mean(("chain", "draw")), moments.sel(moment="mean"), atol=0.05)
    assert_allclose(drawn["twice"], 2 * drawn["a"])
    again = gpep.from_datatree(given.few.to_datatree(), given.model)
    assert_allclose(again.predict(XNEW, data=NEW)["p"], given.few.predict(XNEW, data=NEW)["p"])
    assert_allclose(again.effects("b")["b"], moments)


def test_rows_of_tables_are_fitted(tmp_path):
    given = fits()
    np.save(tmp_path / "x.npy", np.column_stack([X, GROUP, C]))
    np.save(tmp_path / "y.npy", Y)
    some = declared(slice(0, 10))
    start = {name: float(value) for name, value in given.exact.hyperparameters.items()}
    files = str(tmp_path / "x.npy"), str(tmp_path / "y.npy")
    fit = pm.fit(model=some, data=files, inducing=X, start=start, **OPTIONS)
    assert_allclose(fit.log_evidence, given.few.log_evidence, rtol=1e-9)
    assert_allclose(fit.predict(XNEW, data=NEW)["p"], given.few.predict(XNEW, data=NEW)["p"], rtol=1e-8)
    assert fit.sample(3, random_seed=1)["posterior"]["a"].shape == (1, 3, J)
    with pytest.raises(ValueError, match=r"with 4 columns, .*'f', group, c, c\), but have 3"):
        pm.fit(0, model=some, data=(np.column_stack([X, C]), Y), **OPTIONS)
    strange = np.column_stack([X, np.where(np.arange(N) == 7, J, GROUP), C])
    with pytest.raises(RowError, match=f"row 7 has {J} as 'group', but its levels are 0 to {J - 1}"):
        pm.fit(0, model=some, data=(strange, Y), **OPTIONS)
    named = pd.DataFrame({"group": GROUP, "x": X[:, 0], "c0": C[:, 0], "c1": C[:, 1]})
    with pytest.raises(ValueError, match=r"data have the columns 'group', 'x', .* order: inputs of 'f', group, c, c"):
        pm.fit(0, model=some, data=(named, Y), **OPTIONS)
    ordered = InMemory(named[["x", "group", "c0", "c1"]], Y)
    assert InducingBlocks(by_inducing(read_classifier(some)), None, {}, rows=ordered).rows is ordered


@pytest.mark.parametrize("wide", [False, True])
def test_error_names_the_row_of_an_invalid_level(wide):
    with pm.Model() as model:
        x = pm.Data("x", np.tile(np.arange(J), 2)[:, None].astype(float))
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=x)
        a = pm.Normal("a", 0, 1, shape=J)
        pairs = np.stack([np.tile(np.arange(J), 2)] * 2, axis=1)
        effects = a[pm.Data("pair", pairs)].sum(axis=1) if wide else a[pairs[:, 0]]
        pm.Bernoulli("y", logit_p=effects + f, observed=np.arange(2 * J) % 2)
    blocks = InducingBlocks(by_inducing(read_classifier(model)), None, {})
    table = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, -1.0]]) if wide else np.array([[1.0], [2.5]])
    blocks.effect_rows.check(table[:1])
    with pytest.raises(RowError, match=f"row 1 has {'-1 as .pair' if wide else '2.5 as .a level'}"):
        blocks.effect_rows.check(table)


@pytest.mark.variation
def test_one_batch_of_all_rows_equals_the_exact_fit():
    """Hyperparameters are fixed, and all rows are inducing inputs."""
    given = fits()
    start = {name: float(value) for name, value in given.exact.hyperparameters.items()}
    options = OPTIONS | {"batch_size": N, "inducing": X, "learn_inducing": False, "warmup": 40, "start": start}
    fit = pm.fit(40, model=given.model, local_iterations=15, **options)
    assert_allclose(fit.log_evidence, given.exact.log_evidence, atol=1e-4)
    assert_gaussian_moments(fit.effects(), given.exact)
    assert_allclose(fit.predict(XNEW, data=NEW)["p"], given.exact.predict(XNEW, data=NEW)["p"], atol=1e-4)
    assert_allclose(fit.loo().elpd, given.few.loo().elpd, atol=1e-3)
    assert "a[0]" in fit.summary().index


@pytest.mark.variation
def test_batch_fit_of_files_resumes_from_a_saved_fit(tmp_path):
    """Rows are in files, and the fit is saved and resumed. The reference is one fit of the model's rows."""
    options = OPTIONS | {"batch_size": 10, "inducing": 6, "obj_optimizer": pm.adam(learning_rate=0.02), "warmup": 1}
    whole = pm.fit(8, model=declared(), **options)
    np.save(tmp_path / "x.npy", np.column_stack([X, GROUP, C]))
    np.save(tmp_path / "y.npy", Y)
    options |= {"model": declared(slice(0, 10)), "data": (str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))}
    first = pm.fit(5, **options)
    again = gpep.from_datatree(first.to_datatree(), options["model"])
    assert_allclose(again.predict(XNEW, data=NEW)["p"], first.predict(XNEW, data=NEW)["p"])
    assert_allclose(again.effects("b")["b"], first.effects("b")["b"])
    held = gpep.EarlyStopping(XNEW, [0, 1, 1], data=NEW)
    rest = pm.fit(3, start=again, callbacks=[held], **options)
    density = rest.predict(XNEW, data=NEW, observed=[0, 1, 1])["log_density"]
    assert_allclose(held.scores["mlpd"][-1], density.mean())
    with pytest.raises(ValueError, match=r"each of 2 rows, but have the shapes \{'group'"):
        gpep.EarlyStopping(None, [0, 1], data=NEW)
    assert_allclose(rest.hist, whole.hist, rtol=1e-8)
    assert_allclose(rest.effects("b")["b"], whole.effects("b")["b"], rtol=1e-8)
    assert rest.sample(3, random_seed=1)["posterior"]["a"].shape == (1, 3, J)
    strange = np.column_stack([X, np.where(np.arange(N) == 37, J, GROUP), C])
    with pytest.raises(RowError, match=f"row 37 has {J} as 'group', but its levels are 0 to {J - 1}"):
        pm.fit(1, **options | {"data": (strange, Y)})


def test_unsupported_models_are_refused():
    given = fits()
    for refused, match in (
        (lambda: given.few.predict(XNEW), r"data={'group': ..., 'c': ...}"),
        (lambda: given.few.predict(data=NEW), "inputs of the process"),
        (lambda: given.few.predict(XNEW, data=NEW | {"group": [0, J, 1]}), "its levels are 0 to 4"),
        (lambda: given.few.effects("f"), "no joint posterior"),
        (lambda: given.few.effects("a", data=NEW), "fit.predict"),
        (lambda: given.few.sample(Xnew=XNEW), "Leave Xnew out"),
    ):
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=match):
            refused()


def no_process():
    pm.Bernoulli("y", logit_p=pm.Normal("a", shape=J)[GROUP], observed=Y)


def selected():
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X[:J])
    pm.Bernoulli("y", logit_p=f[GROUP] + pm.Normal("b"), observed=Y)


def two_processes():
    first, second = (pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior(f"f{ls:g}", X=X) for ls in (1.0, 2.0))
    pm.Bernoulli("y", logit_p=first + second + pm.Normal("b"), observed=Y)


def other_rows():
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
    c = pm.Data("c", C[:, 0])
    pm.Bernoulli("y", logit_p=f + pm.Normal("b") * (c - c.mean()), observed=Y)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (no_process, "without a process"),
        (selected, "one value for each row"),
        (two_processes, "several processes"),
        (other_rows, "depend on the data of that row"),
    ],
)
def test_sums_other_than_process_plus_effects_are_refused(build, match):
    with pm.Model() as model:
        build()
    with pytest.raises(StructureError, match=match):
        pm.fit(model=model, inducing=3, **OPTIONS)
