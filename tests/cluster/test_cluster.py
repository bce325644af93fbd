"""Workers of a cluster against one process, and fits after the loss of a worker."""

import os
import signal
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import arviz as az
import dask
import numpy as np
import pymc as pm
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import SparseEP
from pymc_gpep.cluster.cluster_log_posterior import ClusterLogPosterior, SitesOnCluster, part_ends
from pymc_gpep.cluster.rounds import Rounds, WorkerPart
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import RowError
from pymc_gpep.rows.storage import open_rows
from pymc_gpep.solvers.problem import watching
from tests import models

# Dask and Tornado leave resources open when a worker ends during a task.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@contextmanager
def workers(count, processes=False):
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, processes=processes, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


def given(build, shared, rows=None, sites="quadrature", tolerance=1e-6):
    """Return the arguments of both kinds of log posterior. Equal sweeps allow a loose tolerance."""
    model, gp = build()
    space = Hyperparameters(read_classifier(model))
    blocks = InducingBlocks(space.classifier, as_gps(gp), space.data, rows=rows)
    z = initial_inducing(4, blocks.rows, blocks.n_functions, shared, 1)
    return space, SparseEP(tolerance=tolerance, sites=sites), blocks, z, True


def beside(inducing=5):
    """Return the same arguments for a process plus effects."""
    rng = np.random.default_rng(3)
    x, group = rng.uniform(-2, 2, size=(60, 1)), rng.integers(0, 4, 60)
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 3, 3))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=x)
        a = pm.Normal("a", 0, pm.HalfNormal("s", 1), shape=4)
        pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 3) + a[group] + f, observed=rng.integers(0, 2, 60))
    space = Hyperparameters(by_inducing(read_classifier(model)))
    blocks = InducingBlocks(space.classifier, None, space.data)
    return space, SparseEP(tolerance=1e-11), blocks, x[None, :inducing], True


def test_fit_of_a_process_plus_effects_is_equal_for_one_and_two_workers():
    args = beside()
    theta, expected = alone(*args)
    options = {"model": args[0].classifier.model, "inducing": args[3][0], "hyper": "map", "progressbar": False}
    whole = pm.fit(method="sparse_ep", **options)
    for count in (1, 2):
        with workers(count) as (_, client):
            check_same(ClusterLogPosterior(*args, client)(theta), expected)
            fit = pm.fit(method="sparse_ep", client=client, **options)
        assert_allclose(fit.log_evidence, whole.log_evidence, rtol=1e-9)
        assert_allclose(fit.effects("a")["a"], whole.effects("a")["a"], rtol=1e-9)


def alone(*args):
    posterior = SparseLogPosterior(*args)
    theta = posterior.flat(args[0].initial_point())
    return theta, posterior(theta)


def check_same(found, expected):
    assert found.usable
    assert_allclose(found.log_posterior, expected.log_posterior, rtol=1e-9)
    assert_allclose(found.gradient, expected.gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("count", "build", "shared", "sites"),
    [
        (1, models.shared, True, "quadrature"),
        (2, models.per_class, False, "quadrature"),
        (4, models.shared, True, "pairwise"),
        (2, models.shared, True, "nested"),
        (4, models.per_class, False, "nested"),
    ],
)
def test_cluster_fit_equals_fit_in_one_process(count, build, shared, sites):
    args = given(build, shared, sites=sites)
    theta, expected = alone(*args)
    near = SparseLogPosterior(*args)(theta + 1e-3, expected.start)
    with workers(count) as (_, client):
        posterior = ClusterLogPosterior(*args, client)
        found = posterior(theta)
        check_same(found, expected)
        assert found.iterations == expected.iterations
        again = posterior(theta + 1e-3, found.start)  # starts from the sites of the first evaluation
        check_same(again, near)
        assert again.iterations == near.iterations < found.iterations
        assert_allclose(posterior.solve(theta + 1e-3, again.start).evidence, near.evidence, rtol=1e-9)


def test_number_of_workers_is_stable_while_the_client_updates_its_list():
    with dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}), workers(2) as (_, client):
        rounds = Rounds(client, [])
        assert {len(rounds._workers()) for _ in range(300)} == {2}


def test_sums_of_many_parts_are_added_in_a_tree():
    args = given(models.fixed, True)
    theta, expected = alone(*args)
    with workers(2) as (_, client):
        check_same(ClusterLogPosterior(*args, client, parts=10)(theta), expected)


@pytest.mark.parametrize(("sweep", "sites"), [(9, "quadrature"), (1, "nested")])
def test_lost_worker_does_not_change_results(sweep, sites):
    args = given(models.shared, True, sites=sites, tolerance=1e-11)  # sweeps differ, and the fixed point is the same
    theta, expected = alone(*args)
    with workers(3) as (cluster, client):
        posterior = ClusterLogPosterior(*args, client)

        def strike(iteration, evidence, residual):
            if iteration == sweep and len(client.nthreads()) == 3:
                cluster.sync(cluster.workers[1].close)

        with watching(strike):
            found = posterior(theta)
        assert len(client.nthreads()) == 2
        check_same(found, expected)
        check_same(posterior(theta, found.start), expected)


