"""Samplers on sums of effects, against weighted draws from the prior."""

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from tests.samplers.samplers import SAMPLERS
from tests.samplers.sum_problems import BINARY, KEPT, SUM_PROBLEMS, assert_exact, build

FEW = {
    ("guided_hmc", "mixed"),
    ("elliptical_slice", "classes"),
    ("probit_gibbs-whitened", "classes"),
    ("probit_gibbs-collapsed", "mixed"),
    ("pseudo_marginal", "crossed"),
    ("scaled_metropolis", "missing"),
}
"""Each sampler and each problem occurs once or twice. The calibration has each pair."""
ALL = [
    (name, problem)
    for name, sampler in SAMPLERS.items()
    for problem, each in SUM_PROBLEMS.items()
    if each.kind in sampler.kinds and name != "probit_gibbs-centred"
]


@pytest.mark.parametrize(
    ("sampler", "problem", "draws"),
    [
        *(pytest.param(*each, 160, marks=pytest.mark.slow) for each in ALL if each in FEW),
        *(pytest.param(*each, 1500, marks=pytest.mark.calibration) for each in ALL),
    ],
)
def test_sampler_of_a_sum_matches_weighted_prior_draws(sampler, problem, draws):
    with build(problem):
        idata = pm.sample(
            draws, tune=draws // 2, chains=2, cores=1, step=SAMPLERS[sampler].make(), random_seed=4, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert_exact(problem, idata, least_effective=0.1 * draws)


@pytest.mark.variation(but=["PseudoMarginal"])
@pytest.mark.parametrize("step", [gpep.samplers.GuidedHMC, gpep.samplers.PseudoMarginal, gpep.samplers.ProbitGibbs])
def test_draws_contain_the_variables_of_the_model(step):
    with build("mixed") as model:
        given = step()
        assert {v.name for v in given.vars} == {"z", "beta", "g", "s_log__", "eta_log__"}
        idata = pm.sample(8, tune=8, chains=1, step=given, random_seed=1, progressbar=False,
                          compute_convergence_checks=False)  # fmt: skip
    posterior = idata["posterior"]
    assert {"z", "beta", "g", "s", "eta", "u"} <= set(posterior)
    scaled = posterior["s"].values[..., None] * posterior["z"].values
    np.testing.assert_allclose(posterior["u"].values, scaled, rtol=1e-12)
    for name in model.named_vars.keys() - {"y"}:
        assert float(posterior[name].std()) > 0


@pytest.mark.parametrize("step", [gpep.samplers.EllipticalSlice, gpep.samplers.ScaledMetropolis])
def test_missing_responses_are_drawn(step):
    with build("missing") as model:
        given = step(guide="prior") if step is gpep.samplers.EllipticalSlice else step()
        assert model.rvs_to_values[model["y_unobserved"]] in given.vars
        others = [] if step is gpep.samplers.EllipticalSlice else [pm.Slice([model["s"]])]
        draws = pm.sample(20, tune=2, chains=2, cores=1, step=[given, *others], random_seed=1, progressbar=False,
                          compute_convergence_checks=False)["posterior"]  # fmt: skip
    unobserved = draws["y_unobserved"].values
    np.testing.assert_array_equal(draws["y"].values[..., ~KEPT], unobserved)
    np.testing.assert_array_equal(draws["y"].values[..., KEPT], np.broadcast_to(BINARY[KEPT], (2, 20, 4)))
    assert (unobserved.std(axis=1) > 0).all()
    assert (unobserved[0] != unobserved[1]).any()


@pytest.mark.slow
def test_other_steps_can_move_the_scales():
    """The step reads the scales that another step has set, before it draws standard normals."""
    with build("crossed") as model:
        step = gpep.samplers.EllipticalSlice([model["level"], model["ability"], model["difficulty"]])
        idata = pm.sample(200, tune=100, chains=2, cores=1, step=[step, pm.Slice([model["s"]])], random_seed=2,
                          progressbar=False, compute_convergence_checks=False)  # fmt: skip
    assert_exact("crossed", idata, least_effective=15)
    assert float(abs(idata["posterior"]["difficulty"].sum("difficulty_dim_0")).max()) < 1e-12


def test_error_names_variables_that_are_left_out():
    with build("mixed") as model, pytest.raises(ValueError, match="vars leaves out latent values, 'z', 'g'"):
        gpep.samplers.EllipticalSlice([model["beta"]])


def test_latent_values_of_sums_cannot_be_fixed():
    with (
        build("mixed"),
        pytest.raises(
            ValueError, match="hyper='centred' uses the prior density of the latent values, which a sum of effects"
        ),
    ):
        gpep.samplers.ProbitGibbs(hyper="centred")


def test_marginal_model_of_sums_is_sampled():
    """Its hyperparameters have the posterior of the model. Only the step stores the effects."""
    model = build("crossed")
    marginal = gpep.marginalize(model)
    with marginal:
        step = gpep.samplers.PseudoMarginal()
        idata = pm.sample(5, tune=2, chains=1, step=step, random_seed=1, progressbar=False,
                          compute_convergence_checks=False)  # fmt: skip
    assert set(idata["posterior"]) == {"s"}
    assert float(idata["posterior"]["s"].std()) > 0
