# %% [markdown]
# # Comparing methods
#
# Which approximation is good enough? On a problem small enough for MCMC, four approximations are held against it: by
# their latent values, by their class probabilities, by leave-one-out cross-validation, and each against itself by
# importance sampling.

# %%
import warnings
from pathlib import Path
from textwrap import fill

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from sklearn.datasets import load_iris

import pymc_gpep as gpep

iris = load_iris(as_frame=True)
petals = iris.data[["petal length (cm)", "petal width (cm)"]]
train = np.arange(len(petals)) % 2 == 0
X, Xnew = petals[train].to_numpy(), petals[~train].to_numpy()
y, ynew = iris.target[train].to_numpy(), iris.target[~train].to_numpy()

# %% [markdown]
# ## One model, five results

# %%
with pm.Model(coords={"species": iris.target_names, "flower": petals.index[train]}) as model:
    ls = pm.InverseGamma("ls", 3, 3)
    eta = pm.HalfNormal("eta", 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    f = gp.prior("f", X=X, n_outputs=3, dims=("species", "flower"))
    gpep.MultinomialProbit("y", f.T, observed=y, dims="flower")

    methods = {"nested EP": "nested_ep", "independent EP": "iep", "variational Bayes": "vb", "Laplace": "laplace"}
    fits = {name: pm.fit(method=method, progressbar=False) for name, method in methods.items()}
    mcmc = pm.sample(
        draws=300, tune=200, chains=2, cores=1, step=gpep.GuidedHMC(), random_seed=1, progressbar=False, quiet=True
    )

# %% [markdown]
# The table holds the approximations against MCMC: mean absolute differences of latent means, latent variances and class
# probabilities, the mean log predictive density (mlpd) and the accuracy of the flowers held out.

# %%
results = fits | {"MCMC": mcmc}
table = gpep.compare_methods(results, "MCMC", gp=gp, Xnew=Xnew, ynew=ynew, random_seed=1)
shown = [name for name in table if not name.endswith(("_low", "_high"))]
print(table[shown].T.round(3).to_string())

# %% [markdown]
# ## Leave-one-out cross-validation
#
# `fit.loo()` answers without fitting again and without draws. For MCMC ArviZ weights the draws, and has its doubts: at
# many flowers, see `diag_elpd`, the weights have heavy tails.

# %%
# Warnings are of those doubts, which the table shows, and of the copy that PyMC makes of a model.
with warnings.catch_warnings(action="ignore"):
    loo = az.loo(pm.compute_log_likelihood(mcmc, model=model, progressbar=False))
print(az.compare({name: fit.loo() for name, fit in fits.items()} | {"MCMC": loo}, round_to=2).to_string())

# %% [markdown]
# ## Importance sampling
#
# No sampler is needed to learn something about a fit: `importance` weights draws of its Gaussian by the exact density.
# All together they may be worth little and the fit be close all the same, which weights on blocks of points tell.

# %%
checks = {name: fit.importance(4000, random_seed=1) for name, fit in fits.items()}
print(fill(str(checks["nested EP"]), 100), end="\n\n")
verdicts = {
    name: {"draws": check.draws_verdict, "fit": check.fit_verdict, "probabilities off": check.probability_shift}
    for name, check in checks.items()
}
print(pd.DataFrame(verdicts).T.to_string(float_format="{:.3f}".format))

# %% [markdown]
# ## In pictures
#
# Above, two latent values of the least certain flower: contours of each approximation over draws and contours of MCMC.
# Below, the probability of the right species for each flower held out. Laplace's method has the shape of the posterior
# but not its place, and its probabilities suffer. Class-independent EP has the place and not the shape.

# %%
p = {name: fit.predict(gp, Xnew)["p"] for name, fit in fits.items()}
p["MCMC"] = gpep.predict_draws(mcmc, gp, Xnew, model=model, progressbar=False)["p"]
fitted = fits["nested EP"].predict(gp, X)["p"].values
least = petals.index[train][fitted.max(axis=1).argmin()]

figure, (above, below) = plt.subplots(2, 4, figsize=(15, 7.6), layout="constrained")
for ax, (name, fit) in zip(above, fits.items(), strict=True):
    pair = {name: fit, "MCMC": mcmc}
    gpep.plots.plot_latent_pair(pair, least, ("versicolor", "virginica"), masses=(0.5, 0.95), model=model, ax=ax)
    ax.set_title(name)
gpep.plots.plot_probability_comparison(p, "MCMC", ynew, axes=below)

Path("output").mkdir(exist_ok=True)
figure.savefig("output/comparing.png", dpi=110)
