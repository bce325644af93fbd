# %% [markdown]
# # Digits: ten classes
#
# Handwritten digits have eight by eight pixels. With a Gaussian process for each of ten classes, there are thousands of
# latent values. A dense method would need time proportional to the cube of their number. Nested EP keeps the posterior
# coupling of classes, and needs only one factorisation for each class plus one. Its time grows linearly with the number
# of classes.

# %%
import timeit
from functools import partial
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from sklearn.datasets import load_digits

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP

digits = load_digits()
order = np.random.default_rng(1).permutation(len(digits.target))
train, held_out = order[:200], order[200:500]
X, Xnew = digits.data[train] / 16, digits.data[held_out] / 16
y, ynew = digits.target[train], digits.target[held_out]

# %% [markdown]
# ## Fit and score
#
# `hyper="ccd"` integrates over both hyperparameters with fewer evaluations than the default.

# %%
with pm.Model(coords={"digit": np.arange(10), "image": train}) as model:
    ls = pm.InverseGamma("ls", 3, 6)
    eta = pm.HalfNormal("eta", 10)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(64, ls=ls))
    f = gp.prior("f", X=X, n_outputs=10, dims=("digit", "image"))
    gpep.MultinomialProbit("y", f.T, observed=y, dims="image")

    ep = pm.fit(method="nested_ep", hyper="ccd", progressbar=False)

p = ep.predict(gp, Xnew, dim="image")["p"].values
right, of_truth = p.argmax(axis=1) == ynew, p[np.arange(len(ynew)), ynew]
print(f"{len(y)} digits to learn from, {len(ynew)} held out; log evidence {ep.log_evidence:.1f}")
print(f"predicted right: {right.mean():.1%}; mean log predictive density: {np.log(of_truth).mean():.3f}")

# %% [markdown]
# The probabilities show where the classifier may be wrong. Digits with a probability near 1 are right, and errors have
# lower probabilities. The probabilities are rather too cautious.

# %%
bins = [0.0, 0.5, 0.75, 0.9, 0.99, 1.0]
sure = pd.cut(p.max(axis=1), bins).rename_categories([f"{low:g} to {high:g}" for low, high in pairwise(bins)])
scores = pd.DataFrame({"largest probability": sure, "its mean": p.max(axis=1), "share right": right})
by_certainty = scores.groupby("largest probability", observed=True)
print(by_certainty.mean().round(3).assign(digits=by_certainty.size()).to_string())

# %% [markdown]
# ## Time by number of classes
#
# Hyperparameters and the number of images are the same, and the number of digits varies. The time is of a whole run of
# nested EP from a cold start, the shorter of two.

# %%
magnitude, length = float(ep.hyperparameters["eta"]), float(ep.hyperparameters["ls"])
cost = {}
for c in (2, 4, 6, 8, 10):
    some = np.flatnonzero(digits.target < c)[:100]
    k = (magnitude**2 * pm.gp.cov.ExpQuad(64, ls=length))(digits.data[some] / 16).eval()
    solve = partial(NestedEP().solve, k, np.zeros((c, len(some))), digits.target[some])
    cost[c] = {"seconds": min(timeit.repeat(solve, number=1, repeat=2)), "sweeps": solve().convergence.iterations}
cost = pd.DataFrame.from_dict(cost, orient="index").rename_axis("classes")
print(cost.round(3).to_string())

# %% [markdown]
# ## The least certain digits

# %%
figure = plt.figure(figsize=(15, 5), layout="constrained")
certain, costs = figure.subfigures(1, 2, width_ratios=[3, 1.2])
panels = certain.subplots(2, 6, width_ratios=[1, 1.6] * 3).ravel()
for i, image, bars in zip(np.argsort(p.max(axis=1)), panels[::2], panels[1::2], strict=False):
    image.imshow(Xnew[i].reshape(8, 8), cmap="gray_r")
    image.set(xticks=[], yticks=[], title=f"a {ynew[i]}")
    bars.bar(range(10), p[i], color=["#009e73" if k == ynew[i] else "#999999" for k in range(10)])
    bars.set(ylim=(0, 0.5), xticks=range(10), xlabel="class", ylabel="probability")
figure.get_layout_engine().set(wspace=0.04)
certain.suptitle("The least certain held-out digits; the true digit is green")

ax = costs.subplots()
ax.plot(cost.index, cost["seconds"], "o-", color="#0072b2")
ax.set(
    xlabel="number of classes",
    ylabel="time of one run of nested EP (s)",
    ylim=(0, 1.1 * cost["seconds"].max()),
    xlim=(0, 10.5),
)
costs.suptitle("Time with 100 images")

Path("output").mkdir(exist_ok=True)
figure.savefig("output/digits.png", dpi=110)
