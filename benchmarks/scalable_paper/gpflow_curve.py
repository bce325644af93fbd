"""GPflow's `SVGP` on MNIST or the flights, for comparison with the curves of `mnist` and `airline`.

PYTHON -m benchmarks.scalable_paper.gpflow_curve mnist --data FOLDER --steps 3000

needs a Python with GPflow and SciPy, and not this package. Batches, inducing inputs, initial values, optimiser and
scores are the same. The likelihood is GPflow's for classes, a step with label noise of 0.001.
"""

import argparse
import time

import numpy as np
from scipy.spatial.distance import pdist

from benchmarks.scalable_paper.large_data import SOURCES
from benchmarks.scalable_paper.scoring import scores
from benchmarks.step_peers import gpflow_svgp

BATCH, INDUCING, PREDICTED = 200, 200, 1000


def curve(source: str, data: str, steps: int, rate: float, threads: int) -> None:
    """Print processor seconds, wall seconds, steps, negative log likelihood and error, after some steps."""
    split = SOURCES[source](data)
    c, d, n = split.classes, split.X.shape[1], len(split.y)
    rng = np.random.default_rng(0)
    first = [split.X[rng.choice(n, INDUCING, replace=False)] for _ in range(c)]
    distance = float(np.sqrt(np.median(pdist(split.X[:1000], "sqeuclidean"))))
    began, clock = time.process_time(), time.perf_counter()
    model, step = gpflow_svgp(first, 10.0, np.full(d, distance), n, rate, threads)
    import tensorflow as tf

    predict = tf.function(lambda x: model.predict_y(x)[0])
    scored = {round(at) for at in np.geomspace(10, steps, 25)}
    own = own_clock = 0.0
    order = np.empty(0, dtype=int)
    for i in range(1, steps + 1):
        if order.size < BATCH:
            order = rng.permutation(n)
        rows, order = order[:BATCH], order[BATCH:]
        step(tf.constant(split.X[rows]), tf.constant(split.y[rows, None].astype(np.float64)))
        if i in scored:
            entered, entered_clock = time.process_time(), time.perf_counter()
            parts = range(0, split.ynew.size, PREDICTED)
            p = np.concatenate([predict(tf.constant(split.Xnew[at : at + PREDICTED])).numpy() for at in parts])
            score, error = scores(p, split.ynew)
            print(f"{entered - began - own:9.1f} {entered_clock - clock - own_clock:9.1f} {i:6d} {score:.4f} "
                  f"{error:.4f}", flush=True)  # fmt: skip
            own += time.process_time() - entered
            own_clock += time.perf_counter() - entered_clock


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GPflow's SVGP batch by batch: held-out scores against time.")
    parser.add_argument("source", choices=SOURCES)
    parser.add_argument("--data", required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=1e-3, help="rate of Adam")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    curve(given.source, given.data, given.steps, given.rate, given.threads)
