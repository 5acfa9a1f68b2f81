"""A test of a wheel on two ranks: perseusrun -np 2 python wheels/smoke.py. It needs NumPy alone."""

from __future__ import annotations

import sys

import numpy as np

import perseus_like.numpy as hvd


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    expect(size == 2, f"the job has {size} ranks; start it on 2")
    for dtype in ("float16", "float32", "float64", "int32", "uint8"):
        total = hvd.allreduce(np.full(1000, rank + 1, dtype=dtype), op=hvd.Sum)
        expect(total.dtype == dtype and bool((total == 3).all()), f"the sum of {dtype} is {total[:3]} and should be 3")
    mine = np.full((rank + 1, 2), rank, dtype=np.int64)
    expect(hvd.allgather(mine).tolist() == [[0, 0], [1, 1], [1, 1]], "allgather has other rows")
    expect(hvd.broadcast(np.array([rank]), root_rank=1).tolist() == [1], "broadcast has another value")
    expect(hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}], "allgather_object has other objects")
    pending = [hvd.allreduce_async(np.full(7, number, dtype=np.float32), op=hvd.Sum) for number in range(50)]
    sums = [hvd.synchronize(handle)[0] for handle in pending]
    expect(sums == [2 * number for number in range(50)], "asynchronous sums differ")
    try:
        hvd.allreduce(np.zeros(rank + 1), op=hvd.Sum, name="differs")
        expect(False, "ranks with different shapes got no error")
    except hvd.HorovodInternalError as error:
        expect("differs" in str(error), f"the error does not name the tensor: {error}")
    print(f"rank {rank} of {size} agrees on Python {sys.version.split()[0]}", flush=True)
    hvd.shutdown()


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"smoke test: {what}")


if __name__ == "__main__":
    main()
