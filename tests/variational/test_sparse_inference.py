"""`pm.fit(method="sparse_ep")`: results, predictions, files and refusals."""

import tracemalloc
from contextlib import nullcontext

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.variational.model_warnings import off_symmetry, warn_of_free_magnitude
from tests import models

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))


@pytest.fixture(scope="module")
def whole():
    """Fit with all rows as fixed inducing inputs."""
    model, gp = models.shared()
    with model:
        fit = pm.fit(method="sparse_ep", gp=gp, inducing=X, shared_inducing=True, learn_inducing=False, jitter=1e-9,
                     sites="quadrature", progressbar=False)  # fmt: skip
    return model, gp, fit


@pytest.fixture(scope="module")
def pairwise():
    """The factors of the paper. Inducing inputs of each class are learned for a few steps."""
    model, gp = models.shared()
    seen = []
    with model, pytest.warns(RuntimeWarning, match="and inducing inputs did not converge after 4 iterations"):
        fit = pm.fit(4, method="sparse_ep", gp=gp, inducing=5, learn_inducing=True, sites="pairwise",
                     random_seed=1, progressbar=False,
                     callbacks=[lambda fit, losses, i: seen.append((fit.objective, losses[-1], i))])  # fmt: skip
    return model, gp, fit, seen


@pytest.fixture(scope="module")
def nested():
    """Sites that couple the functions, and a covariance for each function."""
    model, gp = models.per_class()
    with model:
        fit = pm.fit(method="sparse_ep", gp=gp, inducing=6, learn_inducing=False, random_seed=1,
                     progressbar=False, tolerance=1e-4)  # fmt: skip
    return model, gp, fit


@pytest.fixture(scope="module")
def dense(nested):
    """Dense fit of the same model."""
    with nested[0]:
        return pm.fit(method="nested_ep", hyper="map", progressbar=False)


def test_all_rows_as_inducing_inputs_equal_qiep(whole):
    model, gp, fit = whole
    with model:
        dense = pm.fit(method="qiep", progressbar=False)
    assert fit.converged
    assert_allclose(fit.log_evidence, dense.log_evidence, rtol=1e-4)
    assert_allclose(fit.hyperparameters.ls, dense.hyperparameters.ls, rtol=1e-2)
    ours, theirs = fit.predict(gp, NEW), dense.predict(gp, NEW)
    assert_allclose(ours.p, theirs.p, atol=2e-3)
    assert_allclose(ours.cov, theirs.cov, atol=0.05 * float(theirs.cov.max()))
    assert ours.p.dims == theirs.p.dims
    assert list(ours.species.values) == list(models.SPECIES)
    table = gpep.compare_methods({"sparse": fit, "dense": dense}, "dense", Xnew=NEW, ynew=np.zeros(6, int))
    assert table.loc["sparse", "log_evidence"] == fit.log_evidence
    assert table.loc["sparse", ["latent_mean_difference", "probability_difference"]].max() < 0.05
    assert_allclose(*table["mlpd"], atol=2e-3)
    assert_allclose(fit.latent["mean"], dense.latent["mean"], atol=0.05)
    assert fit.latent.coords.equals(dense.latent.coords)


def test_text_distinguishes_log_evidence_and_objective(whole, pairwise):
    assert "sparse_ep (sites='quadrature', 30 inducing inputs for all functions): log evidence" in str(whole[2])
    text = repr(pairwise[2])
    assert "sparse_ep (sites='pairwise', 5 inducing inputs for each function): objective" in text
    assert "not a log evidence: do not compare models by it" in text
    assert text.count("log evidence") == 1
    assert np.isnan(pairwise[2].log_evidence)
    assert np.isfinite(pairwise[2].objective)


def test_inducing_inputs_are_learned(pairwise):
    _, _, fit, seen = pairwise
    assert fit.inducing.dims == ("species", "inducing", "column")
    assert fit.inducing.shape == (3, 5, 2)
    assert fit.trace.history[0].theta.size == 3 + 30
    assert (np.diff(fit.hist) < 0).all()
    assert_allclose(fit.hist, -fit.history.log_posterior)
    assert [i for *_, i in seen] == [1, 2, 3, 4]
    assert_allclose([loss for _, loss, _ in seen], fit.hist[1:])
    rows = {tuple(row) for row in X}
    assert not {tuple(row) for row in fit.inducing.values.reshape(-1, 2)} & rows


