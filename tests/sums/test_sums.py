"""Sums of effects: the integrated variables of a model and their Gaussian prior.

The oracle is PyMC's log density. It is quadratic in the integrated variables, so differences give their mean and
precision. The argument of the likelihood is affine in these variables, so differences give the coefficients.
"""

import ast
import re
from contextlib import nullcontext

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.reading import StructureError, read_classifier
from tests import sum_models
from tests.graph_modes import rewritten
from tests.sum_models import BINARY, COUNTS, GROUP, KINDS, MODELS, XY, J, N, X, made

INTEGRATED = {
    "process_of_sums": {"f_rotated_", "a"},
    "plain_classes": {"a", "b"},
    "varying_intercepts": {"level", "gamma", "alpha", "beta"},
    "non_centred_intercepts": {"level", "gamma", "z", "beta"},
    "correlated_slopes": {"mean", "z"},
    "centred_slopes": {"mean", "u"},
    "persons_and_items": {"mean", "ability", "difficulty"},
    "ordered_ratings": {"beta", "u"},
    "random_walk": {"level", "walk"},
    "summed_walk": {"level", "first", "steps"},
    "areas": {"level", "beta", "phi", "theta"},
    "field_by_basis": {"beta", "level", "field_hsgp_coeffs"},
    "process_and_trend": {"f_rotated_", "b", "a"},
    "process_at_places": {"f_rotated_", "beta"},
    "two_processes": {"f_rotated_", "g"},
    "classes_with_trend": {"f_rotated_", "b", "a"},
    "softmax_with_reference": {"b"},
    "splines": {"w"},
    "constant_alone": {"level"},
    "moved_and_scaled": {"u"},
    "process_on_process": {"f_rotated_", "g_rotated_"},
    "differences_of_a_process": {"f_rotated_"},
    "sum_of_products": {"beta"},
    "autoregression": {"level", "u"},
    "covariance_of_areas": {"u"},
    "classes_of_one_draw": {"f"},
}


@pytest.fixture(scope="module")
def read():
    found = {}

    def by_name(name):
        if name not in found:
            found[name] = read_classifier(MODELS[name]())
        return found[name]

    return by_name


every = pytest.mark.parametrize("name", MODELS)


@pytest.mark.variation(but=["correlated_slopes", "areas", "ordered_ratings"])
@every
def test_integrated_variables_are_the_gaussian_variables_of_the_sum(name, read):
    classifier = read(name)
    assert {rv.name for rv in classifier.prior.integrated} == INTEGRATED[name]
    assert {rv.name for rv in classifier.hyperparameters} == {rv.name for rv in classifier.model.free_RVs} - INTEGRATED[
        name
    ]


