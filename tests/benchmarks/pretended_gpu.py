"""Makes the programs for a GPU run on the CPU: "cuda" means the CPU's memory, and NCCL means gloo.

The programs execute it before they start, if PERSEUS_BENCHMARK_STAND_IN names this file. Their own code is the real
one, so that an error in it is found without a GPU. They measure nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import perseus_like.torch as hvd


def on_host(value: Any) -> Any:
    is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
    return "cpu" if is_device else value


class OnHost(TorchFunctionMode):
    """Replaces the device of every call of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        named = {name: on_host(value) for name, value in (kwargs or {}).items()}
        return func(*map(on_host, args), **named)


class RefusedVerbs:
    """Takes the place of torch.cuda.graph: within it, verbs raise the error of a stream under capture."""

    def __init__(self, graph: Any) -> None:
        self._verbs: tuple[Any, Any] = hvd.allreduce_, dist.all_reduce

    def __enter__(self) -> None:
        vars(hvd)["allreduce_"] = vars(dist)["all_reduce"] = self._refuse

    def __exit__(self, *_: object) -> None:
        vars(hvd)["allreduce_"], vars(dist)["all_reduce"] = self._verbs

    @staticmethod
    def _refuse(*_: Any, **__: Any) -> None:
        raise ValueError("the stream is being captured into a CUDA graph, of which communication can be no part")


class Profile:
    """Takes the place of torch's profiler. Every step has one kernel of each kind."""

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def key_averages(self) -> list[Any]:
        names = ("Memcpy DtoD", "perseus_pack_float32_float32", "perseus_unpack_float32_float32")
        return [SimpleNamespace(key=name, device_time_total=100.0) for name in names]

    def export_chrome_trace(self, path: str) -> None:
        spans = {"ncclDevKernel_AllReduce": (10, 10), "gemm": (0, 15)}
        events = [{"cat": "kernel", "name": name, "ts": ts, "dur": dur} for name, (ts, dur) in spans.items()]
        Path(path).write_text(json.dumps({"traceEvents": events}))


def with_gloo(start: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: str, *arguments: Any, **named: Any) -> Any:
        return start("gloo" if backend == "nccl" else backend, *arguments, **named)

    return init_process_group


vars(torch.cuda).update(
    CUDAGraph=object,
    current_device=lambda: 0,
    device_count=lambda: 1,
    empty_cache=lambda: None,
    get_device_name=lambda: "a stand-in for a GPU",
    get_device_properties=lambda device: SimpleNamespace(uuid="the only one"),
    graph=RefusedVerbs,
    is_available=lambda: True,
    make_graphed_callables=lambda model, inputs: model,
    max_memory_reserved=lambda: 0,
    nccl=SimpleNamespace(version=lambda: "stand-in"),
    set_device=lambda device: None,
    synchronize=lambda: None,
)
vars(torch.profiler)["profile"] = Profile
vars(dist)["init_process_group"] = with_gloo(dist.init_process_group)
OnHost().__enter__()  # type: ignore[no-untyped-call]
