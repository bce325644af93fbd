# %% [markdown]
# # Counts: the rate of rare events
#
# A latent function can also model counts. Here its exponential is the yearly rate of coal mining disasters in the
# United Kingdom, 1851 to 1961 (Jarrett 1979, "A note on the intervals between coal-mining disasters", Biometrika 66).
# Two years are missing. The likelihood is PyMC's `pm.Poisson`.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from scipy.special import ndtri
from scipy.stats import poisson

import pymc_gpep as gpep

digits = "454014340633402633545314415534252234213-2111130010110031"
digits += "032201110101000210001102331-211112420014000100000100101"
counts = pd.Series([-1 if digit == "-" else int(digit) for digit in digits], index=range(1851, 1962))
counts = counts[counts >= 0]
X = counts.index.to_numpy(float)[:, None]

# %% [markdown]
# ## The model
#
# The prior mean of the latent function is the logarithm of a typical rate. For years of unequal length, or an unequal
# number of mines, add an offset: `mu=pm.math.exp(f + np.log(exposure))`.

# %%
with pm.Model(coords={"year": counts.index}) as model:
    level = pm.Normal("level", 0, 2)
    ls = pm.InverseGamma("ls", mu=30, sigma=20)
    eta = pm.HalfNormal("eta", 1)
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
    f = gp.prior("f", X=X, dims="year")
    pm.Poisson("disasters", mu=pm.math.exp(f), observed=counts.to_numpy(), dims="year")

    fits = {method: pm.fit(method=method, hyper="map", progressbar=False) for method in ("ep", "kl", "laplace")}
    mcmc = pm.sample(
        draws=100,
        tune=60,
        chains=2,
        cores=1,
        step=gpep.samplers.GuidedHMC(),
        random_seed=1,
        progressbar=False,
        quiet=True,
    )
    integrated = pm.fit(method="ep", hyper="ccd", progressbar=False)

for fit in fits.values():
    print(fit)

# %% [markdown]
# ## Against MCMC
#
# The table has mean absolute differences over the years, for posterior means and standard deviations of the latent
# values. MCMC integrates over the hyperparameters, and so does `hyper="ccd"`.

# %%
draws = mcmc.posterior["f"].stack(sample=("chain", "draw"))
mean, sd = draws.mean("sample"), draws.std("sample")
rows = {}
for name, fit in (fits | {"ep, ccd": integrated}).items():
    own = fit.latent
    rows[name] = {
        "mean": float(np.abs(own["mean"] - mean).mean()),
        "standard deviation": float(np.abs(np.sqrt(own["variance"]) - sd).mean()),
    }
print(pd.DataFrame(rows).T.round(3).to_string())

# %% [markdown]
# ## Predictions
#
# `predict` returns mean and variance of the count in a future year, and of the latent function.

# %%
years = np.arange(1851, 1976)
predicted = integrated.predict(gp, years[:, None].astype(float), dim="year")
print(predicted.assign_coords(year=years).sel(year=[1962, 1968, 1975]).to_dataframe().round(2).to_string())

# %% [markdown]
# ## In pictures

# %%
figure, (rate, check) = plt.subplots(1, 2, figsize=(13, 4.5), layout="constrained", width_ratios=[2, 1])
low, high = (np.exp(predicted["mean"] + z * np.sqrt(predicted["variance"])) for z in ndtri([0.025, 0.975]))
rate.bar(counts.index, counts, color="0.8", label="disasters in a year")
rate.fill_between(years, low, high, color="#0072b2", alpha=0.3, lw=0, label="rate, 95 %")
rate.plot(years, np.exp(predicted["mean"]), color="#0072b2", label="rate, median")
rate.axvline(1961.5, color="k", lw=0.8, ls=":")
rate.set(xlabel="year", ylabel="disasters in a year", title="EP, hyperparameters integrated over")
rate.legend()

values = np.arange(7)
shares = np.array([(counts == value).mean() for value in values])
at_years = np.exp(draws.values)
expected = np.array([poisson.pmf(value, at_years).mean() for value in values])
check.bar(values, shares, color="0.8", label="share of years")
check.plot(values, expected, "o-", color="#d55e00", label="by draws of MCMC")
check.set(xlabel="disasters in a year", title="Years by number of disasters")
check.legend()

Path("output").mkdir(exist_ok=True)
figure.savefig("output/counts.png", dpi=110)
