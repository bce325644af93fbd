"""The reader of model graphs: results for every supported form of model, and messages for other models."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.distributions.transforms import ordered
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorConstant

from pymc_gpep.graphs.alike_graphs import arrays_as_shared
from pymc_gpep.likelihoods.multinomial_probit_distribution import MultinomialProbit
from pymc_gpep.reading import GPClassifier, StructureError, read_classifier

N, C = 7, 3
JITTER = 1e-6
_RNG = np.random.default_rng(20)
X = _RNG.normal(size=(N, 2))
Y = np.arange(N) % C

both_parametrisations = pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "centred"])


def expquad(X, eta, ls):
    distance = ((X[:, None] - X[None, :]) ** 2).sum(-1)
    return eta**2 * np.exp(-0.5 * distance / ls**2) + JITTER * np.eye(len(X))


def process(eta=1.0, ls=1.0, mean=None):
    mean = pm.gp.mean.Zero() if mean is None else mean
    return pm.gp.Latent(mean_func=mean, cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))


def shared_prior(rotated=True, n_outputs=C, **kwargs):
    """A prior with its own hyperparameters for all classes, declared in the current model context."""
    eta, ls = pm.HalfNormal("eta", 2.0), pm.LogNormal("ls")
    return process(eta, ls).prior("f", X, n_outputs=n_outputs, reparameterize=rotated, **kwargs)


def single_priors(rotated=True, names="abc"):
    """A prior for each class, each with its own length scale."""
    return [process(1.0, pm.LogNormal(f"ls_{k}")).prior(f"f_{k}", X, reparameterize=rotated) for k in names]


def values_of(classifier: GPClassifier, variables, point):
    """Evaluate expressions of random variables at a point {name: value} on the variables' natural scale."""
    inputs = [classifier.model[name] for name in point]
    function = pytensor.function(inputs, variables, mode="FAST_COMPILE", on_unused_input="ignore")
    return function(*point.values())


# ---- functions of each class ----

ARRANGEMENTS_OF_ONE_PRIOR = {
    "transposed": (lambda f: f.T, (0, 1, 2)),
    "reversed rows": (lambda f: f[::-1].T, (2, 1, 0)),
    "columns by a list": (lambda f: f.T[:, [2, 0, 1]], (1, 2, 0)),
    "rows by an array": (lambda f: f[np.array([2, 0, 1])].T, (1, 2, 0)),
    "stacked rows": (lambda f: pt.stack([f[1], f[0], f[2]], axis=-1), (1, 0, 2)),
    "stacked rows, pm.math": (lambda f: pm.math.stack([f[0], f[2], f[1]], axis=1), (0, 2, 1)),
    "concatenated columns": (lambda f: pt.concatenate([f[2][:, None], f[:2].T], axis=1), (1, 2, 0)),
    "moved axes": (lambda f: pt.moveaxis(f, 0, -1), (0, 1, 2)),
    "rolled classes": (lambda f: pt.roll(f, 1, axis=0).T, (1, 2, 0)),
    "reshaped there and back": (lambda f: f.reshape((C * N,)).reshape(f.shape).T, (0, 1, 2)),
    "specified shape": (lambda f: pt.specify_shape(f, (C, N)).T, (0, 1, 2)),
    "all points, by a mask": (lambda f: f[:, np.ones(N, bool)].T, (0, 1, 2)),
}


@both_parametrisations
@pytest.mark.parametrize(
    ("arrange", "classes"), ARRANGEMENTS_OF_ONE_PRIOR.values(), ids=ARRANGEMENTS_OF_ONE_PRIOR.keys()
)
def test_outputs_of_one_prior_are_assigned_to_their_classes(arrange, classes, rotated):
    with pm.Model() as model:
        f = shared_prior(rotated)
        MultinomialProbit("y", arrange(f), observed=Y)
    found = read_classifier(model)
    (latent,) = found.latents
    assert latent.classes == classes
    assert latent.f is f
    assert latent.rotated is rotated
    assert latent.free is model["f_rotated_" if rotated else "f"]
    assert (found.n_classes, found.n_points, found.prior.shared) == (C, N, True)
    assert found.observed == (model["y"],)
    assert found.labels is model.rvs_to_values[model["y"]]
    assert found.hyperparameters == (model["eta"], model["ls"])
    assert latent.free not in ancestors([found.prior.mean(), found.prior.covariance()])