def point_of(model, seed=4):
    """Values of all value variables, different from the initial point."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.3 * rng.normal(size=value.shape) for name, value in model.initial_point().items()}


class Oracle:
    """Mean and covariance of the integrated variables, and the argument as an affine function of them."""

    def __init__(self, classifier, point):
        model = classifier.model
        own = [model.rvs_to_values[rv] for rv in classifier.prior.integrated]
        sizes = [int(np.size(point[v.name])) for v in own]
        ends = np.cumsum(sizes)

        def at(x):
            parts = np.split(x, ends[:-1])
            return {**point, **{v.name: part.reshape(point[v.name].shape) for v, part in zip(own, parts, strict=True)}}

        density = model.logp(vars=list(classifier.prior.integrated), sum=True)
        outputs = model.replace_rvs_by_values([density, classifier.prior.latent_values()])
        function = graph_function(model, model.value_vars, [*pt.grad(outputs[0], own), outputs[1]])

        def both(x):
            given = at(x)
            *slopes, value = function(*(given[v.name] for v in model.value_vars))
            return np.concatenate([np.ravel(each) for each in slopes]), value

        q = int(ends[-1])
        slope, f = both(np.zeros(q))
        ahead = [both(unit) for unit in np.eye(q)]
        precision = slope - np.array([each[0] for each in ahead])
        self.cov = np.linalg.inv(precision)
        self.mean = self.cov @ slope
        self.slopes = np.array([each[1] - f for each in ahead])  # (q, c, n)
        self.f = f + np.tensordot(self.mean, self.slopes, 1)
        self.k = np.einsum("qcn,qr,rdm->cndm", self.slopes, self.cov, self.slopes)


def values_at(classifier, point, outputs):
    model = classifier.model
    outputs = model.replace_rvs_by_values(outputs)
    function = graph_function(model, [model.rvs_to_values[rv] for rv in classifier.hyperparameters], outputs)
    return function(*(point[model.rvs_to_values[rv].name] for rv in classifier.hyperparameters))


@pytest.mark.variation(but=["process_and_trend", "centred_slopes", "areas", "persons_and_items"])
@every
def test_prior_of_a_sum_equals_the_log_density_of_the_model(name, read):
    classifier = read(name)
    point = point_of(classifier.model)
    outputs = [classifier.prior.mean(), classifier.prior.covariances()]
    if (roots := classifier.prior.roots()) is not None:
        outputs.append(roots)
    mean, k, *roots = values_at(classifier, point, outputs)
    # PyMC's gradient of a density with respect to the covariance of a few areas is undefined without rewriting.
    with rewritten() if name == "covariance_of_areas" else nullcontext():
        oracle = Oracle(classifier, point)
    c, n = classifier.n_functions, classifier.n_points
    assert mean.shape == (c, n)
    size = 1 + abs(oracle.k).max()
    assert_allclose(mean, oracle.f, atol=1e-8 * size)
    for i in range(c):
        for j in range(c):
            own = np.broadcast_to(k, (c, n, n))[i] if i == j else np.zeros((n, n))
            assert_allclose(oracle.k[i, :, j], own, atol=1e-6 * size)
    if roots:
        assert_allclose(roots[0] @ roots[0].swapaxes(1, 2), np.broadcast_to(k, (c, n, n)), atol=1e-9 * size)


@pytest.mark.variation(but=["process_of_sums", "varying_intercepts", "covariance_of_areas"])
@pytest.mark.parametrize("name", list(MODELS)[::2])
def test_argument_computed_from_standard_normals_equals_the_argument_of_the_model(name, read):
    """m + J z equals the model's argument for the variables that z determines."""
    classifier = read(name)
    roots = classifier.prior.roots()
    if roots is None:
        pytest.skip("a Gaussian process alone has its Cholesky factor")
    point = point_of(classifier.model)
    mean, j = values_at(classifier, point, [classifier.prior.mean(), roots])
    z = np.random.default_rng(2).normal(size=(3, *j.shape[::2]))
    values = classifier.prior.variables({}).draws(point, mean + np.einsum("cnq,scq->scn", j, z), z)
    model = classifier.model
    function = graph_function(model, model.value_vars, model.replace_rvs_by_values([classifier.prior.latent_values()]))
    for s in range(3):
        given = point | {key: value[s] for key, value in values.items() if key in point}
        (f,) = function(*(given[v.name] for v in model.value_vars))
        assert_allclose(f, mean + np.einsum("cnq,cq->cn", j, z[s]), atol=1e-8)


# ---- terms that are not affine ----


def normal(name, **kwargs):
    return pm.Normal(name, **kwargs)


def groups(name, **kwargs):
    return pm.Normal(name, shape=J, **kwargs)[GROUP]


def binary(eta):
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)


def counts(eta):
    pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)


def shared_scale():
    log_s = normal("log_s")
    u = pm.Normal("u", 0, pt.exp(log_s), shape=J)
    binary(u[GROUP] + X * log_s)


def with_potential():
    u = pm.Normal("u", shape=J)
    pm.Potential("soft", -(u.sum() ** 2))
    binary(u[GROUP] + normal("level"))


def another_observed():
    u, level = pm.Normal("u", shape=J), normal("level")
    pm.MvNormal("z", u, np.eye(J), observed=np.zeros(J))
    binary(u[GROUP] + level)


def in_cutpoints():
    level, shift = normal("level"), normal("shift")
    pm.OrderedProbit("y", eta=level * X, cutpoints=shift + np.array([-1.0, 1.0]), compute_p=False, observed=KINDS)


def ordered_effects():
    u = pm.Normal("u", shape=3, initval=[-1.0, 0.0, 1.0], transform=pm.distributions.transforms.ordered)
    binary(u[KINDS] + normal("level"))


def autoregressive_coefficient():
    rho = normal("rho", sigma=0.2)
    u = pm.AR("u", rho=[rho], sigma=0.5, init_dist=pm.Normal.dist(0, 1), steps=J - 1)
    binary(u[GROUP])


