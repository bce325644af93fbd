"""What a file says of the rows that were fitted: labels of the model's own, or where others were."""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_gpep.fits.saving import observed_data
from pymc_gpep.rows.contract import Rows
from pymc_gpep.rows.fingerprint import FormerRows
from pymc_gpep.structure import GPClassifier

__all__ = ["former_rows", "rows_of_fit"]


def rows_of_fit(classifier: GPClassifier, rows: Rows | None, labels: NDArray[np.int64]) -> xr.Dataset:
    """For a file: what was observed, or of `rows` that took the place of the model's what remains of them."""
    return observed_data(classifier, labels) if rows is None else xr.Dataset(attrs=FormerRows.of(rows)._asdict())


def former_rows(observed: xr.Dataset) -> FormerRows | None:
    """What a file says of rows that were not the model's; None where they were."""
    if "checksum" not in observed.attrs:
        return None
    n_rows, n_inputs, checksum, name = (observed.attrs[field] for field in FormerRows._fields)
    return FormerRows(int(n_rows), int(n_inputs), str(checksum), str(name))
