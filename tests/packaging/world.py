"""The program of one rank in a world of two, which uses NumPy alone and the libmpi of its own environment."""

import sys
from pathlib import Path

import numpy as np

import perseus_like.numpy as hvd


def loaded_libraries() -> set[str]:
    """Returns the paths of the shared libraries in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if ".so" in line}


hvd.init()
assert hvd.size() == 2, f"this world has {hvd.size()} ranks, but 2 were requested"

mine = np.arange(5, dtype=np.float32) + hvd.rank()
total = hvd.allreduce(mine, op=hvd.Sum)
np.testing.assert_array_equal(total, 2 * np.arange(5) + 1)

everything = hvd.allgather(np.full((hvd.rank() + 1, 2), hvd.rank(), dtype=np.int64))
np.testing.assert_array_equal(everything, [[0, 0], [1, 1], [1, 1]])

mpi = sorted(path for path in loaded_libraries() if Path(path).name.startswith("libmpi"))
assert any(Path(path).is_relative_to(sys.prefix) for path in mpi), f"libmpi of {sys.prefix} is not loaded, but {mpi}"
assert not {"torch", "tensorflow", "mxnet"} & sys.modules.keys()
print(f"rank {hvd.rank()} of {hvd.size()} agrees", flush=True)
hvd.shutdown()