ARRANGEMENTS_OF_SINGLE_PRIORS = {
    "last axis": (lambda a, b, c: pt.stack([a, b, c], axis=-1), "abc"),
    "axis 1": (lambda a, b, c: pt.stack([b, c, a], axis=1), "bca"),
    "rows, transposed": (lambda a, b, c: pt.stack([c, b, a]).T, "cba"),
    "pm.math": (lambda a, b, c: pm.math.stack([a, c, b], axis=-1), "acb"),
    "columns": (lambda a, b, c: pt.concatenate([b[:, None], a[:, None], c[:, None]], axis=-1), "bac"),
    "stacks in stacks": (lambda a, b, c: pt.concatenate([pt.stack([c, a]), b[None]]).T, "cab"),
}


@both_parametrisations
@pytest.mark.parametrize(
    ("arrange", "order"), ARRANGEMENTS_OF_SINGLE_PRIORS.values(), ids=ARRANGEMENTS_OF_SINGLE_PRIORS.keys()
)
def test_single_priors_are_assigned_to_their_classes(arrange, order, rotated):
    with pm.Model() as model:
        MultinomialProbit("y", arrange(*single_priors(rotated)), observed=Y)
    found = read_classifier(model)
    assert {latent.f.name: latent.classes for latent in found.latents} == {
        f"f_{k}": (position,) for position, k in enumerate(order)
    }
    assert {latent.f.ndim for latent in found.latents} == {1}
    assert not found.prior.shared
    ls = {"a": 0.5, "b": 1.0, "c": 2.0}
    (K,) = values_of(found, [found.prior.covariance()], {f"ls_{k}": ls[k] for k in order})
    np.testing.assert_allclose(K, [expquad(X, 1.0, ls[k]) for k in order], rtol=1e-12, atol=1e-15)