def test_predictions_match_dense_formula(pairwise):
    _, gp, fit, _ = pairwise
    at = xr.DataArray(NEW, dims=["place", "column"], coords={"place": list("abcdef")})
    found = fit.predict(gp, at, covariances=False)
    assert found.p.dims == ("place", "species")
    assert list(found.place.values) == list("abcdef")
    assert_allclose(found.p.sum("species"), 1.0)
    assert "cov" not in found
    assert (fit.predict(gp, X).p.values.argmax(axis=1) == Y).mean() > 0.9
    with pytest.raises(ValueError, match="Xnew has 1 columns"):
        fit.predict(gp, NEW[:, :1])
    with pytest.raises(ValueError, match="gp: none of the 1 processes"):
        fit.predict(pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)), NEW)


@pytest.mark.variation
def test_nested_sites_agree_with_the_dense_fit(nested, dense):
    _, gp, fit = nested
    assert fit.converged
    assert "sparse_ep (sites='nested', 6 inducing inputs for each function): log evidence" in str(fit)
    assert_allclose(fit.log_evidence, fit.objective)
    assert abs(fit.log_evidence - dense.log_evidence) < 1.0
    ours, theirs = fit.predict(gp, NEW), dense.predict(gp, NEW)
    assert_allclose(ours.p, theirs.p, atol=0.05)
    assert_allclose(ours.p.sum(axis=1), 1.0, atol=1e-9)
    off = ~np.eye(3, dtype=bool)
    assert (np.abs(ours.cov.values[:, off]) > 0.01).all()
    assert_allclose(ours.cov, theirs.cov, atol=0.1 * float(theirs.cov.max()))


@pytest.mark.variation(but=["pairwise"])
@pytest.mark.parametrize("which", ["pairwise", "nested"])
def test_loaded_fit_equals_saved_fit(which, request, tmp_path):
    model, gp, fit, *_ = request.getfixturevalue(which)
    fit.to_datatree().to_netcdf(tmp_path / "fit.nc")
    again = gpep.from_datatree(az.from_netcdf(tmp_path / "fit.nc"), model)
    assert str(again) == str(fit)
    assert_allclose(again.inducing, fit.inducing)
    assert_allclose(again.hist, fit.hist)
    xr.testing.assert_allclose(again.predict(gp, NEW), fit.predict(gp, NEW))


def test_loading_with_another_model_is_refused(pairwise):
    tree = pairwise[2].to_datatree()
    with pytest.raises(ValueError, match="The fit has the hyperparameters ls_log__"):
        gpep.from_datatree(tree, models.per_class()[0])
    with pm.Model(coords=pairwise[0].coords) as other:
        ls = pm.InverseGamma("ls", 3, 4, dims="petal")
        gp = pm.gp.Latent(cov_func=pm.HalfNormal("eta", 3) ** 2 * pm.gp.cov.ExpQuad(2, ls=ls))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3, dims=("species", "flower")).T, observed=Y)
    with pytest.raises(ValueError, match="The priors of the hyperparameters differ from the fitted"):
        gpep.from_datatree(tree, other)


def test_two_classes_by_one_function_are_close_to_two_functions():
    model, gp = models.bernoulli_probit()
    with model:
        fit = pm.fit(method="sparse_ep", gp=gp, inducing=8, learn_inducing=False, progressbar=False)
        dense = pm.fit(method="ep", progressbar=False)
    assert abs(fit.log_evidence - dense.log_evidence) < 1.0
    found, theirs = fit.predict(gp, NEW), dense.predict(gp, NEW)
    assert found["variance"].dims == theirs["variance"].dims
    assert_allclose(found.p, theirs.p, atol=0.1)


@pytest.mark.variation(but=["one"])
@pytest.mark.parametrize("build", [models.shared, models.bernoulli_probit, "robust_max"], ids=["probit", "one", "step"])
def test_variational_bound_is_fitted_and_named(build):
    if build == "robust_max":
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", 3, 3)
            gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=ls) + pm.gp.cov.WhiteNoise(0.5))
            gpep.RobustMax("y", gp.prior("f", X=X, n_outputs=3).T, epsilon=0.01, observed=Y)
    else:
        model, gp = build()
    with model:
        fit = pm.fit(method="sparse_vi", gp=gp, inducing=8, learn_inducing=False, progressbar=False)
        other = pm.fit(method="sparse_ep", gp=gp, inducing=8, learn_inducing=False, progressbar=False)
    assert fit.converged
    assert "sparse_vi (8 inducing inputs" in str(fit)
    assert f"lower bound {fit.lower_bound:.4f} of the log evidence" in str(fit)
    assert fit.lower_bound < other.log_evidence
    assert np.isnan(fit.log_evidence)
    assert np.isnan(other.lower_bound)
    p = fit.predict(gp, X).p.values
    assert_allclose(p.sum(axis=1), 1.0)
    assert_allclose(p, other.predict(gp, X).p.values, atol=0.25)
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert str(again) == str(fit)
    assert again.lower_bound == fit.lower_bound


