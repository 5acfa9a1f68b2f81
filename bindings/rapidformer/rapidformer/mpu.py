"""The parallel groups by Megatron's names, for scripts that import `megatron.mpu` or `rapidformer.mpu`."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import state
from .world import current


def get_data_parallel_group() -> dist.ProcessGroup:
    return current().group("dp")


def get_data_parallel_rank() -> int:
    return current().rank_in("dp")


def get_data_parallel_world_size() -> int:
    return current().size_of("dp")


def get_tensor_model_parallel_group() -> dist.ProcessGroup:
    return current().group("tp")


def get_tensor_model_parallel_rank() -> int:
    return current().rank_in("tp")


def get_tensor_model_parallel_world_size() -> int:
    return current().size_of("tp")


def get_pipeline_model_parallel_group() -> dist.ProcessGroup:
    return current().group("pp")


def get_pipeline_model_parallel_rank() -> int:
    return current().rank_in("pp")


def get_pipeline_model_parallel_world_size() -> int:
    return current().size_of("pp")


def is_pipeline_first_stage() -> bool:
    return get_pipeline_model_parallel_rank() == 0


def is_pipeline_last_stage() -> bool:
    return get_pipeline_model_parallel_rank() == get_pipeline_model_parallel_world_size() - 1


def broadcast_data(
    keys: Sequence[str], data: Mapping[str, Any] | None, datatype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Returns these tensors of `data` on the device. All processes that divide a layer get those of the first one.

    `data` may be None on the others.
    """
    world = current()
    found = {key: torch.as_tensor(data[key]).to(world.device, datatype) for key in keys} if data is not None else {}
    if world.size_of("tp") == 1:
        return found
    group = world.group("tp")
    source = dist.get_global_rank(group, 0)
    shapes: list[Any] = [{key: value.shape for key, value in found.items()}]
    dist.broadcast_object_list(shapes, source, group)
    for key, shape in shapes[0].items():
        value = (
            found[key].contiguous() if world.rank == source else torch.empty(shape, dtype=datatype, device=world.device)
        )
        dist.broadcast(value, source, group)
        found[key] = value
    return found


def install_as_megatron() -> None:
    """Makes `from megatron import mpu, get_args, get_timers, get_tokenizer` give this package's."""
    try:
        megatron: Any = importlib.import_module("megatron")
    except ModuleNotFoundError:
        megatron = sys.modules["megatron"] = types.ModuleType("megatron")
    module = sys.modules[__name__]
    sys.modules["megatron.mpu"] = module
    names = {
        "mpu": module,
        "get_args": state.get_args,
        "get_timers": state.get_timers,
        "get_tokenizer": state.get_tokenizer,
    }
    for name, value in names.items():
        setattr(megatron, name, value)
