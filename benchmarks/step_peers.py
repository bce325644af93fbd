"""Steps of other packages' sparse variational bounds, with equal numbers of processes and learned inducing inputs.

Each function takes rows X (n, d), labels y (n,), numbers of classes, inducing inputs and rows of a batch, and numbers
of steps and threads. It returns clock times before the first step and after each step. Covariances are squared
exponentials with a magnitude and a length scale for each class, the optimiser is Adam, and numbers have 64 bits.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


def clock_of(threads: int) -> Callable[[], float]:
    """Clock for steps: processor time for one thread, and wall time for several threads."""
    return time.process_time if threads == 1 else time.perf_counter


def gpflow_svgp(
    inducing: list[Array], variance: float, lengthscales: Any, n: int, rate: float, threads: int, shared: bool = False
) -> tuple[Any, Any]:
    """GPflow's `SVGP` of a step with label noise, with inducing inputs (M, d) for each class, and a step of Adam.

    With `shared`, classes have one covariance and the first inducing inputs.

    A step takes tensors of rows and labels (B, 1), is compiled by TensorFlow, and returns the loss.
    """
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    import gpflow
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    kernels = [gpflow.kernels.SquaredExponential(variance, lengthscales) for _ in inducing]
    inputs = [gpflow.inducing_variables.InducingPoints(each) for each in inducing]
    if shared:
        of_all = gpflow.kernels.SharedIndependent(kernels[0], output_dim=len(inducing))
        variables = gpflow.inducing_variables.SharedIndependentInducingVariables(inputs[0])
    else:
        of_all = gpflow.kernels.SeparateIndependent(kernels)
        variables = gpflow.inducing_variables.SeparateIndependentInducingVariables(inputs)
    model = gpflow.models.SVGP(
        of_all,
        gpflow.likelihoods.MultiClass(len(inducing)),
        inducing_variable=variables,
        num_latent_gps=len(inducing),
        num_data=n,
    )
    optimiser = tf.keras.optimizers.legacy.Adam(rate)

    @tf.function
    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.training_loss((x, labels))
        optimiser.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return model, step


def gpflow_steps(X: Array, y: Array, c: int, m: int, b: int, count: int, threads: int) -> list[float]:
    """GPflow's `SVGP` of a step with label noise, compiled by TensorFlow."""
    _, step = gpflow_svgp([X[:m] + 0.01] * c, 1.0, np.sqrt(X.shape[1]), len(X), 1e-3, threads)
    import tensorflow as tf

    rng = np.random.default_rng(1)
    clock = clock_of(threads)
    times = [clock()]
    for _ in range(count):
        rows = rng.choice(len(X), b, replace=False)
        step(tf.constant(X[rows]), tf.constant(y[rows, None].astype(np.float64))).numpy()
        times.append(clock())
    return times


def gpflow_shared_steps(X: Array, y: Array, c: int, m: int, b: int, count: int, threads: int) -> list[float]:
    """As `gpflow_steps`, with one covariance and one set of inducing inputs for all classes, by `clock_of`."""
    _, step = gpflow_svgp([X[:m] + 0.01] * c, 1.0, np.sqrt(X.shape[1]), len(X), 1e-3, threads, shared=True)
    import tensorflow as tf

    rng = np.random.default_rng(1)
    clock = clock_of(threads)
    times = [clock()]
    for _ in range(count):
        rows = rng.choice(len(X), b, replace=False)
        step(tf.constant(X[rows]), tf.constant(y[rows, None].astype(np.float64))).numpy()
        times.append(clock())
    return times


def gpytorch_steps(X: Array, y: Array, c: int, m: int, b: int, count: int, threads: int) -> list[float]:
    """GPyTorch's `ApproximateGP` of a softmax, whose expectation is an average over ten draws."""
    return _gpytorch(X, y, c, m, b, count, threads, own=True, bits=64, device="cpu")


def gpytorch_shared_steps(
    X: Array, y: Array, c: int, m: int, b: int, count: int, threads: int, bits: int, device: str
) -> list[float]:
    """As `gpytorch_steps`, with one covariance and one set of inducing inputs. All rows are on the device."""
    return _gpytorch(X, y, c, m, b, count, threads, own=False, bits=bits, device=device)


def _gpytorch(
    X: Array, y: Array, c: int, m: int, b: int, count: int, threads: int, *, own: bool, bits: int, device: str
) -> list[float]:
    import gpytorch
    import torch

    torch.set_default_dtype({32: torch.float32, 64: torch.float64}[bits])
    torch.set_default_device(device)
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    of_classes = torch.Size([c])
    batch = of_classes if own else torch.Size([])

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, inducing: Any) -> None:
            values = gpytorch.variational.CholeskyVariationalDistribution(m, batch_shape=of_classes)
            strategy = gpytorch.variational.VariationalStrategy(self, inducing, values)
            super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=c))
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(batch_shape=batch), batch_shape=batch
            )
            self.covar_module.base_kernel.lengthscale = np.sqrt(X.shape[1])

        def forward(self, inputs: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))

    rows, labels = torch.tensor(X, dtype=torch.get_default_dtype()), torch.tensor(y)
    model = Model((rows[:m] + 0.01).repeat(c, 1, 1) if own else rows[:m] + 0.01)
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=c, mixing_weights=False)
    model.train()
    likelihood.train()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(1)
    clock = clock_of(threads) if device == "cpu" else time.perf_counter
    times = [clock()]
    for _ in range(count):
        chosen = torch.tensor(rng.choice(len(X), b, replace=False))
        optimiser.zero_grad()
        loss = -bound(model(rows[chosen]), labels[chosen])
        loss.backward()
        optimiser.step()
        loss.item()  # waits for the end of the step
        times.append(clock())
    return times


PEERS = {"GPflow": gpflow_steps, "GPyTorch": gpytorch_steps}
"""Functions of other packages, by name."""
SHARED_PEERS: dict[str, Callable[..., list[float]]] = {"GPflow": gpflow_shared_steps, "GPyTorch": gpytorch_shared_steps}
"""Functions of other packages with one covariance for all classes, by name."""
