"""Private names of PyMC, PyTensor and numba. The name of a failing test shows the name that has moved."""

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.variational.opvi import Group

from pymc_gpep.graphs import private_names


def test_dims_of_models_are_dictionaries_that_can_be_shared():
    model = pm.Model(coords={"flower": ["a", "b"]})
    other = pm.Model()
    private_names.share_dims(other, model)
    model.add_coord("class", ["x", "y", "z"])
    assert other.coords == {"flower": ("a", "b"), "class": ("x", "y", "z")}
    assert [int(length.eval()) for length in other.dim_lengths.values()] == [2, 3]


def test_log_densities_are_dispatched_by_operation_type():
    op = pm.Normal.dist().owner.op
    assert private_names.log_density.dispatch(type(op)) is not private_names.log_density.dispatch(object)
    assert callable(private_names.log_density.register)


def test_support_points_are_dispatched_by_operation_type():
    op = pm.Normal.dist().owner.op
    assert private_names.support_point.dispatch(type(op)) is not private_names.support_point.dispatch(object)
    assert callable(private_names.support_point.register)


def test_elementwise_operations_do_not_broadcast_axes_of_unknown_length():
    x, y = pt.vector(), pt.vector()
    node = (x + y).owner
    private_names.check_broadcast(node, [np.ones(2), np.ones(2)])
    with pytest.raises(ValueError, match="broadcast"):
        private_names.check_broadcast(node, [np.ones(1), np.ones(2)])


def test_numba_cache_file_can_be_replaced():
    dispatcher = numba.njit(cache=True)(added)
    cache = dispatcher._cache
    assert isinstance(cache._impl.filename_base, str)
    assert isinstance(cache._cache_path, str)
    assert hasattr(cache, "_cache_file")


def test_pymc_groups_have_the_methods_that_the_package_calls():
    assert {"_check_user_params", "_prepare_start", "_finalize_init", "__init_group__"} <= set(dir(Group))


def added(a, b):
    return a + b
