"""hvd.shared with NumPy arrays: one copy for the host, which no rank can write."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perseus_like.numpy as hvd

from ..shared_memory import MIB, in_total, shared_memory_bytes


def test_one_rank_loads_and_all_have_equal_objects(rank: int) -> None:
    calls: list[int] = []

    def make() -> dict[str, Any]:
        calls.append(rank)
        return {
            "table": np.arange(12, dtype=np.float64).reshape(3, 4),
            "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
            "every second": np.arange(10)[::2],
            "none": np.empty((0, 3), np.float32),
            "scalar": np.float32(2.5),
            "words": np.array(["a", None], object),
            "nested": [np.array([True, False]), ("text", np.array(7))],
        }

    found = hvd.shared(make, "collection")
    assert calls == ([0] if hvd.local_rank() == 0 else [])
    assert found["table"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert found["columns"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["columns"].flags.f_contiguous
    assert found["every second"].tolist() == [0, 2, 4, 6, 8]
    assert found["none"].shape == (0, 3)
    assert found["scalar"] == 2.5
    assert found["words"].tolist() == ["a", None]
    assert found["nested"][0].tolist() == [True, False]
    assert found["nested"][1][0] == "text"
    assert found["nested"][1][1] == 7


def test_arrays_cannot_be_written() -> None:
    table = hvd.shared(lambda: np.zeros(1000), "table")
    with pytest.raises(ValueError, match="read-only"):
        table[3] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        table.flags.writeable = True
    assert table.ctypes.data % 64 == 0


def test_views_of_one_array_and_a_result_of_a_collective() -> None:
    table = hvd.shared(lambda: np.arange(100_000, dtype=np.float32), "table")
    total = hvd.allreduce(table, op=hvd.Sum)
    assert total[-1] == 99_999 * hvd.size()


def test_the_host_has_one_copy_and_it_is_freed_with_the_last_user() -> None:
    nbytes = 64 * MIB
    before = in_total(shared_memory_bytes())
    data = hvd.shared(lambda: np.full(nbytes, 7, np.uint8), "data")
    assert int(data[:: 1 << 12].sum()) == 7 * (nbytes >> 12)
    hvd.barrier()
    with_data = in_total(shared_memory_bytes())
    assert nbytes <= with_data - before + MIB
    assert with_data - before <= 1.05 * nbytes
    part = data[:10]
    del data
    gc.collect()
    assert part[0] == 7
    assert in_total(shared_memory_bytes()) > before + MIB // 2
    del part
    gc.collect()
    assert in_total(shared_memory_bytes()) <= before + MIB


def test_an_array_in_a_file_is_copied_into_the_memory(tmp_path_of_rank_0: Path) -> None:
    path = tmp_path_of_rank_0 / "tokens.npy"

    def make() -> np.ndarray[Any, Any]:
        np.save(path, np.arange(5000))
        mapped: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
        path.unlink()
        return mapped

    tokens = hvd.shared(make, "tokens")
    assert type(tokens) is np.ndarray
    assert tokens[-1] == 4999


@pytest.fixture
def tmp_path_of_rank_0() -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_failure_on_the_rank_that_loads_reaches_all_ranks() -> None:
    def make() -> None:
        raise FileNotFoundError("no corpus.bin")

    expected = FileNotFoundError if hvd.rank() == 0 else RuntimeError
    with pytest.raises(expected, match=r"no corpus\.bin") as caught:
        hvd.shared(make, "corpus")
    if hvd.rank() != 0:
        assert str(caught.value).startswith("hvd.shared('corpus'): rank 0, which loads for its host, failed: FileNot")


def test_an_object_that_cannot_be_pickled_is_refused_on_all_ranks() -> None:
    with pytest.raises(Exception, match="pickle"):
        hvd.shared(lambda: lambda: 1, "function")
    assert hvd.shared(lambda: 3, "number") == 3


def test_an_object_that_contains_itself() -> None:
    def make() -> dict[str, Any]:
        made: dict[str, Any] = {"table": np.arange(3), "list": []}
        made["list"].append(made["list"])
        made["itself"] = made
        return made

    found = hvd.shared(make, "cycle")
    assert found["itself"] is found
    assert found["list"][0] is found["list"]
    assert found["itself"]["table"].tolist() == [0, 1, 2]
