"""Use an installed package once, from the fit of a small classifier to a picture and files, and print the results.

Run as `python -I .ci/smoke.py`, so that nothing is imported from this checkout.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import pymc_gpep as gpep

assert Path(sys.prefix) in Path(gpep.__file__).parents, f"{gpep.__file__} is not the installed package"

rng = np.random.default_rng(1)
y = np.arange(20) % 3
X = rng.normal(size=(20, 2)) + np.array([[0, 0], [3, 0], [0, 3]])[y]


def build() -> tuple[pm.Model, pm.gp.Latent]:
    """A model of three classes in the plane."""
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 3, shape=2)
        gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model, gp


model, gp = build()
with model:
    fit = pm.fit(method="nested_ep", progressbar=False)
p = fit.predict(gp, X + 0.1)["p"].values
assert fit.converged
assert np.isfinite(fit.log_evidence)
assert p.shape == (20, 3)
np.testing.assert_allclose(p.sum(axis=1), 1)
assert np.mean(p.argmax(axis=1) == y) > 0.8

with tempfile.TemporaryDirectory() as folder:
    gpep.plots.plot_relevance(fit, "ls").figure.savefig(Path(folder) / "relevance.png")
    netcdf, zarr = Path(folder) / "fit.nc", Path(folder) / "fit.zarr"
    fit.to_datatree().to_netcdf(netcdf)
    fit.to_datatree().to_zarr(zarr)
    for tree in (az.from_netcdf(netcdf), az.from_zarr(zarr)):
        model, gp = build()
        again = gpep.from_datatree(tree, model).predict(gp, X + 0.1)["p"].values
        np.testing.assert_allclose(again, p, atol=1e-5)
        tree.close()

used = ["pymc", "pytensor", "numba", "numpy", "scipy", "xarray", "arviz", "pandas", "zarr", "h5netcdf", "matplotlib"]
print(f"Python {sys.version.split()[0]};", ", ".join(f"{name} {version(name)}" for name in used))
print(f"pymc_gpep {gpep.__version__}: log evidence {fit.log_evidence:.6f}, {np.mean(p.argmax(axis=1) == y):.0%} right")
