"""Gaussian process classifiers of other packages, which run in their own environments.

`PYTHON benchmarks/classifier_peers.py NAME FILE` reads a fold from FILE (`.npz`), and writes probabilities and
processor seconds into it. Like scikit-learn's classifier, each peer has a squared exponential covariance with one
length scale. It also learns a magnitude and up to 100 inducing inputs. Up to 1000 rows are fitted together, and more
rows by 3000 batches of 200. Each peer uses one thread.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
ALL_ROWS = 1000  # largest number of rows that are fitted together
INDUCING = 100
BATCH, STEPS = 200, 3000


def gpflow(X: Array, y: Array, Xnew: Array, c: int) -> Array:
    """GPflow's `SVGP` by L-BFGS or Adam: probit for two classes, step with label noise for more."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    import gpflow as package
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rng = np.random.default_rng(0)
    inducing = X[rng.choice(len(X), min(INDUCING, len(X)), replace=False)]
    functions = 1 if c == 2 else c
    likelihood = package.likelihoods.Bernoulli() if c == 2 else package.likelihoods.MultiClass(c)
    covariance = package.kernels.SquaredExponential(1.0, np.sqrt(X.shape[1]))
    model = package.models.SVGP(covariance, likelihood, inducing, num_latent_gps=functions, num_data=len(X))
    labels = y[:, None].astype(float)
    if len(X) <= ALL_ROWS:
        loss = model.training_loss_closure((X, labels))
        package.optimizers.Scipy().minimize(loss, model.trainable_variables, options={"maxiter": 200})
    else:
        adam = tf.keras.optimizers.legacy.Adam(0.01)

        @tf.function
        def step(rows: Any, answers: Any) -> None:
            adam.minimize(lambda: model.training_loss((rows, answers)), model.trainable_variables)

        for _ in range(STEPS):
            chosen = rng.choice(len(X), BATCH, replace=False)
            step(tf.constant(X[chosen]), tf.constant(labels[chosen]))
    p: Array = model.predict_y(Xnew)[0].numpy()
    return np.hstack([1.0 - p, p]) if c == 2 else p


def gpytorch(X: Array, y: Array, Xnew: Array, c: int) -> Array:
    """GPyTorch's `ApproximateGP` by Adam: probit for two classes, softmax for more."""
    import gpytorch as package
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    inducing = torch.tensor(X[rng.choice(len(X), min(INDUCING, len(X)), replace=False)])
    batch = torch.Size([] if c == 2 else [c])

    class Model(package.models.ApproximateGP):  # type: ignore[misc]  # without types
        def __init__(self) -> None:
            values = package.variational.CholeskyVariationalDistribution(len(inducing), batch_shape=batch)
            strategy = package.variational.VariationalStrategy(self, inducing, values)
            if c > 2:
                strategy = package.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=c)
            super().__init__(strategy)
            self.mean_module = package.means.ConstantMean(batch_shape=batch)
            self.covar_module = package.kernels.ScaleKernel(package.kernels.RBFKernel())
            self.covar_module.base_kernel.lengthscale = np.sqrt(X.shape[1])

        def forward(self, inputs: Any) -> Any:
            return package.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))

    model = Model()
    likelihood = (
        package.likelihoods.BernoulliLikelihood()
        if c == 2
        else package.likelihoods.SoftmaxLikelihood(num_classes=c, mixing_weights=False)
    )
    bound = package.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    few = len(X) <= ALL_ROWS
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03 if few else 0.01)
    inputs, labels = torch.tensor(X), torch.tensor(y.astype(float) if c == 2 else y)
    for _ in range(STEPS // 3 if few else STEPS):
        chosen = slice(None) if few else rng.choice(len(X), BATCH, replace=False)
        optimiser.zero_grad()
        loss = -bound(model(inputs[chosen]), labels[chosen])
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad(), package.settings.num_likelihood_samples(1000):
        p: Array = likelihood(model(torch.tensor(Xnew))).probs.numpy()
    return np.column_stack([1.0 - p, p]) if c == 2 else p.mean(axis=0)


PEERS: Mapping[str, Callable[[Array, Array, Array, int], Array]] = {"GPflow": gpflow, "GPyTorch": gpytorch}
"""Peers by name."""


def main(name: str, file: str) -> None:
    """Fit the training rows of a fold, and predict its test rows."""
    with np.load(file) as stored:
        given = dict(stored)
    began = time.process_time()
    p = PEERS[name](given["X"], given["y"], given["Xnew"], int(given["classes"]))
    np.savez(file, p=p, seconds=time.process_time() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
