"""Steps, densities and fits continue in a new process as in the original process.

One new process runs all tests, since importing PyMC and PyTensor takes seconds.
"""

import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_gpep as gpep
from tests import models

ELSEWHERE = """
import sys
import cloudpickle
with open(sys.argv[1], "rb") as file:
    functions = cloudpickle.load(file)
found = {name: function() for name, function in functions.items()}
with open(sys.argv[2], "wb") as file:
    cloudpickle.dump(found, file)
"""


def chain_of(step, point):
    """Return a function that draws eight points, three of them in tuning, as in a worker process of PyMC."""

    def points():
        import numpy as np

        at, found = dict(point), []
        step.setup_chain(np.random.default_rng(3), 3, 5)
        for i in range(8):
            if i == 3:
                step.stop_tuning()
            at, _ = step.step(at)
            found.append({name: np.array(value) for name, value in at.items()})
        return found

    return points


def batches_of(n, path, start=None):
    """Return a function that fits a model by n steps, and saves a file to resume from."""

    def fitted():
        import pymc as pm

        import pymc_gpep as gpep
        from tests import models

        model, gp = models.bernoulli_probit()
        options = {"gp": gp, "inducing": 6, "batch_size": 10, "random_seed": 3, "memory": "sites", "warmup": 1}
        options |= {"obj_optimizer": pm.adam(learning_rate=0.02), "callbacks": [gpep.Checkpoint(path)], "start": start}
        with model:
            pm.fit(n, method="sparse_ep", progressbar=False, **options)

    return fitted


@pytest.mark.slow
def test_draws_in_a_new_python_process_are_identical(tmp_path):
    """A guided step, a density whose solver has another address in the new process, and twenty of forty batch steps."""
    model, _ = models.shared()
    marginal = gpep.marginalize(model)
    with model:
        guided = gpep.samplers.GuidedHMC()
    with marginal:
        nuts = pm.NUTS(max_treedepth=2, early_max_treedepth=2)
    whole, half, both = (str(tmp_path / name) for name in ("whole.nc", "half.nc", "both.nc"))
    functions = {
        "guided": chain_of(guided, model.initial_point()),
        "nuts": chain_of(nuts, marginal.initial_point()),
        "batches": batches_of(20, both, half),
    }
    batches_of(20, half)()
    pickled = cloudpickle.dumps(functions)
    (tmp_path / "functions").write_bytes(pickled)
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, str(tmp_path / "functions"), str(tmp_path / "found")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    found = cloudpickle.loads((tmp_path / "found").read_bytes())
    # PyMC's worker processes also use a copy.
    here = cloudpickle.loads(pickled)
    for name in ("guided", "nuts"):
        for one, other in zip(here[name](), found[name], strict=True):
            assert one.keys() == other.keys()
            for variable, value in one.items():
                np.testing.assert_array_equal(other[variable], value, err_msg=f"{name}, {variable}")
        assert np.ptp([point["eta_log__"] for point in found[name]]) > 0
    batches_of(40, whole)()
    one, other = (xr.open_datatree(path).load() for path in (whole, both))
    assert one["history"].sizes["step"] == 40
    for name in ("posterior", "history"):
        xr.testing.assert_identical(one[name].to_dataset(), other[name].to_dataset())
