"""Methods and likelihoods of other packages: registration, fits, predictions, saving and loading."""

import importlib
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from pytensor.tensor.random.basic import BernoulliRV
from scipy.integrate import quad
from scipy.stats import norm

import pymc_gpep as gpep
from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.laplace import NewtonApproximation, fixed_cavity
from pymc_gpep.approximations.methods import APPROXIMATIONS, METHODS
from pymc_gpep.approximations.several_predictors import EPPredictors
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.hyper import HYPER, HyperMethod
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.averages_over_cells import computations_of
from pymc_gpep.likelihoods.grouped import GroupedLikelihood
from pymc_gpep.likelihoods.local_computations import Computation, ScalarDensity
from pymc_gpep.likelihoods.one_function import TwoClasses
from pymc_gpep.reading import read_classifier
from pymc_gpep.registry import OF_PM_FIT, TABLES, Names, Registry, table_of
from pymc_gpep.solvers.problem import Algebra
from pymc_gpep.variational.method_choice import AUTO
from tests.registered import restore_tables

X = np.linspace(-1.0, 1.0, 30)[:, None]
Y = (np.sin(4.0 * X[:, 0]) > -0.2).astype(int)


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    restore_tables(monkeypatch)


def log_log(f, y, parameters):
    u = np.exp(-f)
    a = u / np.expm1(u)
    b = u - 1.0 + a
    one = np.stack([-u, u, -u, u])
    zero = np.stack([np.log(-np.expm1(-u)), -a, -a * b, a * (u - a * b - b**2)])
    return np.where(y == 1, one, zero)


@dataclass(frozen=True)
class LogLog(TwoClasses):
    """p(y = 1 | f) = exp(−exp(−f))."""

    name = "log_log"
    written = "pm.Bernoulli(p=pm.math.exp(-pm.math.exp(-f)))"
    distributions = (BernoulliRV,)
    method = guide = "ep"
    largest_precision = np.inf
    local = computations_of(log_log)

    def link(self, f):
        return np.exp(-np.exp(-f))


@dataclass(frozen=True)
class CautiousEP(EP):
    """EP with short steps."""

    damping: float = 0.2
    depth: int = 0

    name = "cautious_ep"


@dataclass(frozen=True)
class PlainLaplace(NewtonApproximation):
    """Laplace's method without derivatives with respect to parameters of a likelihood."""

    name = "plain_laplace"
    site_form = SiteForm.INDEPENDENT
    needs = (ScalarDensity,)
    algebra = Algebra.FUNCTION

    def solver(self, problem, start, history, *, likelihood):
        density = likelihood.computation(ScalarDensity)

        def average(mean, variance, y, parameters, out):
            density.derivatives(mean, y, parameters, out[:4])

        return fixed_cavity(problem, start, history, average=average, slopes=None, wide=False, tolerance=self.tolerance)


class Never(HyperMethod):
    """A treatment of hyperparameters that is registered and never called."""

    name = "never"

    def integrate(self, log_posterior, optimum, random_seed=0, progressbar=False):
        raise NotImplementedError


class Rarely(Never):
    """A second treatment that is never called."""

    name = "rarely"


def log_log_model():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 0.5)
        f = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X)
        pm.Bernoulli("y", p=pm.math.exp(-pm.math.exp(-f)), observed=Y)
    return model


