"""Columns of tables: encoding and refusals."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_gpep as gpep

FRAME = pd.DataFrame(
    {
        "age": [31.0, 45.0, 28.0, 60.0],
        "city": ["Rome", "Oslo", "Rome", "Bern"],
        "smokes": [True, False, False, True],
        "grade": pd.Categorical([3, 1, 3, 2]),
        "siblings": pd.array([0, 2, 1, 1], dtype="Int64"),
    }
)
NUMBERS = ["age", "smokes", "siblings"]


def with_value(column, row, value):
    """The frame with one value replaced."""
    changed = FRAME.astype({column: object}) if column == "city" else FRAME.copy()
    changed.loc[row, column] = value
    return changed


def test_numbers_are_standardised_and_categories_become_indicators():
    table = gpep.columns(FRAME)
    assert table.names == list(FRAME.columns)
    numbers = FRAME[NUMBERS].to_numpy(dtype=float)
    standardised = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    np.testing.assert_allclose(table.X[:, np.isin(table.places, [0, 2, 4])], standardised)
    # The columns are Bern, Oslo, Rome, unseen city; grades 1, 2 and 3, unseen grade.
    np.testing.assert_array_equal(table.X[:, table.places == 1].argmax(axis=1), [2, 1, 2, 0])
    np.testing.assert_array_equal(table.X[:, table.places == 3].argmax(axis=1), [2, 0, 2, 1])
    np.testing.assert_array_equal(table.X[:, table.places == 1].sum(axis=1), 1)


def test_new_rows_are_encoded_as_in_training():
    table = gpep.columns(FRAME)
    some = FRAME.iloc[[2, 0]].assign(more=1.0)[["more", *FRAME.columns[::-1]]]  # an extra column, and another order
    np.testing.assert_array_equal(table.encode(some), table.X[[2, 0]])
    np.testing.assert_array_equal(table.encode(FRAME.to_dict("list") | {"city": np.array(FRAME["city"])}), table.X)


def test_columns_of_arrays_are_named_by_position():
    array = np.arange(8.0).reshape(4, 2)
    table = gpep.columns(array)
    assert table.names == ["x0", "x1"]
    np.testing.assert_allclose(
        table.encode(array[1:] + 2.0), (array[1:] + 2.0 - array.mean(axis=0)) / array.std(axis=0)
    )


def test_constant_column_has_constant_inputs():
    table = gpep.columns(np.column_stack([np.full(5, 0.1), np.arange(5.0)]))
    np.testing.assert_array_equal(table.encode(np.array([[7.0, 2.0]])), [[0.0, 0.0]])


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("linear", [False, True])
def test_covariance_is_a_product_over_columns(ard, linear):
    table = gpep.columns(FRAME)
    with pm.Model(coords=table.coords) as model:
        k = table.covariance("rbf", ard=ard, linear=linear)(table.X)
    each = np.array([1.1, 0.6, 2.0, 0.9, 1.4])  # length scales in the order of columns
    given = {"eta": 1.7}
    if ard:
        given["ls"] = each
    else:
        each[[0, 2, 4]] = 1.3
        given |= {"ls": 1.3, "ls_category": each[[1, 3]]}
    if linear:
        given["slope"] = 0.8
    assert sorted(given) == sorted(rv.name for rv in model.free_RVs)
    assert model.named_vars_to_dims.get("ls") == (("column",) if ard else None)
    numbers = FRAME[NUMBERS].to_numpy(dtype=float)
    z = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    distance = (((z[:, None] - z) / each[[0, 2, 4]]) ** 2).sum(axis=2)
    differ = [np.not_equal.outer(*[FRAME[name].to_numpy(dtype=str)] * 2) for name in ("city", "grade")]
    expected = 1.7**2 * np.exp(-distance / 2)
    for apart, ls in zip(differ, each[[1, 3]], strict=True):
        expected *= np.where(apart, np.exp(-1 / ls**2), 1.0)
    if linear:
        expected += 0.8**2 * (z @ z.T + sum(~apart for apart in differ))
    values = {model[name]: np.asarray(value) for name, value in given.items()}
    np.testing.assert_allclose(k.eval(values), expected, rtol=1e-9)


def test_length_scales_are_reported_by_column():
    table = gpep.columns(FRAME.assign(constant=1.0))
    found = table.length_scales({"ls": 1.3, "ls_category": np.array([0.6, 0.9]), "eta": 1.0})
    np.testing.assert_array_equal(found, [1.3, 0.6, 1.3, 0.9, 1.3, np.inf])
    each = np.arange(1.0, 7.0)
    np.testing.assert_array_equal(table.length_scales({"ls": each})[:-1], each[:-1])
    with pytest.raises(ValueError, match=r"lack the length scales of Columns\.covariance"):
        table.length_scales({"scale": 1.0})


@pytest.mark.parametrize("frame", [FRAME[["city", "grade"]], FRAME[["city"]]])
def test_covariance_of_categories_decays_with_the_number_of_differences(frame):
    table = gpep.columns(frame)
    with pm.Model() as model:
        k = table.covariance("rbf", linear=False)(table.X)
    names = {rv.name: np.full(rv.type.shape, 0.5) for rv in model.free_RVs}
    matrix = k.eval({model[name]: value for name, value in names.items()})
    same = sum((FRAME[name].astype(str).to_numpy()[:, None] != FRAME[name].astype(str).to_numpy()) for name in frame)
    np.testing.assert_allclose(matrix, 0.25 * np.exp(-same / 0.25))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("age", np.nan, "'age' has a missing value, NaN, in row 2"),
        ("siblings", pd.NA, "'siblings' has a missing value, NaN, in row 2"),
        ("city", None, "'city' has a missing value, NaN, in row 2"),
        ("age", np.inf, "'age' has an infinite value, inf, in row 2"),
    ],
)
def test_error_for_missing_and_infinite_values_names_column_and_row(column, value, message):
    changed = with_value(column, 2, value)
    with pytest.raises(ValueError, match=message):
        gpep.columns(changed)
    with pytest.raises(ValueError, match=message):
        gpep.columns(FRAME).encode(changed)


def test_missing_values_are_imputed_on_request():
    table = gpep.columns(with_value("age", 2, np.nan), missing="impute")
    others = FRAME["age"].to_numpy()[[0, 1, 3]]
    expected = (FRAME["age"] - others.mean()) / others.std()
    expected[2] = 0.0
    np.testing.assert_allclose(table.X[:, 0], expected)
    table = gpep.columns(with_value("city", 2, None), missing="impute")
    np.testing.assert_array_equal(table.X[:, table.places == 1].argmax(axis=1), [2, 1, 3, 0])


def test_unseen_categories_are_refused_by_default_and_share_a_new_level_on_request():
    new = with_value("city", 1, "Lima")
    with pytest.raises(ValueError, match="'city' has a category that training rows did not have: 'Lima'"):
        gpep.columns(FRAME).encode(new)
    table = gpep.columns(FRAME, unseen="new")
    np.testing.assert_array_equal(table.encode(new)[:, table.places == 1].argmax(axis=1), [2, 3, 2, 0])


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.assign(when=pd.Timestamp("2020-01-01")), "'when' has times"),
        (FRAME.assign(odd=[1, "a", 2, 3]), "'odd' has numbers and strings, such as 'a' in row 1"),
        (FRAME.assign(z=1j), "'z' has complex numbers"),
    ],
)
def test_error_names_columns_of_unsupported_types(frame, message):
    with pytest.raises(TypeError, match=message):
        gpep.columns(frame)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_categories_may_be_missing_in_all_new_rows(missing):
    cities = FRAME.assign(city=[None, *FRAME["city"][1:]])
    table = gpep.columns(cities, missing="impute")
    alone = table.encode(cities.iloc[[1]].assign(city=[missing]))
    both = table.encode(cities.iloc[[1, 2]].assign(city=[missing, cities["city"].iloc[2]]))
    np.testing.assert_array_equal(alone[0], both[0])


def test_error_for_columns_of_changed_type_names_the_column():
    table = gpep.columns(FRAME)
    with pytest.raises(TypeError, match="'age' has categories, and had numbers"):
        table.encode(FRAME.assign(age="old"))
    with pytest.raises(TypeError, match="'city' has numbers, and had categories"):
        table.encode(FRAME.assign(city=1.0))
    with pytest.raises(ValueError, match="lacks the column 'city'"):
        table.encode(FRAME.drop(columns="city"))


@pytest.mark.parametrize("unit", [1e-300, 1e-12, 1e12, 1e300])
def test_inputs_do_not_depend_on_units(unit):
    numbers = np.array([[3.0], [1.0], [2.0], [7.0]])
    np.testing.assert_allclose(gpep.columns(unit * numbers).X, gpep.columns(numbers).X, rtol=1e-13)


def test_invalid_tables_raise_value_error():
    with pytest.raises(ValueError, match=r"must be \(rows, columns\)"):
        gpep.columns(np.zeros(3))
    with pytest.raises(ValueError, match="no rows or no columns"):
        gpep.columns(FRAME.iloc[:0])
    with pytest.raises(ValueError, match="no rows or no columns"):
        gpep.columns(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="two columns of the name 'age'"):
        gpep.columns(pd.concat([FRAME, FRAME[["age"]]], axis=1))
    with pytest.raises(ValueError, match=r"missing is .*, but must be 'error' or 'impute'"):
        gpep.columns(FRAME, missing="drop")
    with pytest.raises(ValueError, match=r"kernel is .*, but must be one of 'rbf'"):
        gpep.columns(FRAME).covariance("cosine")


def test_polars_frames_are_accepted():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {
            "age": [31.0, 45.0, 28.0, 60.0],
            "city": ["Rome", "Oslo", "Rome", "Bern"],
            "smokes": [True, False, False, True],
            "grade": polars.Series(["c", "a", "c", "b"], dtype=polars.Categorical),
            "siblings": [0, 2, 1, 1],
        }
    )
    np.testing.assert_allclose(gpep.columns(frame).X, gpep.columns(FRAME).X)
    with pytest.raises(ValueError, match="'siblings' has a missing value"):
        gpep.columns(frame.with_columns(siblings=polars.Series([0, None, 1, 1])))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([(1, 2), (3, 4)], r"Column 'a' has a tuple in row 0, \(1, 2\)"),
        ([1.0, (3, 4)], r"Column 'a' has a tuple in row 1, \(3, 4\)"),
        ([1.0, "b"], "Column 'a' has numbers and strings, such as 'b' in row 1"),
        ([pd.Timestamp("2020-01-01"), pd.NaT], r"Column 'a' has times \(Timestamp\)"),
        ([np.datetime64("2020-01-01"), None], r"Column 'a' has times \(datetime64\)"),
    ],
)
def test_error_names_the_row_of_an_unsupported_object(values, message):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    with pytest.raises(TypeError, match=message):
        gpep.columns({"a": pd.Series(column, dtype=object)})


def test_nat_among_strings_is_a_missing_value():
    found = gpep.columns({"a": pd.Series(["x", pd.NaT, "y"], dtype=object)}, missing="impute")
    assert found.columns[0].levels == ("x", "y", None)


def test_column_of_row_names_causes_a_warning():
    names = [f"row {i}" for i in range(30)]
    with pytest.warns(UserWarning, match=r"Column 'id' has 29 categories in 30 rows.*drop\(columns='id'\)"):
        gpep.columns({"id": [*names[:29], names[0]]})
    gpep.columns({"id": [name[:5] for name in names], "few": [0.0] * 30})
