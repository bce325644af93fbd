"""Rows of every storage kind return the stored values. Errors name the place of an invalid value."""

import pickle

import dask.array
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from numpy.testing import assert_array_equal

from pymc_gpep.rows.fingerprint import FormerRows, fingerprint
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import RowError, Rows, chunks
from pymc_gpep.rows.storage import MemoryMap, StoredRows, open_rows
from tests.reference.mutations import MUTATIONS

N, D = 53, 3
X = np.random.default_rng(1).normal(size=(N, D))
Y = np.arange(N) % 4


def in_memory(x, y, folder):
    return x, y


def npy_files(x, y, folder):
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y.astype(np.int8))
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")


def memory_maps(x, y, folder):
    """A memory map that starts in the middle of a file, in single precision."""
    mapped = np.memmap(folder / "x.raw", np.float64, "w+", offset=5000, shape=(N + 4, D))
    mapped[2:-2] = x
    mapped.flush()
    return mapped[2:-2], y


def maps_by_columns(x, y, folder):
    mapped = np.memmap(folder / "x.raw", np.float64, "w+", shape=(N, D), order="F")
    mapped[:] = x
    return mapped, y


def zarr_arrays(x, y, folder):
    root = zarr.open_group(folder / "rows.zarr", mode="w")
    inputs = root.create_array("x", shape=x.shape, chunks=(7, 2), dtype=x.dtype)
    labels = root.create_array("y", shape=y.shape, chunks=(10,), dtype=y.dtype)
    inputs[:], labels[:] = x, y
    return zarr.open_array(folder / "rows.zarr", path="x", mode="r"), labels


def hdf5(x, y, folder):
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(6, D))
        file.create_dataset("y", data=y)
    opened = h5py.File(folder / "rows.h5", "r")
    return opened["x"], opened["y"]


def dask_arrays(x, y, folder):
    return dask.array.from_array(x, chunks=((20, 13, 20), D)), dask.array.from_array(y, chunks=9)


def npy_paths(x, y, folder):
    return tuple(array.filename for array in npy_files(x, y, folder))


