"""Figure 5, top: MNIST by batch fits."""

from typing import Any, ClassVar

from benchmarks.scalable_paper.batch_methods import METHODS
from benchmarks.scalable_paper.batches import Batched


class MNIST(Batched):
    title = "Figure 5, top: MNIST"
    source = "mnist"
    rivals = ("logistic",)
    rows = 60_000
    methods = tuple(METHODS)
    epochs = 60
    # Inducing inputs are learned in units of the standard deviation of a column, which for pixels is 0.01 to 0.5. With
    # Adam's default, 15 000 steps are not enough.
    rate = 1e-2
    falls = True
    quick_method = "exact"  # one covariance: graphs of ten covariances would take most of the time
    printed: ClassVar = {"sep": "0.0208, 0.0725", "vi": "0.0202, 0.0686"}
    note = "Pixels from 0 to 1, 60 000 training images and 10 000 held-out images, or fewer as in the table."

    def settings(self, name: str, rows: int) -> dict[str, Any]:
        # at the full rate, the first steps of hyperparameters would undo the progress of the first epoch
        return super().settings(name, rows) | {"rise": 2}


EXPERIMENT = MNIST()