@pytest.mark.parametrize("method", [CautiousEP, PlainLaplace])
def test_registered_method_and_likelihood_fit_predict_and_are_saved(method, tmp_path, monkeypatch):
    model = log_log_model()
    assert read_classifier(model).kind == "univariate"
    gpep.register("likelihood", LogLog())
    assert read_classifier(model).kind == "log_log"
    gpep.register("approximation", method)
    new = np.linspace(-1.2, 1.2, 5)[:, None]
    with model:
        fit = pm.fit(method=method.name, progressbar=False)
        assert fit.converged
        p = fit.predict(Xnew=new)["p"]
    with log_log_model():
        ordinary = pm.fit(method="ep" if method is CautiousEP else "laplace", progressbar=False)
    assert fit.log_evidence == pytest.approx(ordinary.log_evidence, abs=1e-4)
    assert_allclose(p, ordinary.predict(Xnew=new)["p"], atol=1e-3)
    fit.to_datatree().to_netcdf(tmp_path / "fit.nc")
    with xr.open_datatree(tmp_path / "fit.nc") as tree:
        again = gpep.from_datatree(tree.load(), log_log_model())
    assert isinstance(again.log_posterior.approximator, method)
    assert again.name == method.name
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-8)
    assert_allclose(again.predict(Xnew=new)["p"], p, atol=1e-8)
    for what, table, name in (("method", APPROXIMATIONS, method.name), ("likelihood", LIKELIHOODS, "log_log")):
        with monkeypatch.context() as other:
            other.setattr(table, "_entries", tuple(each for each in table if each.name != name))
            with pytest.raises(ValueError, match=f"used the {what} '{name}', which is not registered. Call gpep.reg"):
                gpep.from_datatree(fit.to_datatree(), model)


def test_registered_pair_is_available_as_a_function_of_arrays():
    gpep.register("likelihood", LogLog())
    gpep.register("approximation", CautiousEP)
    solution = gpep.methods.cautious_ep([[3.0]], [0.5], [1], "log_log")
    exact, _ = quad(lambda f: np.exp(-np.exp(-f)) * norm.pdf(f, 0.5, 3.0**0.5), -20.0, 40.0)
    assert solution.evidence == pytest.approx(np.log(exact), abs=1e-8)
    assert "cautious_ep" in dir(gpep.methods)
    assert '"log_log"' in gpep.methods.ep.__doc__


def test_method_without_docstring_is_documented_without_its_signature():
    @dataclass(frozen=True)
    class ShortSteps(EP):
        damping: float = 0.2
        name = "short_steps"

    gpep.register("likelihood", LogLog())
    gpep.register("approximation", ShortSteps)
    assert gpep.methods.short_steps.__doc__.startswith("The method 'short_steps' of `pm.fit` on arrays.\n\nParameters")


@pytest.mark.parametrize(
    ("link", "found"),
    [(lambda _, f: f.no_such_method(), "raises AttributeError: .*no_such_method"), (lambda _, f: 0.5, r"array \(\)")],
)
def test_error_names_likelihood_whose_link_fails(link, found, monkeypatch):
    monkeypatch.setattr(LogLog, "link", link)
    gpep.register("likelihood", LogLog())
    with log_log_model(), pytest.raises(TypeError, match=f"The link of the likelihood 'log_log' must .*{found}"):
        pm.fit(method="ep", progressbar=False)


def test_computation_belongs_to_the_likelihood_that_it_was_registered_for():
    probit, logit = (next(each for each in LIKELIHOODS if each.name == name) for name in ("probit", "logit"))
    assert not probit.offers(Slope)
    gpep.register("computation", Computation("probit", Slope(np.tanh)))
    assert probit.computation(Slope).kernel is np.tanh
    assert not logit.offers(Slope)
    assert not GroupedLikelihood(inner=probit).offers(Slope)  # its kernel cannot read arrays of grouped rows


def test_messages_list_registered_methods():
    gpep.register("approximation", CautiousEP)
    with log_log_model(), pytest.raises(KeyError, match=r"cautious_ep.*Did you mean 'cautious_ep'"):
        pm.fit(method="cautios_ep")
    problem = [[1.0]], [[0.0]], [0]
    with pytest.raises(ValueError, match=r"Methods for this likelihood are .*'cautious_ep'"):
        gpep.methods.nested_ep(*problem, "probit")
    gpep.register("likelihood", LogLog())
    with pytest.raises(ValueError, match="Did you mean 'log_log'"):
        gpep.methods.ep(*problem, "log_lo")


