"""Three cultivars of wine from thirteen measurements: declare, fit, sample, predict, draw."""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from sklearn.datasets import load_wine

import pymc_gpep as gpep


def main(picture: Path) -> None:
    """Fit three quarters of the wines, predict the rest, print a table and write a picture."""
    wine = load_wine()
    held_out = np.arange(len(wine.target)) % 4 == 0
    centre, spread = wine.data[~held_out].mean(axis=0), wine.data[~held_out].std(axis=0)
    X, Xnew = ((wine.data[part] - centre) / spread for part in (~held_out, held_out))
    y, ynew = wine.target[~held_out], wine.target[held_out]

    coords = {
        "cultivar": ["first", "second", "third"],
        "wine": np.flatnonzero(~held_out),
        "measurement": wine.feature_names,
    }
    with pm.Model(coords=coords):
        ls = pm.InverseGamma("ls", 3, 12, dims="measurement")
        eta = pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(13, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3, dims=("cultivar", "wine"))
        gpep.MultinomialProbit("y", f.T, observed=y, dims="wine")

        print("fitting; the first time, compiling takes a minute or two", flush=True)
        began = time.perf_counter()
        ep = pm.fit(method="nested_ep", progressbar=False)
        seconds = time.perf_counter() - began

    draws = ep.sample(1000, chains=4, random_seed=1)
    predicted = ep.predict(gp, Xnew, dim="wine").assign_coords(wine=np.flatnonzero(held_out))
    p = predicted["p"].values
    of_truth = p[np.arange(len(ynew)), ynew]

    print(f"nested EP on wine: {len(y)} wines to learn from, {len(ynew)} held out, {seconds:.1f} s with compilation")
    rows = {
        "converged": "yes" if ep.converged else "no",
        "log evidence": f"{ep.log_evidence:.3f}",
        "magnitude eta": f"{float(ep.hyperparameters['eta']):.2f}",
        "draws of the latent values": ", ".join(f"{size} {dim}s" for dim, size in draws.posterior["f"].sizes.items()),
        "held out, predicted right": f"{np.mean(p.argmax(axis=1) == ynew):.1%}",
        "held out, mean log predictive density": f"{np.log(of_truth).mean():.3f}",
    }
    for name, value in rows.items():
        print(f"  {name:40} {value}")
    print("  least certain of the wines held out:")
    for i in np.argsort(p.max(axis=1))[:3]:
        chances = ", ".join(f"{name} {chance:.2f}" for name, chance in zip(coords["cultivar"], p[i], strict=True))
        print(f"    wine {int(predicted['wine'][i]):3}: {chances}; it is the {coords['cultivar'][ynew[i]]}")

    draw(picture, coords, ep, draws, predicted, ynew)
    print(f"  picture in {picture}")


def draw(picture, coords, ep, draws, predicted, ynew) -> None:
    """Predictions, the least certain training wine's latent values, and which measurements matter."""
    colours = ["#0072b2", "#d55e00", "#009e73"]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")

    p = predicted["p"].values
    order = np.lexsort((-p[np.arange(len(ynew)), ynew], ynew))
    bottom = np.zeros(len(ynew))
    for k, name in enumerate(coords["cultivar"]):
        left.bar(range(len(ynew)), p[order, k], bottom=bottom, width=0.9, color=colours[k], label=name)
        bottom += p[order, k]
    left.scatter(range(len(ynew)), np.full(len(ynew), 1.04), c=[colours[k] for k in ynew[order]], s=12, marker="s")
    left.set(
        xlabel="wines held out, by true cultivar (squares)", ylabel="class probability", ylim=(0, 1.08), xticks=[],
        title="Predictions",
    )  # fmt: skip
    figure.legend(*left.get_legend_handles_labels(), title="cultivar", loc="outside right upper")

    scaled = ep.latent["mean"] / np.sqrt(1 + ep.latent["cov"].max(("cultivar", "cultivar_other")))
    top = np.sort(scaled.transpose("wine", "cultivar").values, axis=1)
    least = int(np.argmin(top[:, -1] - top[:, -2]))
    values = draws.posterior["f"].isel(wine=least).stack(draw_=("chain", "draw"))
    for k, name in enumerate(coords["cultivar"]):
        middle.hist(values.sel(cultivar=name), bins=50, density=True, alpha=0.55, color=colours[k], label=name)
    middle.set(
        xlabel="latent value",
        ylabel="posterior density",
        title=f"Training wine {coords['wine'][least]}, the least certain",
    )

    relevance = (1 / ep.hyperparameters["ls"]).sortby(1 / ep.hyperparameters["ls"])
    names = [str(name).replace("_", " ") for name in relevance["measurement"].values]
    right.barh(names, relevance, color="#666666")
    right.set(xlabel="1 / length scale (inputs standardised)", title="Which measurements matter")

    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("output/wine.png"), help="where to write the picture")
    main(parser.parse_args().picture)
