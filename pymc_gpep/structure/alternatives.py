"""The nearest to what cannot be read: priors and likelihoods that messages advise in its place."""

from collections.abc import Sequence

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_gpep.likelihoods.observed_classes import A_ROW_FOR_EACH_VOTE
from pymc_gpep.structure.errors import distribution, listing
from pymc_gpep.structure.latent import is_process, latents_among

__all__ = ["as_it_is", "instead_of_likelihood", "not_latent"]

_SUCH_LABELS = "Such labels are pm.Categorical(logit_p=f.T), gpep.MultinomialProbit, or of ordered classes."
_OWN_COVARIANCE = "pm.MvNormal('f', mu, cov) of any covariance is read"
_PRIORS = {
    ("StudentT", "MvStudentT"): "In place of a Student-t process, pm.gp.TP, there is pm.gp.Latent.",
    ("CAR", "ICAR"): (
        f"{_OWN_COVARIANCE}, that of a CAR, np.linalg.inv(tau * (np.diag(W.sum(axis=1)) - alpha * W)) with alpha below "
        "1, too."
    ),
    ("RandomWalk",): (
        f"{_OWN_COVARIANCE}, that of a random walk, start_sd**2 + sigma**2 * np.minimum.outer(t, t) with "
        "t = np.arange(n), too."
    ),
    ("AR",): (
        f"{_OWN_COVARIANCE}, that of a stationary AR(1), sigma**2 / (1 - rho**2) * rho ** abs(t[:, None] - t) with "
        "t = np.arange(n), too."
    ),
    ("MultivariateNormal",): "Give each class a prior of its own, with a covariance (n, n), and stack them.",
}
_NORMAL = (
    "In place of a linear model there is pm.gp.Latent(cov_func=tau**2 * pm.gp.cov.Linear(d, c=np.zeros(d))), tau the "
    "standard deviation of coefficients; in place of a Kronecker prior, pm.gp.LatentKron, one at "
    "pm.math.cartesian(X1, X2) with the product of its cov_funcs, each with its active_dims. "
    f"{_OWN_COVARIANCE} as well."
)
_LOW_RANK = (
    "In place of a low-rank prior, pm.gp.HSGP, there is pm.gp.Latent with the same cov_func; for many rows of "
    'gpep.MultinomialProbit, gpep.Probit or pm.Bernoulli it is fitted by pm.fit(method="sparse_ep", inducing=50).'
)


def as_it_is(model: pm.Model) -> str:
    """A sentence that says how a model can be sampled without being read."""
    processes = map(is_process, latents_among([*model.free_RVs, *model.deterministics], model))
    step = "step=gpep.GuidedHMC()" if any(processes) else ""
    return f"The model as it is can be sampled by pm.sample({step})."


def not_latent(what: str, random: Sequence[Variable]) -> str:
    """The message about `what` that is made of other random variables than latent values."""
    found = {distribution(variable) for variable in random}
    instead = " ".join(text for names, text in _PRIORS.items() if not found.isdisjoint(names))
    low_rank = any(variable.name.endswith("_hsgp_coeffs") for variable in random)
    return (
        f"{what} must be made of latent values with pm.gp.Latent priors, but it, or a part of it, is made of "
        f"{listing(random)}. {instead or (_LOW_RANK if low_rank else _NORMAL)} The model as it is can be sampled by "
        "pm.sample()."
    )


def instead_of_likelihood(variable: Variable) -> str:
    """What can be read in place of an observed variable; nothing if nothing is near."""
    match distribution(variable):
        case "Multinomial" | "DirichletMultinomial":
            return f"{A_ROW_FOR_EACH_VOTE} {_SUCH_LABELS}"
        case "Dirichlet":
            return (
                "Probabilities of classes can be given as votes in these proportions, and the more votes the surer: "
                f"votes = np.rint(10 * p).astype(int). {A_ROW_FOR_EACH_VOTE} {_SUCH_LABELS}"
            )
        case "Binomial" | "BetaBinomial":
            return (
                "Give each trial a row with a label 0 or 1, pm.Bernoulli(logit_p=f): X=np.repeat(X, trials, axis=0), "
                "and labels np.concatenate([np.arange(m) < k for k, m in zip(successes, trials)])."
            )
        case "Normal":
            return "Normal noise needs no approximation: pm.gp.Marginal."
        case _ if variable.type.dtype.startswith("int"):
            return (
                "Counts are pm.Poisson(mu=pm.math.exp(f + offset)); where they are more spread out than that, or have "
                "more zeros, add pm.gp.cov.WhiteNoise(s) to the covariance function."
            )
    return ""