def test_own_entries_come_before_registered_entries():
    gpep.register("likelihood", LogLog())
    assert [each.name for each in LIKELIHOODS][-1] == "log_log"
    names = list(METHODS)
    assert names.index("kl") < names.index("iep") < names.index("tap_naive")


def test_second_entry_with_a_name_is_refused():
    @dataclass(frozen=True)
    class Other(CautiousEP):
        name = "ep"

    with pytest.raises(ValueError, match=r"Other has the name 'ep', which is .* pymc_gpep\.approximations\.ep\.EP\."):
        gpep.register("approximation", Other)
    Other.name = "Mine"
    with pytest.raises(ValueError, match="Write 'mine'"):
        gpep.register("approximation", Other)
    Other.name = "ivm"
    with pytest.raises(ValueError, match=r"'ivm', which is also the name of the method pymc_gpep\.\S*\.IVM"):
        gpep.register("approximation", Other)


def test_methods_of_one_name_serve_different_likelihoods():
    @dataclass(frozen=True)
    class ForVotes(EP):
        name = "ep"

        @classmethod
        def approximates(cls, likelihood):
            return likelihood.name == "multinomial"

    gpep.register("approximation", ForVotes)
    assert [kind for kind in APPROXIMATIONS if kind.name == "ep"] == [EP, EPPredictors, ForVotes]


def test_class_that_is_defined_again_replaces_the_first():
    def defined():
        @dataclass(frozen=True)
        class Mine(EP):
            name = "mine"

        return Mine

    first, second = defined(), defined()
    gpep.register("approximation", first)
    gpep.register("approximation", second)
    assert APPROXIMATIONS["mine"] is second


@pytest.mark.parametrize(
    ("table", "entry", "error", "message"),
    [
        ("likelihoods", LogLog(), ValueError, "Did you mean 'likelihood'"),
        ("likelihood", LogLog, TypeError, r"needs an instance of .*\.Likelihood, but"),
        ("approximation", CautiousEP(), TypeError, r"needs a subclass of .*\.Approximator, but"),
        ("approximation", "CautiousEP", ValueError, "'CautiousEP' is not a path"),
    ],
)
def test_registration_of_wrong_entries_is_refused(table, entry, error, message):
    with pytest.raises(error, match=message):
        gpep.register(table, entry)


def test_path_is_imported_when_the_table_is_first_read():
    gpep.register("hyper", f"{__name__}:Never")
    assert "never" in HYPER.names
    assert HYPER["never"] is Never


@pytest.mark.parametrize(
    "path", ["tests.test_registry:NoSuchTreatment", "no_such_package.hyper:Mine", f"{__name__}:log_log"]
)
def test_registered_path_that_fails_is_skipped_with_one_warning(path):
    gpep.register("hyper", path, f"{__name__}:Never")
    with pytest.warns(
        UserWarning, match=f"hyper '{re.escape(path)}'.* is left out: .*gpep.register\\('hyper', "
    ) as warned:
        assert HYPER["never"] is Never  # a method that does not need the path
    assert len(warned) == 1
    assert "never" in HYPER.names  # without a second warning


def module(monkeypatch, tmp_path, name, text):
    """Write a module that registers entries when it is imported."""
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)


OWN_MODULE = """
import time
import pymc_gpep as gpep
from tests.test_registry import Never
time.sleep(0.3)  # until the other thread reads the table, too
class {name}(Never):
    name = "{lower}"
gpep.register("hyper", {name})
class Later(Never):
    name = "later"
"""


def test_threads_that_import_and_read_do_not_deadlock(monkeypatch, tmp_path):
    module(monkeypatch, tmp_path, "registers_at_import", OWN_MODULE.format(name="Mine", lower="mine"))
    gpep.register("hyper", "registers_at_import:Later")
    found = []
    first = threading.Thread(target=lambda: importlib.import_module("registers_at_import"), daemon=True)
    second = threading.Thread(target=lambda: found.append(set(HYPER.names)), daemon=True)
    first.start()
    time.sleep(0.1)
    second.start()
    for thread in (first, second):
        thread.join(20.0)
        assert not thread.is_alive()
    assert found[0] >= {"mine", "later"}
    assert set(HYPER.names) >= {"mine", "later"}


