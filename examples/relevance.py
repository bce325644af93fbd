# %% [markdown]
# # Relevance: which inputs matter
#
# With a length scale for each input, the evidence distinguishes relevant inputs from irrelevant ones. The length scale
# of an input that is noise grows, and its relevance, the inverse, approaches zero (automatic relevance determination).
# Here the inputs are five measurements of wines and two columns of pure noise, for a small number of wines.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from sklearn.datasets import load_wine

import pymc_gpep as gpep

wine = load_wine(as_frame=True)
inputs = wine.data[["alcohol", "flavanoids", "color_intensity", "proline", "magnesium"]].copy()
noise = np.random.default_rng(1).standard_normal((len(inputs), 2))
inputs[[f"noise_{j}" for j in range(1, 3)]] = noise

train = np.arange(len(inputs)) % 2 == 0
standardised = (inputs - inputs[train].mean()) / inputs[train].std()
X, Xnew = standardised[train].to_numpy(), standardised[~train].to_numpy()
y, ynew = wine.target[train].to_numpy(), wine.target[~train].to_numpy()

# %% [markdown]
# ## The prior
#
# A length scale with an inverse gamma prior of shape 1 has an exponentially distributed relevance. Its density is
# largest at zero, so that only informative inputs become relevant. For comparison, a second model has one length scale
# for all inputs.

# %%
coords = {"input": inputs.columns, "cultivar": ["first", "second", "third"], "wine": inputs.index[train]}


def classifier(**of_length_scale):
    """Return a model and its Gaussian process."""
    with pm.Model(coords=coords) as model:
        ls = pm.InverseGamma("ls", 1, 3, **of_length_scale)
        eta = pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(7, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3, dims=("cultivar", "wine"))
        gpep.MultinomialProbit("y", f.T, observed=y, dims="wine")
    return model, gp


shared, own = classifier(), classifier(dims="input")

# %% [markdown]
# ## Three fits
#
# With `hyper="ccd"` the fit integrates over the hyperparameters at 81 points, instead of using the maximum of their
# posterior.

# %%
fits = {
    "one length scale, maximum": (*shared, "map"),
    "one for each input, maximum": (*own, "map"),
    "one for each input, integrated": (*own, "ccd"),
}
rows, p = {}, {}
for name, (model, gp, hyper) in fits.items():
    fits[name] = ep = pm.fit(method="nested_ep", model=model, hyper=hyper, progressbar=False)
    p[name] = ep.predict(gp, Xnew)["p"]
    of_truth = p[name].values[np.arange(len(ynew)), ynew]
    rows[name] = {
        "log evidence at the maximum": ep.log_evidence,
        "mlpd": np.log(of_truth).mean(),
        "accuracy": np.mean(p[name].values.argmax(axis=1) == ynew),
    }
print(f"{len(y)} wines with {X.shape[1]} inputs to learn from, {len(ynew)} held out")
print(pd.DataFrame(rows).T.round(3).to_string())

# %% [markdown]
# The nodes of the last fit are hyperparameters with weights. They show the uncertainty of each relevance beside the
# maximum.

# %%
nodes = fits["one for each input, integrated"].nodes
relevances = (1 / nodes["ls"]).weighted(nodes["weight"])
relevance = pd.DataFrame(
    {
        "maximum": 1 / fits["one for each input, maximum"].hyperparameters["ls"].to_series(),
        "mean": relevances.mean("node").to_series(),
        "standard deviation": relevances.std("node").to_series(),
    }
)
print(relevance.sort_values("maximum", ascending=False).round(3).to_string())

# %% [markdown]
# ## In pictures
#
# Bars on the left are central 80 % intervals. Three measurements are more relevant than the noise, and alcohol perhaps.
# At the maximum magnesium is also above the noise, but its interval includes the noise level. On the right are the
# probabilities of the true cultivar of held-out wines by each model.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2), layout="constrained", width_ratios=[1.3, 1])
results = {name.removeprefix("one for each input, "): fit for name, fit in list(fits.items())[1:]}
gpep.plots.plot_relevance(results, "ls", prob=0.8, ax=left)
left.set_xlabel("relevance, 1 / length scale (inputs standardised)")

compared = {"one length scale": p["one length scale, maximum"], "one for each": p["one for each input, integrated"]}
gpep.plots.plot_probability_comparison(compared, "one length scale", ynew, axes=right)
right.set(
    xlabel="probability of the true cultivar,\none length scale for all inputs",
    ylabel="probability of the true cultivar,\none for each input, integrated",
)

Path("output").mkdir(exist_ok=True)
figure.savefig("output/relevance.png", dpi=110)
