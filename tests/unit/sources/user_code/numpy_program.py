"""A program of a user. test_user_types.py checks its types with mypy and pyright in strict mode. It is not run."""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import perseus_like.numpy as hvd

hvd.init()
weights = np.ones((2, 3), np.float32)

# The dtype is kept.
assert_type(hvd.allreduce(weights, op=hvd.Sum, name="weights").dtype, np.dtype[np.float32])
assert_type(hvd.broadcast_(weights, root_rank=0).dtype, np.dtype[np.float32])
assert_type(hvd.grouped_allreduce([weights, weights])[0].dtype, np.dtype[np.float32])
assert_type(hvd.empty(3).dtype, np.dtype[np.float32])
assert_type(hvd.empty((2, 3), np.float64).dtype, np.dtype[np.float64])
total: NDArray[np.float64] = hvd.allreduce(2.5)

# An alltoall with splits returns a pair.
rows: NDArray[np.float32] = hvd.alltoall(weights)
received, counts = hvd.alltoall(weights, splits=[1, 1])
assert_type(received.dtype, np.dtype[np.float32])
assert_type(counts.dtype, np.dtype[np.int32])

# A handle knows its result, and is an int.
handle = hvd.allreduce_async(weights)
done: bool = hvd.poll(handle)
assert_type(hvd.synchronize(handle).dtype, np.dtype[np.float32])
pair = hvd.synchronize(hvd.alltoall_async(weights))
assert_type(pair[1].dtype, np.dtype[np.int32])
number: int = handle

# Objects keep their type.
assert_type(hvd.broadcast_object({"epoch": 3}), dict[str, int])
assert_type(hvd.broadcast_object("settings" if hvd.rank() == 0 else None), str)
assert_type(hvd.allgather_object(hvd.rank()), list[int])

even = hvd.add_process_set(range(0, hvd.size(), 2))
if even.included():
    hvd.allreduce_(weights, process_set=even)
hvd.shutdown()