def parquet_file(x, y, folder):
    table = pa.table({"label": y} | {f"x{j}": column for j, column in enumerate(x.T)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=11)
    return folder / "rows.parquet", "label"


def parquet_folder(x, y, folder):
    (folder / "parts").mkdir()
    for part in range(3):
        rows = slice(20 * part, 20 * part + 20)
        table = pa.table({f"x{j}": column for j, column in enumerate(x[rows].T)} | {"label": y[rows]})
        pq.write_table(table, folder / "parts" / f"{part}.parquet", row_group_size=8)
    return str(folder / "parts"), "label"


KINDS = [
    in_memory, npy_files, npy_paths, memory_maps, maps_by_columns, zarr_arrays, hdf5, dask_arrays, parquet_file,
    parquet_folder,
]  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_kind
def test_rows_read_from_storage_equal_the_stored_arrays(kind, tmp_path):
    rows = open_rows(kind(X, Y, tmp_path))
    assert isinstance(rows, Rows)
    assert isinstance(rows, InMemory) == (kind is in_memory)
    assert (rows.n_rows, rows.n_inputs) == (N, D)
    for start, stop in [(0, N), (0, 5), (5, 19), (19, 20), (40, N), (12, 12)]:
        inputs, labels = rows.inputs(slice(start, stop)), rows.labels(slice(start, stop))
        assert (inputs.dtype, labels.dtype) == (np.float64, np.int64)
        assert_array_equal(inputs, X[start:stop])
        assert_array_equal(labels, Y[start:stop])
    assert_array_equal(np.concatenate([rows.inputs(chunk) for chunk in chunks(rows)]), X)
    assert fingerprint(rows) == fingerprint(InMemory(X, Y))


@every_kind
def test_rows_can_be_sent_to_another_process(kind, tmp_path):
    rows = open_rows(kind(X, Y, tmp_path))
    sent = pickle.dumps(rows)
    assert_array_equal(pickle.loads(sent).inputs(slice(3, 30)), X[3:30])
    assert_array_equal(pickle.loads(sent).labels(slice(3, 30)), Y[3:30])


@every_kind
def test_error_names_the_place_of_a_value_that_is_not_finite(kind, tmp_path):
    bad = X.copy()
    bad[37, 1] = np.nan
    with pytest.raises(ValueError, match="row 37") as raised:
        open_rows(kind(bad, Y, tmp_path)).inputs(slice(30, 50))
    if isinstance(raised.value, RowError):
        assert raised.value.row == 37
        name = "'x1'" if kind in (parquet_file, parquet_folder) else "1"
        assert f"nan in column {name}," in str(raised.value)
    if kind not in (in_memory, maps_by_columns, dask_arrays):
        assert str(tmp_path) in str(raised.value)


def test_error_names_the_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data have the path '.*none\.npy', which does not exist"):
        open_rows((str(tmp_path / "none.npy"), Y))
    np.save(tmp_path / "x.npy", X)
    assert_array_equal(open_rows((tmp_path / "x.npy", Y)).labels(slice(0, N)), Y)


def test_error_about_shapes_names_the_files(tmp_path):
    inputs, labels = npy_paths(X, Y[:-1], tmp_path)
    with pytest.raises(ValueError, match=r"shapes \(53, 3\) and \(52,\) in .*x\.npy and .*y\.npy\."):
        open_rows((inputs, labels))


def test_error_names_the_file_of_a_folder_that_lacks_a_column(tmp_path):
    data = parquet_folder(X, Y, tmp_path)
    pq.write_table(pa.table({f"x{j}": X[20:40, j] for j in range(D)}), tmp_path / "parts" / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet must have one column of each name 'label'\."):
        open_rows(data).labels(slice(0, N))


def test_error_names_the_invalid_label(tmp_path):
    bad = Y.astype(float)
    bad[41] = np.nan
    rows = open_rows(parquet_file(X, bad, tmp_path))
    with pytest.raises(RowError, match=r"rows\.parquet: row 41 has the label nan, which is not a whole number"):
        rows.labels(slice(38, 45))
    halves = dask.array.from_array(np.array([0.5, 1.0]))
    with pytest.raises(RowError, match=r"the dask array '.*': row 0 has the label 0\.5"):
        open_rows((dask.array.from_array(X[:2]), halves)).labels(slice(0, 2))
    with pytest.raises(TypeError, match=r"^labels must be whole numbers .* of type <U1"):
        open_rows((dask.array.from_array(X[:2]), np.array(["a", "b"]))).labels(slice(0, 2))


def test_memory_maps_are_read_from_their_file(tmp_path):
    inputs, _ = memory_maps(X, Y, tmp_path)
    found = MemoryMap.of(inputs)
    assert found is not None
    assert len(pickle.dumps(found)) < 500
    assert MemoryMap.of(inputs[:, :2]) is None
    assert MemoryMap.of(np.load(npy(tmp_path), mmap_mode="c")) is None
    with open(tmp_path / "x.raw", "r+b") as file:
        file.truncate(5500)
    with pytest.raises(ValueError, match="has fewer rows than when it was opened"):
        found.read(slice(0, N))


def npy(folder):
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def test_each_chunk_is_read_once(tmp_path):
    reads = []

    class Counted:
        shape, dtype, chunks = (N, D), X.dtype, (10, D)

        def __getitem__(self, rows):
            reads.append((rows.start, rows.stop))
            return X[rows]

    rows = open_rows((Counted(), Y))
    for start in range(0, N, 4):
        rows.inputs(slice(start, min(start + 4, N)))
    assert reads == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 53)]


