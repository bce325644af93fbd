"""The lock during the compilation of a kernel."""

from types import SimpleNamespace

import pytest

from tests.compile_once import compiled_alone

fcntl = pytest.importorskip("fcntl")


def kernel_at(index):
    return SimpleNamespace(_cache=SimpleNamespace(_cache_file=SimpleNamespace(_index_path=str(index))))


def is_free(lock):
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_failed_compilation_releases_its_lock(tmp_path):
    def fail(kernel, signature):
        assert not is_free(tmp_path / "kernel.lock")
        raise TypeError(signature)

    with pytest.raises(TypeError, match="no such type"):
        compiled_alone(fail, kernel_at(tmp_path / "kernel.nbi"), "no such type")
    assert is_free(tmp_path / "kernel.lock")


def test_kernel_and_inner_kernels_are_compiled_by_one_process(tmp_path):
    """A lock on another handle of the file is refused, as in another process."""
    outer, inner = kernel_at(tmp_path / "outer.nbi"), kernel_at(tmp_path / "inner.nbi")
    locks = [tmp_path / "outer.lock", tmp_path / "inner.lock"]
    seen = []

    def compile_inner(dispatcher, signature):
        seen.append([is_free(lock) for lock in locks])
        return signature

    def compile_outer(dispatcher, signature):
        again = compiled_alone(lambda *_: "again", outer, signature)  # a recursive call does not wait
        return again, compiled_alone(compile_inner, inner, signature)

    assert compiled_alone(compile_outer, outer, 3) == ("again", 3)
    assert seen == [[False, False]]
    assert [is_free(lock) for lock in locks] == [True, True]


def test_function_without_cache_does_not_acquire_the_lock(tmp_path):
    assert compiled_alone(lambda kernel, signature: signature, SimpleNamespace(_cache=None), 2) == 2