def test_fit_without_parameters_to_learn_is_solved_once():
    model, gp = models.fixed()
    with model:
        fit = pm.fit(method="sparse_ep", gp=gp, learn_inducing=False, progressbar=False)
    assert fit.converged
    assert "Nothing to learn; EP converged" in fit.message
    assert fit.inducing.shape == (3, 30, 2)
    assert gpep.from_datatree(fit.to_datatree(), model).log_evidence == fit.log_evidence


@pytest.mark.parametrize(
    ("magnitude", "noise", "warns"), [("free", 0.0, True), ("free", 1.0, False), ("fixed", 0.0, False)]
)
def test_undetermined_magnitude_causes_a_warning(magnitude, noise, warns):
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 3) if magnitude == "free" else 1.0
        cov = eta**2 * pm.gp.cov.Matern32(2, ls=pm.InverseGamma("ls", 3, 3))
        gp = pm.gp.Latent(cov_func=cov + pm.gp.cov.WhiteNoise(noise) if noise else cov)
        gpep.RobustMax("y", gp.prior("f", X=X, n_outputs=3).T, epsilon=0.01, observed=Y)
    classifier = read_classifier(model)
    space = Hyperparameters(classifier)
    blocks = InducingBlocks(classifier, as_gps(gp), space.data)
    with (
        pytest.warns(UserWarning, match="The magnitude of the latent functions is undetermined")
        if warns
        else nullcontext()
    ):
        warn_of_free_magnitude(space, blocks, space.initial_point())


def test_symmetric_hyperparameter_among_many_is_found_in_few_evaluations(monkeypatch):
    """Half of the columns are constant. Their length scales have no effect, and start at the mode of their prior."""
    rng = np.random.default_rng(0)
    inputs = np.hstack([rng.normal(size=(40, 30)), np.ones((40, 30))])
    with pm.Model() as model:
        eta, log_ls = pm.Normal("eta", 0, 1, shape=2), pm.Normal("log_ls", 0, 1, shape=60)
        scaled = pm.gp.cov.ExpQuad(60, ls=5.0 * pt.exp(log_ls))
        gp = pm.gp.Latent(cov_func=(1.0 + eta[0] ** 2) * scaled + (1.0 + eta[1]) ** 2 * pm.gp.cov.Matern32(60, ls=9.0))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=inputs), observed=rng.integers(2, size=40))
    classifier = read_classifier(model)
    space = Hyperparameters(classifier)
    blocks = InducingBlocks(classifier, as_gps(gp), space.data)
    evaluate, evaluated = InducingBlocks.block, []
    monkeypatch.setattr(InducingBlocks, "block", lambda *given: evaluated.append(1) or evaluate(*given))
    with pytest.warns(UserWarning, match="symmetric about the initial value of 'eta'"):
        begins = off_symmetry(space, blocks, space.initial_point())
    assert begins[0] == 1.0
    assert not begins[1:].any()
    assert len(evaluated) < 30


def test_leave_one_out_of_coupled_sites_matches_refits(whole, nested, dense):
    model, gp, fit = nested
    found, expected = fit.loo(), dense.loo()
    assert_allclose(found.elpd, expected.elpd, rtol=0.3)
    assert found.elpd_i.coords.equals(expected.elpd_i.coords)
    assert not found.warning
    assert set(az.compare({"sparse": found, "dense": expected}).index) == {"sparse", "dense"}
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert_allclose(again.loo(gp=gp).elpd_i, found.elpd_i, atol=1e-4)
    with pytest.raises(NotImplementedError, match="treat the functions of a point as independent"):
        whole[2].loo()


def test_refits_of_left_out_rows_are_refused_with_inducing_inputs(pairwise):
    with pytest.raises(
        NotImplementedError,
        match=r"loo\(refit_above=\.\.\.\) needs the joint posterior .* a fit by inducing inputs does not have",
    ):
        pairwise[2].loo(refit_above=0.3)


@pytest.mark.parametrize("what", ["importance", "corrected_evidence"])
def test_checks_of_a_joint_posterior_raise_not_implemented_error(what, pairwise):
    with pytest.raises(
        NotImplementedError,
        match=f"{what} needs the joint posterior .*, which a fit by inducing inputs does not have",
    ):
        getattr(pairwise[2], what)()


