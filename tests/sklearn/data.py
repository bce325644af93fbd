"""A small data frame with labels, numbers and counts."""

import numpy as np
import pandas as pd

__all__ = ["frame", "ratio"]

ROWS = 40


def frame(rows: int = ROWS) -> tuple[pd.DataFrame, pd.Series, np.ndarray]:
    """Frame with numeric, boolean and categorical columns, labels of two classes, and a latent function."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame(
        {
            "age": rng.uniform(20, 80, rows),
            "smokes": rng.integers(2, size=rows).astype(bool),
            "city": rng.choice(["Oslo", "Rome", "Bern"], rows),
        }
    )
    f = np.sin(table["age"] / 10) + table["smokes"] - 1.0 * (table["city"] == "Rome")
    labels = pd.Series(np.where(f + 0.3 * rng.standard_normal(rows) > 0.3, "well", "ill"))
    return table, labels, np.asarray(f, dtype=float)


def ratio(columns):
    """Covariance function defined by a user, at module level so that it can be pickled."""
    import pymc as pm

    return pm.HalfNormal("size", 2.0) ** 2 * pm.gp.cov.RatQuad(columns.X.shape[1], alpha=1.0, ls=2.0)