def test_paths_registered_by_a_failing_module_are_kept(monkeypatch, tmp_path):
    text = f"import pymc_gpep as gpep\ngpep.register('hyper', '{__name__}:Never')\nraise OSError('no licence')\n"
    module(monkeypatch, tmp_path, "registers_and_fails", text)
    gpep.register("hyper", "registers_and_fails:Mine")
    with pytest.warns(UserWarning, match="OSError.'no licence'"):
        assert "never" in HYPER.names


def test_module_may_read_the_table_before_its_own_entry_is_defined(monkeypatch, tmp_path):
    text = """
import pymc_gpep as gpep
from pymc_gpep.hyper import HYPER
from tests.test_registry import Never
gpep.register("hyper", "reads_at_import:Later")
assert "later" not in HYPER.names
class Later(Never):
    name = "later"
"""
    module(monkeypatch, tmp_path, "reads_at_import", text)
    importlib.import_module("reads_at_import")
    assert "later" in HYPER.names


def test_paths_are_in_the_order_of_registration():
    gpep.register("hyper", f"{__name__}:Never", f"{__name__}:Rarely")
    gpep.register("hyper", type("Last", (Never,), {"name": "last"}))
    assert list(HYPER.names)[-3:] == ["never", "rarely", "last"]


@pytest.mark.parametrize("name", OF_PM_FIT)
def test_names_of_pymc_are_refused(name):
    with pytest.raises(ValueError, match=f"has the name '{name}', which pm.fit uses"):
        gpep.register("approximation", type("Mine", (CautiousEP,), {"name": name}))


def test_list_of_pymc_methods_is_complete():
    with pm.Model(), pytest.raises(KeyError) as error:
        pm.fit(method="no such method")
    theirs, _ = error.value.args[0].split("; pymc_gpep adds ")
    assert {AUTO, *re.findall(r"'(\w+)'", theirs)} == set(OF_PM_FIT)


@pytest.mark.parametrize("name", ["", "two words", "a-b", "1st", "lambda"])
def test_names_that_are_not_identifiers_are_refused(name):
    with pytest.raises(ValueError, match=f"has the name {name!r}. A name consists of letters"):
        gpep.register("hyper", type("Mine", (Never,), {"name": name}))


class NoName(HyperMethod):
    """A treatment without a name."""

    integrate = None


@dataclass(frozen=True)
class NoNeeds(NewtonApproximation):
    """An approximation that does not state the computations it needs."""

    name = "no_needs"
    site_form = SiteForm.INDEPENDENT

    def solver(self, problem, start, history, *, likelihood):
        raise NotImplementedError


@dataclass(frozen=True)
class NoLink(TwoClasses):
    """A likelihood without link, code and local computations."""

    name = "no_link"
    distributions = (BernoulliRV,)
    method = guide = "ep"
    largest_precision = np.inf


class Undecorated(EP):
    """EP without the decorator of the class."""

    damping: float = 0.3
    name = "undecorated"


@dataclass(frozen=True)
class Untyped(EP):
    """EP with a default without a type."""

    damping = 0.3
    name = "untyped"


