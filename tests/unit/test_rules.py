"""Tests of argument rules, names, handles and errors, without the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perseus_like import errors
from perseus_like.collectives import Average, Op, Sum, resolve_op
from perseus_like.collectives.arguments import checked_splits
from perseus_like.collectives.automatic_names import Names
from perseus_like.collectives.compression import Compressor, NoneCompressor, wire_dtype, wire_of
from perseus_like.collectives.handle import CollectiveHandle, HandleTable
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.tables import DType
from perseus_like.tensor import ArrayTensors


class CompletedRequest:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


def test_operations() -> None:
    assert resolve_op(None) is Average
    assert resolve_op(None, average=True) is Average
    assert resolve_op(None, average=False) is Sum
    assert resolve_op(4) is Op.Max
    assert [int(op) for op in Op] == list(range(6))
    with pytest.raises(ValueError, match="both"):
        resolve_op(1, average=False)
    with pytest.raises(ValueError, match="op is 9; use one of Average"):
        resolve_op(9)


def test_automatic_names_count_only_successful_submissions() -> None:
    names = Names()

    def refuse(name: str) -> None:
        raise ValueError(name)

    assert names.submit("allreduce", None, 0, str)[0] == "allreduce.noname.0"
    with pytest.raises(ValueError, match=r"noname\.1"):
        names.submit("allreduce", None, 0, refuse)
    assert names.submit("allreduce", None, 0, str)[0] == "allreduce.noname.1"
    assert names.submit("allreduce", None, 3, str)[0] == "allreduce.noname.0"
    assert names.submit("allgather", None, 0, str)[0] == "allgather.noname.0"
    assert names.submit("allreduce", "mine", 0, str)[0] == "allreduce.mine"
    names.reset()
    assert names.submit("allreduce", None, 0, str)[0] == "allreduce.noname.0"


def test_handles() -> None:
    table = HandleTable()
    first: int = table.add(CollectiveHandle("a", CompletedRequest(), "result"))
    second: int = table.add(CollectiveHandle("b", CompletedRequest(errors.PeerLostError("rank 3 is gone")), None))
    assert first != second
    assert table.poll(first)
    assert table.synchronize(first) == "result"
    assert table.synchronize(first) is None
    assert table.synchronize(12345) is None
    with pytest.raises(ValueError, match="12345"):
        table.poll(12345)
    with pytest.raises(errors.HorovodInternalError, match="rank 3"):
        table.synchronize(second)
    assert table.synchronize(second) is None


def test_a_handle_can_transform_its_result() -> None:
    pending = CollectiveHandle("a", CompletedRequest(), None, lambda _: 2).then(lambda n: n + 1).then(str)
    assert pending.result() == "3"
    assert pending.name == "a"
    assert CollectiveHandle("b", CompletedRequest(), 2).then(lambda n: n + 1).result() == 3


def test_splits() -> None:
    three = ProcessSet([4, 2, 7])
    three.process_set_id = 5
    assert three.ranks == [2, 4, 7]
    assert checked_splits(None, 6, three) is None
    assert checked_splits((1, 2, 0), 4, three) == [1, 2, 0]
    for splits, rows, text in [
        (None, 7, "do not divide among 3 ranks"),
        ([1, 1], 9, "2 splits"),
        ([1, -1, 1], 9, "negative"),
        ([2] * 3, 5, "6 rows"),
    ]:
        with pytest.raises(ValueError, match=text):
            checked_splits(splits, rows, three)
    assert three.rank_within(7) == 2
    with pytest.raises(ValueError, match="rank 3"):
        three.rank_within(3)


def test_process_sets_that_are_not_registered() -> None:
    unregistered = ProcessSet(range(2))
    assert unregistered.size() is None
    assert unregistered.rank() is None
    with pytest.raises(ValueError, match="add_process_set"):
        unregistered.require_id()
    assert global_process_set.process_set_id == 0


def test_wire_types() -> None:
    class Half(Compressor):
        wire = DType.float16

    class Derived(Half):
        """A compressor with its own `compress`, which the core does not know."""

    assert wire_of(Half) is DType.float16
    assert wire_of(Derived) is None
    assert wire_of(NoneCompressor) is None
    assert wire_dtype(DType.float16, DType.float32) == DType.float16
    assert wire_dtype(DType.float16, DType.int32) == -1
    assert wire_dtype(DType.float16, DType.bfloat16) == -1
    assert wire_dtype(None, DType.float64) == -1


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.bfloat16])
def test_the_core_gets_address_dtype_and_shape_of_an_array(dtype: DType) -> None:
    tensors = ArrayTensors()
    name: Any = np.bool_ if dtype is DType.boolean else dtype.name
    array = np.zeros((2, 3), name)
    assert tensors.view(array) == (array.ctypes.data, dtype, (2, 3), -1)
    assert tensors.contiguous(array) is array
    assert tensors.contiguous(array.T).flags.c_contiguous
    assert tensors.contiguous(np.float32(1).reshape(())).shape == ()
    assert tensors.number_of(name) == dtype


def test_errors_have_the_base_classes_that_programs_catch() -> None:
    internal = set(errors.CLASSES) - {"invalid_argument", "unavailable"}
    assert all(issubclass(errors.CLASSES[kind], errors.HorovodInternalError) for kind in internal)
    assert issubclass(errors.HorovodInternalError, RuntimeError)
    assert issubclass(errors.CLASSES["not_initialized"], ValueError)
    assert errors.CLASSES["invalid_argument"] is ValueError
    assert errors.HostsUpdatedInterrupt(True).skip_sync is True
    mismatch = errors.HorovodVersionMismatchError("torch", "1", "2")
    assert isinstance(mismatch, ImportError)
    assert mismatch.installed_version == "2"
