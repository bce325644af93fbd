# %% [markdown]
# # Wine: declare, fit, sample, predict
#
# The model classifies three cultivars of wine by thirteen chemical measurements. It is an ordinary PyMC model: one
# Gaussian process for each cultivar, a length scale for each measurement, priors, and a multinomial probit likelihood.
# `pm.fit` integrates the latent functions out by nested EP, and maximises the posterior of the hyperparameters.

# %%
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from sklearn.datasets import load_wine

import pymc_gpep as gpep

wine = load_wine()
held_out = np.arange(len(wine.target)) % 4 == 0
centre, spread = wine.data[~held_out].mean(axis=0), wine.data[~held_out].std(axis=0)
X, Xnew = ((wine.data[part] - centre) / spread for part in (~held_out, held_out))
y, ynew = wine.target[~held_out], wine.target[held_out]

# %% [markdown]
# ## The model and its fit

# %%
cultivars = ["first", "second", "third"]
measurements = [name.split("/")[0] for name in wine.feature_names]
coords = {"cultivar": cultivars, "wine": np.flatnonzero(~held_out), "measurement": measurements}
with pm.Model(coords=coords) as model:
    ls = pm.InverseGamma("ls", 3, 12, dims="measurement")
    eta = pm.HalfNormal("eta", 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(13, ls=ls))
    f = gp.prior("f", X=X, n_outputs=3, dims=("cultivar", "wine"))
    gpep.MultinomialProbit("y", f.T, observed=y, dims="wine")

    print("fitting; the first time, compiling takes 10 to 40 s", flush=True)
    began = time.perf_counter()
    ep = pm.fit(method="nested_ep", progressbar=False)
    seconds = time.perf_counter() - began

# %% [markdown]
# ## Draws and predictions
#
# `ep.sample` draws latent values like those of `pm.sample`; `ep.predict` computes class probabilities at new inputs.

# %%
draws = ep.sample(1000, chains=4, random_seed=1)
p = ep.predict(gp, Xnew, dim="wine")["p"].values
certainty = p.max(axis=1)

print(f"nested EP on wine: {len(y)} wines to learn from, {len(ynew)} held out, {seconds:.1f} s with compilation")
rows = {
    "converged": "yes" if ep.converged else "no",
    "log evidence": f"{ep.log_evidence:.3f}",
    "magnitude eta": f"{float(ep.hyperparameters['eta']):.2f}",
    "draws of the latent values": ", ".join(f"{size} {dim}s" for dim, size in draws.posterior["f"].sizes.items()),
    "held out, predicted right": f"{np.mean(p.argmax(axis=1) == ynew):.1%}",
    "held out, mean log predictive density": f"{np.log(p[np.arange(len(ynew)), ynew]).mean():.3f}",
}
for name, value in rows.items():
    print(f"  {name:40} {value}")

table = pd.DataFrame(p, columns=cultivars, index=pd.Index(np.flatnonzero(held_out), name="wine"))
table["it is the"] = [cultivars[k] for k in ynew]
print("\nleast certain of the wines held out:")
print(table.iloc[np.argsort(certainty)[:3]].round(2).to_string())

# %% [markdown]
# ## In pictures
#
# On the left each bar is a held-out wine, divided by class probabilities. In the middle are the latent values of the
# least certain training wine. They vary mostly together, and only their differences determine the class. On the right
# are relevances: a high relevance is a short length scale.

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
colours = ["#0072b2", "#d55e00", "#009e73"]

order = np.lexsort((-p[np.arange(len(ynew)), ynew], ynew))
bottom = np.zeros(len(ynew))
for k, name in enumerate(cultivars):
    left.bar(range(len(ynew)), p[order, k], bottom=bottom, width=0.9, color=colours[k], label=name)
    bottom += p[order, k]
left.scatter(range(len(ynew)), np.full(len(ynew), 1.04), c=[colours[k] for k in ynew[order]], s=12, marker="s")
left.set(xlabel="wines held out, by true cultivar (squares)", ylabel="class probability", ylim=(0, 1.08), xticks=[])
left.set_title("Predictions")

fitted = ep.predict(gp, X, dim="wine")["p"].max("cultivar").values
least = coords["wine"][fitted.argmin()]
values = draws.posterior["f"].sel(wine=least)
for k, name in enumerate(cultivars):
    of_class = values.sel(cultivar=name).values.ravel()
    middle.hist(of_class, bins=40, density=True, histtype="stepfilled", color=colours[k], alpha=0.5, label=name)
middle.set(xlabel="latent value", ylabel="posterior density", title=f"Latent values of wine {least}")
middle.legend(title="cultivar")

gpep.plots.plot_relevance(ep, "ls", ax=right, point_kwargs={"color": "#333333"})
right.set(xlabel="relevance, 1 / length scale (inputs standardised)", title="Which measurements matter")

Path("output").mkdir(exist_ok=True)
figure.savefig("output/wine.png", dpi=110)