REFUSED = {
    "no Latent": ({"gp": 3}, TypeError, "gp must be the pm.gp.Latent"),
    "hyper": ({"hyper": "nuts"}, ValueError, "hyper='nuts' is only for methods that work on all latent values"),
    "half a sweep": ({"max_iterations": 2.5}, TypeError, "max_iterations must be a whole number"),
    "unknown": ({"colour": 1}, TypeError, "sparse_ep has no option colour. Options: tolerance, max_iterations"),
    "misspelt": ({"inducings": 3, "tolerence": 1e-3}, TypeError, r"Did you mean 'inducing' and 'tolerance'\?"),
    "misspelt for batches": ({"batchsize": 3}, TypeError, r"Did you mean 'batch_size'\?"),
    "sites": ({"sites": "none"}, ValueError, "sites must be one of"),
    "too many": ({"inducing": 31}, ValueError, "inducing must be from 1 to 30"),
    "start": (
        {"start": {"rho": 1.0}},
        ValueError,
        "start names rho, but the hyperparameters of",
    ),
    "n": ({"n": 1.5}, TypeError, "must be a whole number"),
    "optimiser": (
        {"update": "inner", "obj_optimizer": "adam"},
        TypeError,
        "obj_optimizer must be an optimiser of PyMC",
    ),
    "backend": ({"backend": "numbat"}, ValueError, "backend must be .* but is 'numbat'"),
    "memory": ({"memory": "sites"}, TypeError, "Options of batches were given, memory: give batch_size"),
    "decay": ({"decay": 0.1, "warmup": 1}, TypeError, "Options of batches were given, decay, warmup: give"),
    "batches": ({"method": "gfitc", "batch_size": 5}, TypeError, "gfitc has no batches. Leave batch_size out"),
}


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_options_are_refused_before_any_computation(options, kind, message):
    model, gp = models.shared()
    with model, pytest.raises(kind, match=message):
        pm.fit(**{"method": "sparse_ep", "gp": gp, "progressbar": False} | options)


def test_error_for_unsupported_sites_names_the_likelihood():
    model, gp = models.softmax()
    with (
        model,
        pytest.raises(
            ValueError,
            match=r"'sparse_ep'.* is softmax. Methods for this likelihood are 'laplace', 'qep', 'qiep', 'ivm'",
        ),
    ):
        pm.fit(method="sparse_ep", gp=gp)


def test_predictions_without_gp_equal_predictions_with_gp():
    model, gp = models.probit()
    options = {"method": "sparse_ep", "inducing": 5, "learn_inducing": False, "random_seed": 2, "progressbar": False}
    with model:
        fit, other = pm.fit(**options), pm.fit(**options, gp=gp)
    assert_allclose(fit.log_evidence, other.log_evidence, rtol=1e-9)
    assert_allclose(fit.theta, other.theta, rtol=1e-6)
    found = fit.predict(NEW)
    xr.testing.assert_allclose(found, other.predict(gp, NEW), rtol=1e-6)
    xr.testing.assert_allclose(found, gpep.from_datatree(fit.to_datatree(), model).predict(Xnew=NEW))
    assert_allclose(fit.fitted_inputs(), X)
    with pytest.raises(TypeError, match="predict needs new inputs"):
        fit.predict(gp)


@pytest.mark.variation
def test_covariance_that_cannot_be_read_from_the_graph_needs_gp():
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, 1.0) * (inputs**2).max())
        gpep.MultinomialProbit("y", gp.prior("f", X=inputs, n_outputs=3).T, observed=Y)
    with (
        model,
        pytest.raises(gpep.StructureError, match=r"The prior of 'f' cannot be computed at other inputs.*Give gp="),
    ):
        pm.fit(method="sparse_ep", inducing=4, progressbar=False)


def test_interrupt_keeps_the_best_point(monkeypatch):
    def refused(self, theta, start=None):
        raise AssertionError("Who interrupts a fit does not wait for another solve.")

    def stop(fit, losses, i):
        if i == 2:
            raise KeyboardInterrupt

    model, gp = models.shared()
    solve = SparseLogPosterior.solve
    monkeypatch.setattr(SparseLogPosterior, "solve", refused)
    with model, pytest.warns(RuntimeWarning, match=r"did not converge after 2 iterations \(Interrupted\)\.$"):
        fit = pm.fit(method="sparse_ep", gp=gp, inducing=4, callbacks=[stop], progressbar=False)
    monkeypatch.setattr(SparseLogPosterior, "solve", solve)
    assert len(fit.hist) == 3
    assert fit.predict(gp, NEW).p.notnull().all()