KEPT = {
    "loading": (lambda: binary(normal("lam") * groups("u")), {"lam": "a product of it with 'u' (Normal)"}),
    "exponential of a scale": (
        lambda: binary(pt.exp(normal("log_s")) * groups("u")),
        {"log_s": "the function 'exp' of it"},
    ),
    "quotient": (
        lambda: binary(groups("u") / normal("lam", mu=1.0)),
        {"lam": "the function 'truediv' of it with 'u' (Normal)"},
    ),
    "scale of another": (shared_scale, {"log_s": "the scale of 'u' depends on it"}),
    "square beside": (
        lambda: binary(groups("u") + normal("v") ** 2),
        {"v": "the function 'pow' of it"},
    ),
    "absolute value beside": (lambda: binary(groups("u") + abs(normal("v"))), {"v": "the function 'abs' of it"}),
    "maximum beside": (
        lambda: binary(groups("u") + pt.maximum(normal("v"), 0.0)),
        {"v": "the function 'maximum' of it"},
    ),
    "condition": (
        lambda: binary(pt.switch(normal("v") > 0, 1.0, -1.0) + groups("u")),
        {"v": "of it"},
    ),
    "product over an axis": (
        lambda: binary(groups("u") + pt.prod(pm.Normal("v", shape=3))),
        {"v": "the operation 'Prod' of it"},
    ),
    "potential": (with_potential, {"u": "the Potential 'soft' depends on it"}),
    "another observed variable": (another_observed, {"u": "'z' is observed and depends on it"}),
    "coefficient of an autoregression": (autoregressive_coefficient, {"rho": "the scale of 'u' depends on it"}),
    "factor in a matrix product": (
        lambda: binary((pm.Normal("loads", shape=(J, 2)) @ pm.Normal("w", shape=2))[GROUP]),
        {"w": "the operation 'Dot' of it with 'loads' (Normal)"},
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_variable_that_blocks_integration_stays_a_hyperparameter(case):
    declare, expected = KEPT[case]
    found = read_classifier(made(declare)).prior
    assert {v.name for v in found.kept} == set(expected)
    for variable, why in found.kept.items():
        assert expected[variable.name] in why
        assert f"{variable.name!r} stays a hyperparameter: {why}." in found.described
        assert variable in found.hyperparameters


def ratings_with(cutpoints, declare=pm.OrderedProbit):
    def declared():
        declare("y", eta=groups("u"), cutpoints=cutpoints(), compute_p=False, observed=KINDS)

    return made(declared)


# Declaration of cutpoints, values of their variables, and expected cutpoints.
CUTPOINTS = {
    "each": (lambda: pm.Normal("c", [-1.0, 1.0], 1, shape=2), {"c": np.array([-0.7, 0.4])}, [-0.7, 0.4]),
    "shift": (lambda: normal("c") + np.array([-1.0, 1.0]), {"c": np.array(0.3)}, [-0.7, 1.3]),
    "distance": (
        lambda: pt.stack([normal("c"), normal("c2") + pt.exp(normal("d"))]),
        {"c": np.array(-0.7), "c2": np.array(-0.5), "d": np.array(0.1)},
        [-0.7, np.exp(0.1) - 0.5],
    ),
}


@pytest.mark.parametrize("form", CUTPOINTS)
@pytest.mark.parametrize("declare", [pm.OrderedProbit, pm.OrderedLogistic])
def test_gaussian_cutpoints_stay_hyperparameters(form, declare):
    """The prior equals the prior of the model with constant cutpoints."""
    cutpoints, values, expected = CUTPOINTS[form]
    model = ratings_with(cutpoints, declare)
    found, plain = read_classifier(model), read_classifier(ratings_with(lambda: np.array(expected), declare))
    assert {v.name for v in found.hyperparameters} == set(values)
    for variable, why in found.prior.kept.items():
        assert why == "a parameter of 'y' other than its argument depends on it"
        assert f"{variable.name!r} stays a hyperparameter: {why}." in found.described
    assert found.kind == plain.kind
    outputs = model.replace_rvs_by_values([found.parameters, found.prior.covariance(), found.prior.mean()])
    given = [values.get(v.name) for v in model.value_vars if v.name in values]
    inputs = [v for v in model.value_vars if v.name in values]
    cuts, covariance, mean = graph_function(model, inputs, outputs)(*given)
    assert_allclose(cuts, np.tile(np.array(expected)[:, None], N))
    assert_allclose(covariance, plain.prior.covariance().eval())
    assert_allclose(mean, plain.prior.mean().eval())


def test_cutpoints_that_depend_on_latent_values_are_refused():
    def declare():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=XY)
        pm.OrderedProbit("y", eta=f, cutpoints=f[0] + np.array([-1.0, 1.0]), compute_p=False, observed=KINDS)

    with pytest.raises(StructureError, match="A parameter of 'y' other than its argument depends on 'f'"):
        read_classifier(made(declare))


def test_variable_with_a_transform_stays_a_hyperparameter():
    found = read_classifier(made(ordered_effects)).prior
    assert [rv.name for rv in found.integrated] == ["level"]
    assert [rv.name for rv in found.hyperparameters] == ["u"]


REFUSED = {
    "product of equal size": (
        lambda: binary(groups("u") * groups("v")),
        ["a product of the Gaussian variables", "'u' (Normal)", "'v' (Normal)", "hyperparameters=["],
    ),
    "square": (
        lambda: binary(groups("u") ** 2),
        ["no Gaussian variable", "'u' (Normal) stays", "the function 'pow' of"],
    ),
    "not finite": (lambda: binary(groups("u") / normal("lam")), ["not finite at the initial point", "initval="]),
    "cosine": (lambda: counts(pt.cos(groups("u"))), ["no Gaussian variable", "'u' (Normal) stays", "'cos'"]),
    "Student's t": (
        lambda: binary(pm.StudentT("u", nu=4, shape=J)[GROUP]),
        ["'u' (StudentT) is not Gaussian", "pm.InverseGamma"],
    ),
    "double exponential": (
        lambda: binary(pm.Laplace("u", 0, 1, shape=J)[GROUP]),
        ["'u' (Laplace) is not Gaussian", "pm.Exponential"],
    ),
    "areas with a learned scale": (
        lambda: counts(pm.ICAR("u", W=sum_models._lattice(), sigma=pm.HalfNormal("s"))[GROUP]),
        ["'u' (ICAR) has a sigma that is not constant", "sigma * pm.ICAR('u', W)"],
    ),
    "areas with a learned scale beside a level": (
        lambda: counts(normal("a") + pm.ICAR("u", W=sum_models._lattice(), sigma=pm.HalfNormal("s"))[GROUP]),
        ["'u' (ICAR) has a sigma that is not constant", "sigma * pm.ICAR('u', W)"],
    ),
    "too few rows": (lambda: binary(pm.Normal("u", shape=J)), ["has the shape (8,)", f"{N} observations"]),
    "process in a scale": (
        lambda: binary(
            pm.Normal("u", 0, pt.exp(pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X=sum_models.PLACES)))[
                GROUP
            ]
        ),
        ["The prior of 'u' depends on latent values", "'f'", "hyperparameters only"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_names_the_variable_that_cannot_be_integrated(case):
    declare, phrases = REFUSED[case]
    model = made(declare)
    with pytest.raises(StructureError) as raised:
        read_classifier(model)
    for phrase in phrases:
        assert phrase in str(raised.value)


def test_several_products_are_refused_with_the_names_to_keep():
    def declare():
        v = groups("v")
        counts(normal("a") + groups("u") * v + groups("w") * groups("x") + v)

    with pytest.raises(StructureError, match=r"product .*'w'.*'x'.* and a product .*'u'.*'v'") as raised:
        read_classifier(made(declare))
    (names,) = re.findall(r"hyperparameters=(\[.*?\])", str(raised.value))
    found = read_classifier(made(declare), hyperparameters=ast.literal_eval(names))
    assert {rv.name for rv in found.hyperparameters} == {"u", "w"}


def test_user_can_keep_variables_as_hyperparameters():
    model = MODELS["varying_intercepts"]()
    found = read_classifier(model, hyperparameters=["beta", "gamma"])
    assert {rv.name for rv in found.prior.integrated} == {"level", "alpha"}
    assert found.asked == ("beta", "gamma")
    mean = model.replace_rvs_by_values([found.prior.mean()])
    point = model.initial_point() | {"beta": np.array(0.7), "gamma": np.array(-0.4)}
    (value,) = graph_function(model, model.value_vars, mean)(*(point[v.name] for v in model.value_vars))
    assert_allclose(value, [0.7 * X - 0.4 * sum_models.PLACES[GROUP, 0]], atol=1e-12)
    with pytest.raises(StructureError, match=r"hyperparameters names 'nothing', but the free variables .* 'level'"):
        read_classifier(model, hyperparameters=["nothing"])


@pytest.mark.parametrize("name", ["f", "f_rotated_"])
def test_values_of_processes_named_as_hyperparameters_are_not_integrated(name):
    found = read_classifier(MODELS["process_and_trend"](), hyperparameters=[name])
    assert {rv.name for rv in found.prior.integrated} == {"a", "b"}
    assert {rv.name for rv in found.hyperparameters} == {"ls", "eta", "f_rotated_"}


@pytest.mark.parametrize("reparameterize", [True, False])
def test_naming_all_values_of_processes_as_hyperparameters_is_refused(reparameterize):
    def declare():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        binary(gp.prior("f", X=XY, reparameterize=reparameterize))

    with pytest.raises(StructureError, match=r"no Gaussian variable.*since hyperparameters=\[\.\.\.\] names it"):
        read_classifier(made(declare), hyperparameters=["f"])


def test_error_for_unknown_name_lists_latent_variables():
    with pytest.raises(StructureError, match="free variables of the model are 'ls', 'eta', 'f', 'b', 'a'"):
        read_classifier(MODELS["process_and_trend"](), hyperparameters=["g"])
