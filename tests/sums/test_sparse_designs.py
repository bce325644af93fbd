"""Effects multiplied by a sparse design matrix for each class."""

import numpy as np
import pymc as pm
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
from scipy.sparse import csr_matrix


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1.0, 2.0, 3.0)], ids=["equal", "different"])
def test_sparse_matrices_of_classes_are_fitted_like_dense_matrices(scales):
    rng = np.random.default_rng(0)
    labels, design = np.arange(18) % 3, np.eye(4)[rng.integers(0, 4, 18)]

    def evidence(sparse):
        with pm.Model():
            functions = []
            for k, scale in enumerate(scales):
                b = pm.Normal(f"b_{k}", 0, 1, shape=4)
                if sparse:
                    matrix = ps.as_sparse_variable(csr_matrix(scale * design))
                    functions.append(ps.structured_dot(matrix, b[:, None])[:, 0])
                else:
                    functions.append(pt.dot(scale * design, b))
            pm.Categorical("y", logit_p=pt.stack(functions, axis=1), observed=labels)
            return pm.fit(method="laplace", progressbar=False).log_evidence

    assert evidence(True) == pytest.approx(evidence(False), rel=1e-8)