@pytest.mark.slow
def test_no_matrix_has_two_axes_over_points():
    n = 4000
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(n, 2))
    tracemalloc.start()
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 3)
        gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(2, ls=ls))
        gpep.MultinomialProbit("y", gp.prior("f", X=inputs, n_outputs=3).T, observed=inputs.argmax(axis=1))
        with pytest.warns(RuntimeWarning, match="did not converge after 1 iteration "):
            fit = pm.fit(1, method="sparse_ep", inducing=5, shared_inducing=True, progressbar=False)
    fit.predict(inputs)
    str(fit)
    gpep.from_datatree(fit.to_datatree(), model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * n * 8 / 2


@pytest.mark.parametrize("rotated", [False, True])
def test_warning_for_a_large_jitter_advises_white_noise(rotated):
    """With the advised jitter and all rows as inducing inputs, the evidence equals the dense evidence."""

    def model(noise, **given):
        with pm.Model() as made:
            cov = 3 * pm.gp.cov.ExpQuad(2, ls=1.0)
            gp = pm.gp.Latent(cov_func=cov + pm.gp.cov.WhiteNoise(noise) if noise else cov)
            pm.Bernoulli("y", logit_p=gp.prior("f", X=X, reparameterize=rotated, **given), observed=Y == 2)
        return made

    options = {"inducing": X, "jitter": 1e-10, "progressbar": False}
    with model(0.0, jitter=0.5), pytest.warns(UserWarning, match=r"'f' has a jitter of 0.5, .*WhiteNoise\(0.707\)"):
        pm.fit(method="sparse_ep", **options)
    with model(0.0, jitter=0.5):
        whole = pm.fit(method="ep", progressbar=False)
    with model(0.5**0.5):
        told = pm.fit(method="sparse_ep", **options)
    assert_allclose(told.log_evidence, whole.log_evidence, atol=1e-3)
    with pm.Model() as learned:
        gp = pm.gp.Latent(cov_func=3 * pm.gp.cov.ExpQuad(2, ls=1.0))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=X, jitter=pm.HalfNormal("jitter")), observed=Y == 2)
    with learned, pytest.raises(gpep.StructureError, match="The jitter of 'f' is not a number"):
        pm.fit(method="sparse_ep", **options)


OVER_FITTED = "Do not compare it with the evidence for fixed inducing inputs or for all rows"


def test_inducing_inputs_are_fixed_by_default(nested, pairwise):
    _, _, fit, *_ = nested
    assert "inducing inputs converged" not in fit.message
    assert OVER_FITTED not in str(fit)
    assert "Hyperparameters and inducing inputs" in pairwise[2].message
    assert OVER_FITTED in str(pairwise[2])
    model, gp = models.bernoulli_probit()
    with model:
        fit = pm.fit(method="sparse_ep", gp=gp, inducing=X[:4], progressbar=False)
        with pytest.warns(RuntimeWarning, match="did not converge after 1 iteration"):
            bound = pm.fit(1, method="sparse_vi", gp=gp, inducing=X[:4], learn_inducing=True, progressbar=False)
    assert_array_equal(fit.inducing, X[:4])
    assert not np.array_equal(bound.inducing, X[:4])
    assert OVER_FITTED not in str(bound)  # a bound stays a bound for any inducing inputs


def test_reported_deviation_excludes_the_common_part_of_classes():
    """Labels do not depend on the sum of three functions with one prior. The sum has a third of each variance."""
    model, _ = models.shared()
    with model:
        start = {"ls": [1.0, 1.0], "eta": 3.0}
        options = {"start": start, "progressbar": False}
        with pytest.warns(RuntimeWarning, match="No iteration was allowed"):
            sparse = pm.fit(0, method="sparse_ep", inducing=X, shared_inducing=True, jitter=1e-12, **options)
        with pytest.warns(RuntimeWarning, match="No iteration was allowed"):
            dense = pm.fit(0, method="nested_ep", **options)
    for fit in (sparse, dense):
        own = fit.latent["cov"].values.diagonal(axis1=1, axis2=2)
        assert_allclose(fit.latent["sd"] ** 2, own - 3.0**2 / 3, atol=1e-4)
        assert fit.latent["sd"].dims == ("flower", "species")
        contrast = np.array([2, -1, -1]) / 3
        joint = np.einsum("a,iab,b->i", contrast, fit.latent["cov"].values, contrast)
        assert_allclose(fit.latent["sd"][:, 0], np.sqrt(joint), rtol=1e-8)
    assert_allclose(sparse.latent["sd"], dense.latent["sd"], atol=1e-3)
