"""A program that calls each collective in several sizes and needs only NumPy. Every rank of a job runs it."""

import numpy as np

import perseus_like.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = size * (size + 1) / 2

for count in (1, 1000, 1 << 16, 1 << 20):
    assert (hvd.allreduce(np.full(count, rank + 1, np.float32), op=hvd.Sum, name=f"sum {count}") == total).all()
for count in (1, 1000, 1 << 16):
    gathered = hvd.allgather(np.full((count, 2), rank, np.int64), name=f"gather {count}")
    assert (gathered == np.repeat(np.arange(size), count)[:, None]).all()
    assert (hvd.broadcast(np.full(count, rank), root_rank=size - 1, name=f"broadcast {count}") == size - 1).all()
    sent = np.repeat(np.arange(size) + 100 * rank, count)
    received, _ = hvd.alltoall(sent, splits=np.full(size, count), name=f"exchange {count}")
    assert (received == np.repeat(100 * np.arange(size) + rank, count)).all()
    assert (hvd.reducescatter(np.ones(size * count, np.float32), op=hvd.Sum, name=f"scatter {count}") == size).all()

assert hvd.broadcast_object({"rank": rank, "list": list(range(1000))}, root_rank=0)["rank"] == 0
assert hvd.allgather_object(rank) == list(range(size))

works = [hvd.allreduce_async(np.full(100, i, np.float32), op=hvd.Sum, name=f"many {i}") for i in range(100)]
for i, work in enumerate(works):
    assert (hvd.synchronize(work) == i * size).all()

sets = [hvd.add_process_set(list(range(first, size, 2))) for first in (0, 1)]
part = hvd.allreduce(np.ones(1 << 16, np.float32), op=hvd.Sum, process_set=sets[rank % 2], name="half")
assert (part == size // 2).all()
for process_set in sets:
    hvd.remove_process_set(process_set)
hvd.barrier()
hvd.shutdown()

hvd.init()
assert (hvd.allreduce(np.ones(5, np.float32), op=hvd.Sum, name="again") == size).all()
print(f"rank {rank} of {size} is done", flush=True)
hvd.shutdown()