class RoundsThatLose:
    """Rounds of two parts. The second part is lost once, when sums are requested."""

    def __init__(self):
        self.number, self.count, self.begun, self.losses = 0, 2, [], 1

    def until_done(self, work, mend):
        if self.losses and mend.__name__ == "_mend":
            self.losses -= 1
            mend((1,))
        return work()

    def tell(self, parts, task):
        self.begun.append(tuple(parts))
        return SimpleNamespace(added=f"sums at {len(self.begun)}")

    def ask(self, task):
        return SimpleNamespace(added=f"sums at {len(self.begun)}" if task is WorkerPart.natural else "others")


def test_sums_are_repeated_after_a_part_is_recovered():
    """The fixed point is the same, after more sweeps."""
    rounds = RoundsThatLose()
    sites = SitesOnCluster(rounds, None, None)
    assert sites._natural == "sums at 1"
    sites._ask("something")
    assert rounds.begun == [(0, 1), (1,)]
    assert sites._natural == "sums at 2"


@pytest.fixture
def forked():
    """Fork processes from a process that has imported PyMC and the package. Each import takes seconds."""
    if sys.platform != "linux":
        yield
        return
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(["distributed", "pymc_gpep.cluster.cluster_log_posterior"])
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_killed_process_does_not_change_results():
    args = given(models.shared, True, tolerance=1e-11)
    theta, expected = alone(*args)
    with workers(2, processes=True) as (_, client):
        posterior = ClusterLogPosterior(*args, client)
        killed = []

        def strike(iteration, evidence, residual):
            if iteration == 6 and not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        with watching(strike):
            found = posterior(theta)
        assert killed
        check_same(found, expected)


def test_fit_with_a_client_equals_local_fit(tmp_path):
    X, y = models.data()
    np.save(tmp_path / "x.npy", X)
    model, gp = models.shared()
    options = {
        "method": "sparse_ep",
        "sites": "quadrature",
        "gp": gp,
        "inducing": 4,
        "learn_inducing": True,
        "progressbar": False,
        "random_seed": 1,
    }
    fits = []
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r"), y
    with model, workers(2) as (_, client):
        for more in ({}, {"client": client, "data": mapped}, {"client": client}):
            with pytest.warns(RuntimeWarning, match="did not converge after 2 iterations"):
                fits.append(pm.fit(2, **more, **options))
    expected, found, of_model = fits
    for fit in (found, of_model):
        assert_allclose(fit.hist, expected.hist, rtol=1e-9)
        assert_allclose(fit.inducing, expected.inducing, rtol=1e-8)
        assert_allclose(fit.predict(gp, X).p, expected.predict(gp, X).p, rtol=1e-6)
    assert found.solution.labels.size == 0
    assert set(found.to_datatree()["observed_data"].attrs) == {"n_rows", "n_inputs", "checksum", "name"}


def test_interrupt_keeps_the_best_point_and_the_cluster(tmp_path):
    """The fit can be saved and read, and the workers accept the next fit."""

    def stop(fit, losses, i):
        if i == 1:
            raise KeyboardInterrupt

    model, gp = models.shared()
    options = {"method": "sparse_ep", "sites": "quadrature", "inducing": 4, "progressbar": False, "random_seed": 1}
    with model, workers(2) as (_, client):
        with pytest.warns(RuntimeWarning, match=r"did not converge after 1 iteration \(Interrupted\)"):
            fit = pm.fit(client=client, callbacks=[stop], **options)
        with pytest.warns(RuntimeWarning, match="did not converge after 1 iteration"):
            after = pm.fit(1, client=client, **options)
    fit.to_datatree().to_netcdf(tmp_path / "fit.nc")
    again = gpep.from_datatree(az.from_netcdf(tmp_path / "fit.nc"), models.shared()[0])
    p = again.predict(gp=None, Xnew=models.data()[0]).p
    assert_allclose(p, after.predict(gp, models.data()[0]).p, rtol=1e-6)


def test_error_names_the_invalid_row_and_comes_from_the_worker_that_reads_it(tmp_path):
    X, y = models.data()
    labels = y.copy()
    labels[27] = 5
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "x.npy", X)
    rows = open_rows(tuple(np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "y.npy")))
    with workers(2) as (_, client), pytest.raises(RowError, match=r"y\.npy: row 27 has the label 5") as raised:
        ClusterLogPosterior(*given(models.shared, True, rows), client)
    assert raised.value.row == 27


def test_unsupported_methods_raise_not_implemented_error():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=models.data()[0], n_outputs=3)
        gpep.MultinomialProbit("y", f.T, epsilon=0.01, observed=models.data()[1])
    args = given(lambda: (model, None), True)
    with pytest.raises(NotImplementedError, match=r"this fit is sparse_ep of a noisy_multinomial_probit likelihood"):
        ClusterLogPosterior(*args, None)


def test_parts_of_the_rows_end_at_ends_of_chunks_if_there_are_enough_chunks():
    rows = InMemory(np.zeros((23, 1)), np.zeros(23))
    assert part_ends(rows, 4) == [0, 6, 12, 17, 23]
    assert part_ends(rows, 40) == list(range(24))

    class Chunked(InMemory):
        chunk = 5

    assert part_ends(Chunked(np.zeros((23, 1)), np.zeros(23)), 2) == [0, 10, 23]
