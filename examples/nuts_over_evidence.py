# %% [markdown]
# # NUTS over the evidence
#
# Nested EP integrates the latent values out, with exact gradients of the evidence. So PyMC's sampler NUTS can draw the
# hyperparameters alone: two variables here, instead of two hyperparameters and 150 latent values that depend on them.
# `gpep.marginalize` makes the model to sample. `gpep.recover_latent` adds latent values to its draws.

# %%
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from scipy import stats
from sklearn.datasets import load_iris

import pymc_gpep as gpep

iris = load_iris(as_frame=True)
petals = iris.data[["petal length (cm)", "petal width (cm)"]]
train = np.arange(len(petals)) % 3 == 0
X, y = petals[train].to_numpy(), iris.target[train].to_numpy()

with pm.Model(coords={"species": iris.target_names, "flower": petals.index[train]}) as model:
    ls = pm.InverseGamma("ls", 3, 3)
    eta = pm.HalfNormal("eta", 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    f = gp.prior("f", X=X, n_outputs=3, dims=("species", "flower"))
    gpep.MultinomialProbit("y", f.T, observed=y, dims="flower")

# %% [markdown]
# ## Sample, and recover
#
# The draws have all variables of the original model.

# %%
marginal = gpep.marginalize(model, warm=True)
idata = pm.sample(model=marginal, draws=75, tune=45, chains=2, cores=1, random_seed=1, progressbar=False, quiet=True)
idata = gpep.recover_latent(idata, marginal, random_seed=1, progressbar=False)
print("draws:", ", ".join(f"{name} {idata.posterior[name].shape}" for name in ("ls", "eta", "f")))
print(az.summary(idata, var_names=["ls", "eta"]).to_string())

# %% [markdown]
# ## The same, faster and slower
#
# `hyper="ccd"` approximates the posterior of the hyperparameters by nine weighted points. With two hyperparameters a
# dense grid of evidence times prior is also possible, on the logarithmic scale. It serves as the reference.

# %%
ep = pm.fit(method="nested_ep", model=model, hyper="ccd", progressbar=False)

values = {"ls": np.geomspace(0.3, 10, 12), "eta": np.geomspace(0.5, 50, 12)}
grid = gpep.diagnostics.evidence_grid(model, values, progressbar=False)
of_ls = stats.invgamma(3, scale=3).logpdf(grid["ls"]) + np.log(grid["ls"])
of_eta = stats.halfnorm(scale=5).logpdf(grid["eta"]) + np.log(grid["eta"])
posterior = np.exp(grid["evidence"] + of_ls + of_eta)
posterior /= posterior.sum()


def moments(ls, eta, weight):
    """Return weighted means and standard deviations of the logarithms."""
    logs = {"log ls": np.log(ls), "log eta": np.log(eta)}
    means = {name: (weight * value).sum() / weight.sum() for name, value in logs.items()}
    return {f"mean of {name}": float(mean) for name, mean in means.items()} | {
        f"sd of {name}": float(np.sqrt((weight * (logs[name] - mean) ** 2).sum() / weight.sum()))
        for name, mean in means.items()
    }


draws = idata.posterior
rows = {
    "grid": moments(grid["ls"], grid["eta"], posterior),
    "NUTS": moments(draws["ls"], draws["eta"], np.ones_like(draws["ls"])),
    "CCD": moments(ep.nodes["ls"], ep.nodes["eta"], ep.nodes["weight"]),
}
print(pd.DataFrame(rows).T.round(3).to_string())

# %% [markdown]
# ## In pictures
#
# Large magnitudes have nearly equal evidence, so that only the prior bounds them. The star marks the largest evidence
# of the grid, possibly at its edge. On the right are two latent values of the least certain flower, with the
# hyperparameters integrated out. The mixture of nine Gaussians by CCD is drawn as one Gaussian.

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")

gpep.plots.plot_evidence_grid(grid, ["evidence"], axes=left)
left.scatter(draws["ls"], draws["eta"], s=9, color="white", edgecolor="#333333", linewidth=0.3, label="NUTS")
left.scatter(
    ep.nodes["ls"], ep.nodes["eta"], s=30, color="#d55e00", marker="D", edgecolor="white", zorder=3, label="CCD",
)  # fmt: skip
left.set(title="Log evidence, and draws of the posterior", xlabel="length scale ls (cm)", ylabel="magnitude eta")
left.legend(loc="upper left")

step = np.log(values["eta"][1] / values["eta"][0])
density = posterior.sum("ls") / step
middle.hist(np.log(draws["eta"].values.ravel()), bins=16, density=True, color="#bbbbbb", label="NUTS")
middle.plot(np.log(values["eta"]), density, color="#0072b2", label="grid")
mean, sd = rows["CCD"]["mean of log eta"], rows["CCD"]["sd of log eta"]
middle.errorbar([mean], [1.08 * density.max()], xerr=sd, fmt="D", color="#d55e00", label="CCD, mean ± sd")
middle.set(title="Posterior of the magnitude", xlabel="log eta", ylabel="posterior density")
middle.legend(loc="upper left")

least = petals.index[train][ep.predict(gp, X)["p"].values.max(axis=1).argmin()]
results = {"CCD": ep, "NUTS": idata}
gpep.plots.plot_latent_pair(results, least, ("versicolor", "virginica"), masses=(0.5, 0.95), model=model, ax=right)
right.set_title(f"Latent values of flower {least}")

Path("output").mkdir(exist_ok=True)
figure.savefig("output/nuts_over_evidence.png", dpi=110)
