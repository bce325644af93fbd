# %% [markdown]
# # Two classes: every approximation side by side
#
# Is a tumour benign? Two classes need one latent function, and there are seven approximations for it (Nickisch and
# Rasmussen 2008). Here each approximation learns its hyperparameters from 120 tumours, and predicts the
# probability that each held-out tumour is benign. MCMC is the reference.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from sklearn.datasets import load_breast_cancer

import pymc_gpep as gpep

cancer = load_breast_cancer()
order = np.random.default_rng(1).permutation(len(cancer.target))
train, held_out = order[:120], order[120:]
inputs = (cancer.data - cancer.data[train].mean(axis=0)) / cancer.data[train].std(axis=0)
X, Xnew = inputs[train], inputs[held_out]
y, ynew = cancer.target[train], cancer.target[held_out]

# %% [markdown]
# ## One model, seven fits
#
# `gpep.Probit` takes the latent values of the process, one for each tumour. For a logit, write
# `pm.Bernoulli("y", logit_p=f, observed=y)`.

# %%
with pm.Model(coords={"tumour": train}) as model:
    ls = pm.LogNormal("ls", np.log(5.5), 1)
    eta = pm.HalfNormal("eta", 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(30, ls=ls))
    f = gp.prior("f", X=X, dims="tumour")
    gpep.Probit("y", f, observed=y, dims="tumour")

    names = {
        "ep": "EP",
        "kl": "KL",
        "vb": "variational bound",
        "laplace": "Laplace",
        "fv": "factorial",
        "lr": "label regression",
        "tap_naive": "naive TAP",
    }
    fits = {name: pm.fit(method=method, hyper="map", progressbar=False) for method, name in names.items()}

table = gpep.compare_methods(fits, "EP", gp=gp, Xnew=Xnew, ynew=ynew, random_seed=1)
shown = ["log_evidence", "ls", "eta", "mlpd", "information", "accuracy"]
print(table[shown].round(3).to_string())

# %% [markdown]
# Accuracies hardly differ. The information in the probabilities does: `information` is in bits for each tumour,
# relative to the frequencies of the classes. Evidences of different rows are not comparable, since some are bounds. The
# bounds of label regression and of the factorial approximation are loose.
#
# ## At the same hyperparameters
#
# In the table above the methods also differ in their hyperparameters. The next table has all approximations at EP's
# hyperparameters, against draws of the exact posterior at the same hyperparameters.

# %%
at = {name: float(fits["EP"].hyperparameters[name]) for name in ("ls", "eta")}
with pm.Model(coords={"tumour": train}) as fixed:
    held = pm.gp.Latent(cov_func=at["eta"] ** 2 * pm.gp.cov.ExpQuad(30, ls=at["ls"]))
    f = held.prior("f", X=X, dims="tumour")
    gpep.Probit("y", f, observed=y, dims="tumour")

    same = {name: pm.fit(method=method, progressbar=False) for method, name in names.items()}
    mcmc = pm.sample(
        draws=200,
        tune=100,
        chains=2,
        cores=1,
        step=gpep.samplers.GuidedHMC(),
        random_seed=1,
        progressbar=False,
        quiet=True,
    )

p = {name: fit.predict(held, Xnew)["p"] for name, fit in same.items()}
p["MCMC"] = gpep.predict_draws(mcmc, held, Xnew, model=fixed, progressbar=False)["p"]
draws = mcmc.posterior["f"].stack(sample=("chain", "draw"))
mean, sd = draws.mean("sample").values, draws.std("sample").values
rows = {}
for name, fit in same.items():
    own = fit.latent
    rows[name] = {
        "log evidence": fit.log_evidence,
        "mean / exact": float(np.abs(own["mean"]).mean()) / np.abs(mean).mean(),
        "sd / exact": float((np.sqrt(own["variance"]) / sd).mean()),
        "probability": np.abs(p[name].values - p["MCMC"].values).mean(),
    }
print(pd.DataFrame(rows).T.round(3).to_string())

# %% [markdown]
# EP's means, standard deviations and probabilities agree with the exact posterior, and KL's nearly agree. The means of
# Laplace's method and of the variational bound are modes, far closer to zero than the exact means. Laplace's standard
# deviations are right, so that its probabilities are too close to one half. The variational bound has standard
# deviations that are too small by about the same factor. The last column is the mean absolute difference of
# probabilities from MCMC, for held-out tumours.
#
# ## In pictures

# %%
figure, axes = plt.subplots(2, 4, figsize=(15, 7.6), layout="constrained")
panels = axes.ravel()
gpep.plots.plot_latent_comparison({**same, "MCMC": mcmc}, axes=panels[:-1])
order = np.argsort(p["MCMC"].values[:, 1])
for name, color in {"MCMC": "k", "EP": "#0072b2", "Laplace": "#d55e00", "variational bound": "#009e73"}.items():
    panels[-1].plot(p[name].values[order, 1], color=color, label=name, lw=1.2)
panels[-1].set(title="Tumours held out", xlabel="tumour, in the order of MCMC", ylabel="probability of benign")
panels[-1].legend()

Path("output").mkdir(exist_ok=True)
figure.savefig("output/two_classes.png", dpi=110)