@pytest.mark.parametrize(
    ("data", "options", "kind", "message"),
    [
        (3, {}, TypeError, "data must be a pair .* but is a int"),
        ((X, Y, Y), {}, TypeError, "data must be a pair .* but is a tuple"),
        ((X, Y), {"label": "y"}, TypeError, "label and columns name columns of a Parquet file"),
        ((X, Y[:-1]), {}, ValueError, r"shapes \(53, 3\) and \(52,\)"),
        ("nowhere.parquet", {"label": "y"}, FileNotFoundError, "nowhere.parquet has no Parquet file"),
        ((dask.array.from_array(X)[:0], Y[:0]), {}, ValueError, r"n > 0, .* \(0, 3\)"),
        ((dask.array.from_array(X)[dask.array.from_array(X[:, 0]) > 0], Y), {}, ValueError, "compute_chunk_sizes"),
    ],
)
def test_invalid_rows_raise_errors(data, options, kind, message):
    with pytest.raises(kind, match=message):
        open_rows(data, **options)


def test_columns_of_parquet_are_selected_by_name(tmp_path):
    path, _ = parquet_file(X, Y, tmp_path)
    rows = open_rows(path, label="label", columns=["x2", "x0"])
    assert_array_equal(rows.inputs(slice(9, 14)), X[9:14][:, [2, 0]])
    with pytest.raises(ValueError, match="Name the column of labels"):
        open_rows(path)
    with pytest.raises(ValueError, match=r"has no column 'class'\. Its columns are"):
        open_rows((path, "class"))
    pq.write_table(pa.table({"x": list("ab"), "y": [0, 1]}), tmp_path / "words.parquet")
    with pytest.raises(TypeError, match=r"column 'x' must be of numbers, but is string.*columns="):
        open_rows((tmp_path / "words.parquet", "y")).inputs(slice(0, 2))
    with pytest.raises(TypeError, match=r"column 'x', the labels, must be of whole numbers .*pandas\.factorize"):
        open_rows((tmp_path / "words.parquet", "x")).labels(slice(0, 2))
    (tmp_path / "text.csv").write_text("x,y\n1,0\n")
    with pytest.raises(ValueError, match=r"text\.csv is not a Parquet file"):
        open_rows((tmp_path / "text.csv", "y"))


def refusal(data):
    """Return the message of the ValueError that reading all rows raises; empty if all are read."""
    try:
        rows = open_rows(data)
        for chunk in chunks(rows):
            _ = rows.inputs(chunk), rows.labels(chunk)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [npy_paths, parquet_file, zarr_arrays], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_mutated_files_are_read_or_refused_by_name(kind, count, tmp_path):
    """Files without checksums may be read with changed numbers. Libraries raise errors of many classes."""
    data = kind(X, Y, tmp_path)
    files = [each for each in tmp_path.rglob("*") if each.is_file() and each.name != "zarr.json"]
    rng, found = np.random.default_rng(count), []
    for i in range(count):
        path = files[int(rng.integers(len(files)))]
        whole = path.read_bytes()
        path.write_bytes(list(MUTATIONS.values())[i % 4](whole, int(rng.integers(len(whole))), rng))
        found.append(refusal(data))
        path.write_bytes(whole)
    assert [each for each in found if each and str(tmp_path) not in each] == []
    assert sum(map(bool, found)) > 0.2 * count


def test_open_rows_returns_rows_unchanged():
    rows = InMemory(X, Y)
    assert open_rows(rows) is rows
    assert isinstance(open_rows((X.astype(np.float32), Y)), InMemory)


def test_rows_saved_by_earlier_versions_keep_name_and_fingerprint(tmp_path):
    rows = open_rows(parquet_file(X, Y, tmp_path))
    assert isinstance(rows, StoredRows)
    former = FormerRows.of(rows)
    assert (former.n_rows, former.n_inputs) == (N, D)
    assert former.checksum == fingerprint(InMemory(X, Y))
    changed = Y.copy()
    changed[-1] += 1
    assert former.checksum != fingerprint(InMemory(X, changed))
    with pytest.raises(ValueError, match=r"53 rows of this fit came from data=.* read from .*rows\.parquet"):
        former.inputs(slice(0, 1))
