"""The unconstrained values of a fit, as PyMC's approximations hold theirs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import floatX
from pymc.variational.opvi import Group

__all__ = ["GPGroup"]

Array = NDArray[np.float64]


@Group.register
class GPGroup(Group):
    """Hyperparameters at weighted points, latent values Gaussian given them, in the unconstrained space of the model.

    Mean and standard deviation are kept as parameters. The covariance, which can be large, is computed when asked for
    by the function that `update` was given.
    """

    __param_spec__: ClassVar[dict[str, tuple[str, ...]]] = {"gp_mean": ("d",), "gp_std": ("d",)}
    short_name = "gaussian_process"
    alias_names = frozenset(["gp"])
    has_logq = False  # a point mass has no density

    def __init_group__(self, group: Sequence[Any]) -> None:
        super().__init_group__(group)
        if not self._check_user_params():
            start = floatX(self._prepare_start(None))
            self.shared_params = {
                "gp_mean": pytensor.shared(start, "gp_mean"),
                "gp_std": pytensor.shared(np.zeros_like(start), "gp_std"),
            }
        self._covariance = lambda: np.zeros((self.ddim, self.ddim))
        self._finalize_init()

    def update(self, mean: Mapping[str, Array], std: Mapping[str, Array], covariance: Any) -> None:
        """Set the moments, by name of value variable, and the function that computes the covariance."""
        for key, values in (("gp_mean", mean), ("gp_std", std)):
            flat = np.concatenate([np.ravel(values[name]) for name in self.ordering])
            self.params_dict[key].set_value(floatX(flat))
        self._covariance = covariance

    @property
    def mean(self) -> pt.TensorVariable:
        """Mean, (d,)."""
        return self.params_dict["gp_mean"]

    @property
    def std(self) -> pt.TensorVariable:
        """Standard deviation, (d,); zero for hyperparameters at a point."""
        return self.params_dict["gp_std"]

    @property
    def cov(self) -> pt.TensorVariable:
        """Covariance, (d, d), dense."""
        return pt.as_tensor_variable(self._covariance())

    @property
    def symbolic_random(self) -> pt.TensorVariable:
        """Draws, of the Gaussian with these moments, as a linear function of the standard normal `symbolic_initial`."""
        values, vectors = np.linalg.eigh(self._covariance())
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return self.mean + self.symbolic_initial @ root.T
