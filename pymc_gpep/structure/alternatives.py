"""The nearest to what cannot be read: what messages advise in its place."""

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_gpep.likelihoods.observed_classes import A_ROW_FOR_EACH_VOTE
from pymc_gpep.structure.errors import distribution
from pymc_gpep.structure.latent import is_process, latents_among

_SUCH_LABELS = "Such labels are pm.Categorical(logit_p=f.T), gpep.MultinomialProbit, or of ordered classes."


def as_it_is(model: pm.Model) -> str:
    """A sentence that says how a model can be sampled without being read."""
    processes = map(is_process, latents_among([*model.free_RVs, *model.deterministics], model))
    step = "step=gpep.samplers.GuidedHMC()" if any(processes) else ""
    return f"The model as it is can be sampled by pm.sample({step})."


def instead_of_likelihood(variable: Variable) -> str:
    """Return the advice what to write in place of an observed variable; an empty string if nothing is near."""
    match distribution(variable):
        case "DirichletMultinomial":
            return f"Where votes are more spread out add pm.Normal for each row and class to f. {A_ROW_FOR_EACH_VOTE}"
        case "Dirichlet":
            return (
                "Probabilities of classes can be given as votes in these proportions, and the more votes the surer: "
                f"votes = np.rint(10 * p).astype(int). {A_ROW_FOR_EACH_VOTE} {_SUCH_LABELS}"
            )
        case "MultivariateNormal" | "MvStudentT":
            return (
                f"Rows of {variable.name!r} depend on each other. Write the part that they share as a latent variable, "
                f"u = pm.MvNormal('u', np.zeros(n), cov). Observe rows given it: pm.Normal({variable.name!r}, mu + u, "
                "sigma, observed=y)."
            )
        case _ if variable.type.dtype.startswith("int"):
            return (
                "Counts are pm.Poisson(mu=pm.math.exp(f + offset)); where they are more spread out than that, "
                "pm.NegativeBinomial(mu=pm.math.exp(f + offset), alpha=alpha); where they have more zeros, add "
                "pm.gp.cov.WhiteNoise(s) to the covariance function."
            )
    return ""
