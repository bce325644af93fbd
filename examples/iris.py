"""Three species of iris from two measurements of their petals: three approximations side by side, in pictures."""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from sklearn.datasets import load_iris

import pymc_gpep as gpep

METHODS = {"nested EP": "nested_ep", "independent EP": "iep", "variational Bayes": "vb"}


def main(picture: Path) -> None:
    """Fit three quarters of the flowers by each method, print a table and write a picture."""
    iris = load_iris(as_frame=True)
    petals = iris.data[["petal length (cm)", "petal width (cm)"]]
    held_out = np.arange(len(petals)) % 4 == 0
    X, Xnew = petals[~held_out], petals[held_out]
    y, ynew = iris.target[~held_out].to_numpy(), iris.target[held_out].to_numpy()

    with pm.Model(coords={"species": iris.target_names, "flower": X.index}) as model:
        ls = pm.InverseGamma("ls", 3, 3)
        eta = pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X.to_numpy(), n_outputs=3, dims=("species", "flower"))
        gpep.MultinomialProbit("y", f.T, observed=y, dims="flower")

        print("fitting; the first time, compiling takes some minutes", flush=True)
        began = time.perf_counter()
        fits = {name: pm.fit(method=method, progressbar=False) for name, method in METHODS.items()}
        seconds = time.perf_counter() - began

    table = gpep.compare_methods(fits, "nested EP", gp=gp, Xnew=Xnew.to_numpy(), ynew=ynew, random_seed=1)
    print(f"{len(y)} flowers to learn from, {len(ynew)} held out, {seconds:.1f} s with compilation")
    with pd.option_context("display.float_format", "{:.3f}".format):
        print(table[["log_evidence", "ls", "eta", "latent_variance_difference", "mlpd", "accuracy"]].T)

    draw(picture, model, gp, fits, X, y)
    print(f"picture in {picture}")


def draw(picture: Path, model: pm.Model, gp: pm.gp.Latent, fits: dict, X: pd.DataFrame, y: np.ndarray) -> None:
    """Class probabilities, the least certain flower's latent values, and the evidence over both hyperparameters."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")
    ep = fits["nested EP"]

    gpep.plots.plot_probabilities(ep, gp, gpep.plots.input_grid(X), X=X, y=y, ax=left)
    left.set_title("Class probabilities by nested EP")

    p = ep.predict(gp, X.to_numpy())["p"].values
    least = X.index[p.max(axis=1).argmin()]
    gpep.plots.plot_latent_pair(fits, least, ("versicolor", "virginica"), masses=(0.5, 0.95), ax=middle)
    middle.set_title(f"Latent values of flower {least}, the least certain")

    grid = gpep.evidence_grid(
        model, {"ls": np.geomspace(0.3, 10, 15), "eta": np.geomspace(0.5, 50, 15)}, progressbar=False
    )
    gpep.plots.plot_evidence_grid(grid, ["evidence"], axes=right)
    right.set(title="Log evidence by nested EP", xlabel="length scale ls (cm)", ylabel="magnitude eta")

    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("output/iris.png"), help="where to write the picture")
    main(parser.parse_args().picture)