@pytest.mark.parametrize(
    ("table", "entry", "message"),
    [
        ("hyper", NoName, '`NoName` has no `name`. Add `name = "my_method"`.'),
        ("hyper", type("Mine", (Never,), {"name": 3}), "`Mine` has no `name`"),
        ("hyper", type("Mine", (HyperMethod,), {"name": "mine"}), "Mine has no `integrate`. Add it"),
        ("approximation", NoNeeds, "NoNeeds has no `needs`. Add it"),
        ("likelihood", object.__new__(type("Bare", (LogLog,), {"name": None})), "`Bare` has no `name`"),
        ("method", type("Mine", (), {"name": "mine"}), "needs a subclass of .*FurtherMethod, but"),
        ("approximation", Undecorated, "sets `damping`.*@dataclass.*above the class.* `damping: float = 0.3`"),
        ("approximation", Untyped, "sets `damping`.* `damping: float = 0.3`"),
        ("sampler", print, "needs a subclass of .*BlockedStep, but received <built-in function print>"),
        ("plot", 3, "needs a class or function, but received 3"),
        ("computation", Computation("probit", np.tanh), "'probit' is <ufunc 'tanh'>, but must be .* NamedTuple"),
        ("computation", Computation("probit", ScalarDensity), "must be an instance of a NamedTuple"),
    ],
)
def test_incomplete_entries_are_refused(table, entry, message):
    with pytest.raises(TypeError, match=message):
        gpep.register(table, entry)


def test_missing_attributes_of_a_likelihood_are_named():
    likelihood = object.__new__(complete(NoLink))
    with pytest.raises(
        TypeError, match=r"NoLink has no `local`, `written`\. Add it to the class, as .*\.Likelihood desc"
    ):
        gpep.register("likelihood", likelihood)


def complete(kind):
    """Return a class of the same name with a link."""
    return type(kind.__name__, (kind,), {"link": LogLog.link})


def test_entries_of_the_package_pass_the_checks_of_registration():
    for table in TABLES:
        for entry in table_of(table):
            table_of(table)._check(entry)


def test_subclass_without_its_own_name_is_refused():
    with pytest.raises(ValueError, match=r"Mine inherits the name 'ep' from EP. Add `name = \"my_ep\"`."):
        gpep.register("approximation", dataclass(frozen=True)(type("Mine", (EP,), {})))


class Slope(NamedTuple):
    kernel: Callable[..., None]


def kernel(name, scale):
    def own(x):
        return scale * x

    own.__qualname__ = name
    return own


def test_second_computation_of_a_likelihood_and_type_is_refused():
    probit = LIKELIHOODS["probit"]
    first = kernel("first", 1.0)
    gpep.register("computation", Computation("probit", Slope(first)))
    with pytest.raises(
        ValueError, match=r"Slope\(tests.test_registry.second\)\) has the name 'Slope of probit', which"
    ):
        gpep.register("computation", Computation("probit", Slope(kernel("second", 2.0))))
    assert probit.computation(Slope).kernel is first
    gpep.register("computation", Computation("probit", Slope(first)))
    again = kernel("first", 3.0)  # as a notebook cell that runs again
    gpep.register("computation", Computation("probit", Slope(again)))
    assert probit.computation(Slope).kernel is again
    gpep.register("computation", Computation("probit", Slope(kernel("first", 1.0))), Computation("logit", Slope(first)))


def test_unused_computation_causes_one_warning():
    probit = LIKELIHOODS["probit"]
    gpep.register("computation", Computation("probti", Slope(np.tanh)))
    with pytest.warns(UserWarning, match="Slope of probti is for 'probti', which is not .* Did you mean 'probit'"):
        assert not probit.offers(Slope)
    assert not probit.offers(Slope)
    gpep.register("computation", Computation("probit", probit.computation(ScalarDensity)))
    with pytest.warns(UserWarning, match="ScalarDensity of probit is not used: 'probit' already has one"):
        assert not probit.offers(Slope)


def test_likelihood_may_be_registered_after_its_computation():
    gpep.register("computation", Computation("log_log", Slope(np.tanh)))
    gpep.register("likelihood", LogLog())
    assert LogLog().offers(Slope)


def test_names_of_modules_follow_their_tables():
    class Thing:
        def __init__(self, name):
            self.name = name

    one, other = (
        Registry(table, [Thing(table)], of=Thing, classes=False) for table in ("first of a test", "second of a test")
    )
    names = Names(one, other)
    assert list(names) == ["first of a test", "second of a test"]
    one.add(Thing("third"))
    assert len(names) == 3
    assert "third" in names
    with pytest.raises(KeyError):
        other["third"]