@both_parametrisations
def test_prior_of_two_outputs_and_single_prior_are_assigned_to_their_classes(rotated):
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", shape=2)
        pair = process(eta[0], mean=pm.gp.mean.Constant(1.0)).prior("pair", X, n_outputs=2, reparameterize=rotated)
        alone = process(eta[1], mean=pm.gp.mean.Constant(2.0)).prior("alone", X, reparameterize=not rotated)
        MultinomialProbit("y", pt.stack([pair[1], alone, pair[0]], axis=-1), observed=Y)
    found = read_classifier(model)
    assert {latent.f.name: latent.classes for latent in found.latents} == {"pair": (2, 0), "alone": (1,)}
    assert found.hyperparameters == (eta,)
    K, mean = values_of(found, [found.prior.covariance(), found.prior.mean()], {"eta": np.array([1.5, 0.5])})
    np.testing.assert_allclose(K, [expquad(X, e, 1.0) for e in (1.5, 0.5, 1.5)], rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(mean, np.repeat([[1.0], [2.0], [1.0]], N, axis=1))


def test_multivariate_normal_with_a_mean_per_output_is_recognised():
    mean = np.arange(C * N).reshape(C, N).astype(float)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        f = pm.MvNormal("f", mean, scale * expquad(X, 1.0, 1.0))
        MultinomialProbit("y", f.T[:, [2, 0, 1]], observed=Y)
    found = read_classifier(model)
    K, mu = values_of(found, [found.prior.covariance(), found.prior.mean()], {"scale": 2.0})
    np.testing.assert_allclose(K, 2 * expquad(X, 1.0, 1.0), rtol=1e-15)
    np.testing.assert_array_equal(mu, mean[[2, 0, 1]])


def test_priors_of_one_process_share_their_covariance():
    with pm.Model() as model:
        gp = process(pm.HalfNormal("eta"))
        MultinomialProbit("y", pt.stack([gp.prior(f"f{k}", X) for k in range(C)], axis=-1), observed=Y)
    found = read_classifier(model)
    assert len(found.latents) == C
    assert found.prior.shared
    assert found.prior.covariance().ndim == 2


# ---- mean and covariance ----


def _linear():
    return pm.gp.mean.Linear(coeffs=pm.Normal("slope", shape=2), intercept=pm.Normal("level"))


MEANS = {
    "zero": (pm.gp.mean.Zero, lambda p: np.zeros(N)),
    "constant": (lambda: pm.gp.mean.Constant(pm.Normal("level")), lambda p: np.full(N, p["level"])),
    "linear": (_linear, lambda p: X @ p["slope"] + p["level"]),
}


@both_parametrisations
@pytest.mark.parametrize(("mean", "expected"), MEANS.values(), ids=MEANS.keys())
@pytest.mark.parametrize("n_outputs", [1, C])
def test_mean_and_covariance_match_the_process(mean, expected, n_outputs, rotated):
    with pm.Model() as model:
        gp = process(pm.HalfNormal("eta"), pm.LogNormal("ls"), mean())
        f = [
            gp.prior(f"f{k}", X, n_outputs=n_outputs, reparameterize=rotated) for k in range(1 if n_outputs == C else C)
        ]
        MultinomialProbit("y", f[0].T if n_outputs == C else pt.stack(f, axis=-1), observed=Y)
    found = read_classifier(model)
    rng = np.random.default_rng(3)
    point = {rv.name: np.exp(rng.normal(size=rv.type.shape)) for rv in found.hyperparameters}
    mu, K, row = values_of(found, [found.prior.mean(), found.prior.covariance(), found.latents[0].mean], point)
    np.testing.assert_allclose(mu, np.tile(expected(point), (C, 1)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(K, expquad(X, point["eta"], point["ls"]), rtol=1e-12, atol=1e-15)
    assert row.shape == ((C, N) if n_outputs == C else (N,))


@both_parametrisations
def test_sum_of_processes_is_recognised(rotated):
    with pm.Model() as model:
        total = process(pm.HalfNormal("eta1"), 0.5) + process(pm.HalfNormal("eta2"), 2.0)
        MultinomialProbit("y", total.prior("f", X, n_outputs=C, reparameterize=rotated).T, observed=Y)
    found = read_classifier(model)
    (K,) = values_of(found, [found.prior.covariance()], {"eta1": 0.7, "eta2": 1.3})
    np.testing.assert_allclose(K, expquad(X, 0.7, 0.5) + expquad(X, 1.3, 2.0) - JITTER * np.eye(N), rtol=1e-12)


@both_parametrisations
def test_graphs_of_prior_and_labels_depend_on_data_and_value_variables(rotated):
    with pm.Model() as model:
        inputs, labels = pm.Data("inputs", X), pm.Data("labels", Y)
        ls = pm.Deterministic("ls", 2 * pm.HalfNormal("half_ls"))
        f = process(1.0, ls).prior("f", inputs, n_outputs=C, reparameterize=rotated)
        MultinomialProbit("y", f.T, observed=labels)
    found = read_classifier(model)
    assert (found.n_points, found.n_classes) == (N, C)
    assert labels in ancestors([found.labels])
    assert found.hyperparameters == (model["half_ls"],)

    K, mean = model.replace_rvs_by_values([found.prior.covariance(), found.prior.mean()])
    half_ls = model.rvs_to_values[model["half_ls"]]
    function = pytensor.function([half_ls], [K, mean], mode="FAST_COMPILE")
    fewer = X[: N - 2]
    for data in (X, fewer):
        pm.set_data({"inputs": data, "labels": Y[: len(data)]}, model=model)
        K_value, mean_value = function(np.log(0.4))
        np.testing.assert_allclose(K_value, expquad(data, 1.0, 0.8), rtol=1e-12, atol=1e-15)
        assert mean_value.shape == (C, len(data))
    assert read_classifier(model).n_points == N - 2


# ---- other parts of the model ----


@both_parametrisations
@pytest.mark.parametrize("n_outputs", [1, C])
def test_dims_name_axes_and_classes(n_outputs, rotated):
    """The dims determine the number of outputs. `n_outputs` does not matter."""
    with pm.Model(coords={"species": ["setosa", "versicolor", "virginica"], "flower": np.arange(N)}) as model:
        f = shared_prior(rotated, n_outputs, dims=("species", "flower"))
        MultinomialProbit("y", f.T[:, [2, 0, 1]], observed=Y)
    found = read_classifier(model)
    assert (found.class_dim, found.point_dim) == ("species", "flower")
    assert found.class_labels == ("virginica", "setosa", "versicolor")


def test_dims_are_read_from_a_deterministic_of_all_classes():
    with pm.Model(coords={"species": ["A", "B", "C"], "flower": np.arange(N)}) as model:
        a, b, c = (process().prior(f"f{k}", X) for k in range(C))
        f = pm.Deterministic("f", pt.stack([a, b, c], axis=-1), dims=("flower", "species"))
        MultinomialProbit("y", f, observed=Y)
    found = read_classifier(model)
    assert (found.class_dim, found.point_dim) == ("species", "flower")
    assert found.class_labels == ("A", "B", "C")
    assert [latent.f for latent in found.latents] == [a, b, c]


@pytest.mark.parametrize("where", ["labels", "latents"])
def test_dims_of_points_are_read_without_class_dims(where):
    with pm.Model(coords={"flower": np.arange(N)}) as model:
        dims = {"dims": "flower"} if where == "latents" else {}
        f = [process().prior(f"f{k}", X, **dims) for k in range(C)]
        MultinomialProbit("y", pt.stack(f, axis=-1), observed=Y, dims="flower" if where == "labels" else None)
    found = read_classifier(model)
    assert (found.class_dim, found.point_dim, found.class_labels) == (None, "flower", None)


def test_dims_without_coordinates_get_numbers():
    with pm.Model() as model:
        model.add_coord("species", length=C)
        model.add_coord("flower", length=N)
        MultinomialProbit("y", shared_prior(dims=("species", "flower")).T, observed=Y)
    found = read_classifier(model)
    assert (found.class_dim, found.point_dim, found.class_labels) == ("species", "flower", None)


def test_model_without_dims_gets_default_dims():
    with pm.Model() as model:
        MultinomialProbit("y", shared_prior().T, observed=Y)
    found = read_classifier(model)
    assert (found.class_dim, found.point_dim, found.class_labels) == (None, None, None)


def test_unrelated_variables_do_not_change_the_prior():
    with pm.Model() as model:
        f = shared_prior()
        wrapped = pm.Deterministic("wrapped", f)
        pm.Deterministic("largest", f.max(axis=0))
        MultinomialProbit("y", pm.Deterministic("transposed", wrapped.T), observed=Y)
        level = pm.Normal("level")
        pm.Poisson("count", pt.exp(level), observed=[1, 2])
        pm.Potential("soft", -(level**2) - model["ls"])
        elsewhere = process().prior("elsewhere", X)
        pm.StudentT("z", nu=4, mu=elsewhere, observed=np.zeros(N))
        pm.MvNormal("offsets", np.zeros(2), np.eye(2), shape=(4, 3, 2))
    found = read_classifier(model)
    assert found.latents[0].f is f
    assert [rv.name for rv in found.hyperparameters] == ["eta", "ls", "level", "elsewhere_rotated_", "offsets"]


def test_multivariate_normal_slopes_of_a_mean_are_hyperparameters():
    with pm.Model() as model:
        slope = pm.MvNormal("slope", np.zeros(2), np.eye(2))
        f = process(1.0, 1.0, pm.gp.mean.Linear(slope)).prior("f", X, n_outputs=C)
        MultinomialProbit("y", f.T, observed=Y)
    assert read_classifier(model).hyperparameters == (slope,)


def test_two_classes_of_two_functions_are_recognised():
    with pm.Model() as model:
        MultinomialProbit("y", shared_prior(n_outputs=2).T, observed=Y % 2)
    assert read_classifier(model).n_classes == 2


def test_points_and_classes_of_equal_number_are_assigned_to_their_axes():
    """The axes of a square argument are identified by their meaning and not by their length."""
    with pm.Model() as model:
        f = process().prior("f", X[:C], n_outputs=C)
        MultinomialProbit("y", f.T[:, ::-1], observed=Y[:C])
    assert read_classifier(model).latents[0].classes == (2, 1, 0)


def test_likelihood_is_selected_by_name():
    with pm.Model() as model:
        for name in ("y1", "y2"):
            MultinomialProbit(name, process().prior(f"f_{name}", X, n_outputs=C).T, observed=Y)
    assert read_classifier(model, likelihood="y2").latents[0].f is model["f_y2"]
    assert [rv.name for rv in read_classifier(model, likelihood="y2").hyperparameters] == ["f_y1_rotated_"]


def test_latent_function_in_a_nested_model_is_recognised():
    with pm.Model() as model:
        eta = pm.HalfNormal("eta")
        with pm.Model(name="sub"):
            f = process(eta).prior("f", X, n_outputs=C)
        MultinomialProbit("y", f.T, observed=Y)
    found = read_classifier(model)
    assert found.latents[0].f.name == "sub::f"
    assert found.hyperparameters == (eta,)


@both_parametrisations
def test_reading_does_not_change_random_generators(rotated):
    def states():
        return [rv.owner.inputs[0].get_value().bit_generator.state for rv in model.basic_RVs]

    with pm.Model() as model:
        MultinomialProbit("y", shared_prior(rotated).T, observed=Y)
    before = states()
    read_classifier(model)
    assert states() == before


# ---- refused models ---- Each builder declares a model in the current context. The message must contain the phrases.


def _no_probit():
    pm.MvStudentT("z", nu=4, mu=shared_prior().T, scale=np.eye(C), observed=np.zeros((N, C)))


def _several():
    for name in ("y1", "y2"):
        MultinomialProbit(name, process().prior(f"f_{name}", X, n_outputs=C).T, observed=Y)


def _several_of_the_same():
    f = shared_prior().T
    MultinomialProbit("y1", f, observed=Y)
    MultinomialProbit("y2", f, observed=Y)


def _unobserved():
    MultinomialProbit("y", shared_prior().T)


def _student_t(rotated=True):
    gp = pm.gp.TP(scale_func=pm.gp.cov.ExpQuad(2, 1.0), nu=4)
    MultinomialProbit("y", pt.stack([gp.prior(f"f{k}", X, reparameterize=rotated) for k in range(C)], -1), observed=Y)


def _student_t_centred():
    _student_t(rotated=False)


def _squashed():
    MultinomialProbit("y", pt.tanh(shared_prior().T), observed=Y)


def _random_selection():
    f = shared_prior()
    MultinomialProbit("y", f[pt.argsort(f[:, 0])].T, observed=Y)


def _second_likelihood():
    f = shared_prior()
    MultinomialProbit("y", f.T, observed=Y)
    pm.StudentT("z", nu=4, mu=f[0], observed=np.zeros(N))


def _potential():
    f = shared_prior(rotated=False)
    MultinomialProbit("y", f.T, observed=Y)
    pm.Potential("sum_to_zero", -(f.sum(axis=0) ** 2).sum())


def _prediction():
    gp = process()
    MultinomialProbit("y", gp.prior("f", X, n_outputs=C).T, observed=Y)
    gp.conditional("f_new", X + 1.0)


def _hyperprior_on_latent():
    f = shared_prior()
    MultinomialProbit("y", f.T, observed=Y)
    pm.HalfNormal("spread", sigma=pt.exp(f[0, 0]))


def _too_few_outputs():
    labels = pm.Data("labels", Y % 2)
    MultinomialProbit("y", shared_prior(n_outputs=2).T, observed=labels)
    labels.set_value(Y.astype("int32"))


def _too_few_labels():
    labels = pm.Data("labels", Y)
    MultinomialProbit("y", shared_prior().T, observed=labels)
    labels.set_value(Y[:-1].astype("int32"))


def _output_twice():
    a, b, _ = single_priors()
    MultinomialProbit("y", pt.stack([a, b, a], axis=-1), observed=Y)


def _one_output():
    classes = pm.Data("classes", np.array(1))  # for a constant, the likelihood itself raises an error
    f = process().prior("f", X).reshape((-1, classes))
    MultinomialProbit("y", f, observed=pm.Data("labels", np.zeros(N, int)))


def _categorical_of_one_function(column=False):
    f = process().prior("f", X)
    pm.Categorical("y", logit_p=f[:, None] if column else f, observed=Y % 2)


def _categorical_of_one_column():
    _categorical_of_one_function(column=True)


def _categorical_of_one_axis():
    pm.Categorical("y", logit_p=process().prior("f", X), observed=2)


def _classes_first():
    f = shared_prior()
    MultinomialProbit("y", f, observed=np.zeros(C, int))


def _one_axis():
    MultinomialProbit("y", process().prior("f", X[:C]), observed=0)


def _class_of_two_functions():
    f = shared_prior()
    MultinomialProbit("y", pt.concatenate([f[:, :3], f[::-1, 3:]], axis=1).T, observed=Y)


def _discrete():
    order = pm.Bernoulli("order", 0.5)
    MultinomialProbit("y", process(1.0 + order).prior("f", X, n_outputs=C).T, observed=Y)


def _process_in_kernel():
    a, b, _ = single_priors()
    c = process(1.0, pt.exp(a[0])).prior("deep", X)
    MultinomialProbit("y", pt.stack([a, b, c], axis=-1), observed=Y)


def _process_in_mean(rotated=True):
    class Warped(pm.gp.mean.Mean):
        def __call__(self, X):
            return hidden

    hidden = process().prior("hidden", X, reparameterize=rotated)
    MultinomialProbit("y", process(mean=Warped()).prior("f", X, n_outputs=C).T, observed=Y)


def _process_in_mean_centred():
    _process_in_mean(rotated=False)


def _transformed():
    MultinomialProbit("y", shared_prior(rotated=False, transform=ordered).T, observed=Y)


def _same_free_variable():
    f = process().prior("f", X, n_outputs=2)
    v = pm.modelcontext(None)["f_rotated_"]
    L = pt.linalg.cholesky(pt.as_tensor(expquad(X, 2.0, 1.0)))
    g = pm.Deterministic("g", np.zeros(N) + L.dot(v.T).T)
    MultinomialProbit("y", pt.concatenate([f, g]).T, observed=Y)


REFUSED = [
    (_no_probit, ["no likelihood to read", "observed variables are 'z' (MvStudentT)"]),
    (_several, ["several", "'y1', 'y2'", "likelihood="]),
    (_several_of_the_same, ["several observed variables", "'y1', 'y2'", "remove the other variables"]),
    (_unobserved, ["no likelihood to read", "'y' (MultinomialProbit)", "is not observed", "observed=y"]),
    (_student_t, ["(StudentT) is not Gaussian", "sigma=sigma * pt.sqrt(w)"]),
    (_student_t_centred, ["(MvStudentT) is not Gaussian", "cov=w * scale"]),
    (_squashed, ["the function 'tanh' of 'f' is not", "pm.sample(step=gpep.samplers.GuidedHMC())"]),
    (_random_selection, ["depends on 'f_rotated_' (Normal)", "fixed indices"]),
    (_second_likelihood, ["'z' (StudentT) depends on the latent values 'f' of 'y'"]),
    (_potential, ["'sum_to_zero'", "depends on the latent values 'f' of 'y'"]),
    (_prediction, ["in another form", "fit.sample()"]),
    (_hyperprior_on_latent, ["in another form", "fit.sample()"]),
    (_too_few_outputs, ["from 0 to 2", "2 latent functions", "n_outputs"]),
    (_too_few_labels, ["'y'", "must be (7,)", "shape (6,)"]),
    (_output_twice, ["'f_a' is the latent function of the classes 0, 2", "3 classes for 2 latent functions"]),
    (_one_output, ["'y' has one latent function only", "n_outputs"]),
    (_categorical_of_one_function, ["'y' (Categorical)", "two classes by one", "pm.Bernoulli('y', logit_p=f)"]),
    (_categorical_of_one_column, ["'y' has one latent function only", "Two classes by one", "pm.Bernoulli(logit_p=f)"]),
    (_categorical_of_one_axis, ["two axes", "Two classes by one", "pm.Bernoulli(logit_p=f)"]),
    (_classes_first, ["classes first, (3, 7)", "f.T"]),
    (_one_axis, ["two axes", "is 1", "f.T"]),
    (_class_of_two_functions, ["Class 0", "several latent functions", "one function at all points"]),
    (_discrete, ["discrete hyperparameters", "'order' (Bernoulli)", "pm.do"]),
    (_process_in_kernel, ["The prior of 'deep'", "'f_a'", "hyperparameters only"]),
    (_process_in_mean, ["The prior of 'f'", "'hidden'", "hyperparameters only"]),
    (_process_in_mean_centred, ["The prior of 'f'", "'hidden' (MultivariateNormal)"]),
    (_transformed, ["'f' (MultivariateNormal)", "transform"]),
    (_same_free_variable, ["'f', 'g'", "same free variable"]),
]


@pytest.mark.parametrize(("build", "phrases"), REFUSED, ids=[build.__name__.strip("_") for build, _ in REFUSED])
def test_error_for_each_unsupported_model_names_the_finding_and_the_remedy(build, phrases):
    with pm.Model() as model:
        build()
    with pytest.raises(StructureError) as raised:
        read_classifier(model)
    for phrase in phrases:
        assert phrase in str(raised.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [("nothing", "'nothing' is not a variable of the model"), ("z", "no likelihood to read.* named 'z'")],
)
def test_unknown_likelihood_name_is_refused(name, what):
    with pm.Model() as model:
        MultinomialProbit("y", shared_prior().T, observed=Y)
        pm.Normal("z", observed=0.0)
    with pytest.raises(StructureError, match=rf"{what}.*'y' \(MultinomialProbit\), 'z' \(Normal\)"):
        read_classifier(model, likelihood=name)


@pytest.mark.parametrize(
    "parameters",
    [
        lambda f: {"logit_p": f.T},
        lambda f: {"p": pm.math.softmax(f.T, axis=-1)},
        lambda f: {"p": pm.math.softmax(f, axis=0).T},
        lambda f: {"p": pm.Deterministic("p", pm.math.softmax(f.T, axis=1))},
    ],
)
def test_softmax_is_recognised(parameters):
    X = np.linspace(0, 1, 5)[:, None]
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X=X, n_outputs=3)
        pm.Categorical("y", **parameters(f), observed=[0, 1, 2, 1, 0])
    classifier = read_classifier(model)
    assert classifier.kind == "softmax"
    assert (classifier.n_classes, classifier.n_points) == (3, 5)


@pytest.mark.parametrize("p", [lambda f: pm.math.softmax(f.T, axis=0), lambda f: pm.math.exp(f.T)], ids=["axis", "exp"])
def test_categorical_without_softmax_is_refused(p):
    X = np.linspace(0, 1, 3)[:, None]
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X=X, n_outputs=3)
        pm.Categorical("y", p=p(f), observed=[0, 1, 2])
    with pytest.raises(StructureError, match=r"no likelihood to read.*'y' is a Categorical, but not of a softmax"):
        read_classifier(model)


def test_replacing_arrays_by_shared_variables_does_not_change_values_of_the_graph():
    rng = np.random.default_rng(0)
    x, row, few, label = rng.normal(size=(30, 2)), rng.normal(size=(1, 30)), np.arange(3.0), rng.integers(3, size=30)
    scale = pt.dscalar("scale")
    constants = [pt.constant(value) for value in (x, row, few, label)]
    outputs = [scale * (constants[0] @ constants[0].T + constants[1]), constants[2][constants[3]] * scale]
    replaced = arrays_as_shared(outputs)
    left = [v.data.size for v in ancestors(replaced) if isinstance(v, TensorConstant)]
    assert max(left) == few.size
    assert {each.type.shape for each in replaced} == {(None, None), (None,)}
    assert all(new.type.broadcastable == old.type.broadcastable for new, old in zip(replaced, outputs, strict=True))
    values = pytensor.function([scale], replaced, mode="FAST_COMPILE")(2.0)
    assert_allclose(values[0], 2 * (x @ x.T + row))
    assert_allclose(values[1], 2 * few[label])
