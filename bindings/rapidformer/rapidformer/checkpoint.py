"""Checkpoints: one folder for each, which appears when it is complete.

`iter_0000010/model/` is the whole model, in the form of `save_pretrained`. `iter_0000010/rank_0.pt` has what a process
needs to continue with the same loss: its part of the model and of the optimizer's state, the scheduler, and the random
generators.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from . import state
from .options import SHARDING, InputError
from .parallel import is_shared
from .world import World

LATEST = "latest_checkpointed_iteration.txt"
LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", *SHARDING)


def save(
    iteration: int, model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any, args: Namespace, world: World
) -> None:
    """Writes a checkpoint into --save. Every process calls it."""
    folder = Path(args.save)
    target, partial = folder / f"iter_{iteration:07d}", folder / f"iter_{iteration:07d}.partial"
    if world.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    whole = get_model_state_dict(_bare(model), options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if world.rank_in("dp") == world.rank_in("tp") == 0:
        _save_model(_bare(model), whole, partial, world)
    mine = {
        "iteration": iteration,
        "layout": layout(optimizer, args, world),
        "model": _local_copy(_bare(model).state_dict()),
        "optimizer": _local_copy(_own(optimizer).state_dict()),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "generator": torch.get_rng_state(),
        "device_generator": torch.cuda.get_rng_state() if world.device.type == "cuda" else None,
    }
    torch.save(mine, partial / f"rank_{world.rank}.pt")
    dist.barrier()
    if world.rank == 0:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        note = folder / f"{LATEST}.partial"
        note.write_text(f"{iteration}\n")
        note.replace(folder / LATEST)
    dist.barrier()
    state.get_logger().info("checkpoint of iteration %d in %s", iteration, target)


def load(model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any, args: Namespace, world: World) -> int:
    """Continues from the last checkpoint in --load. Returns its iteration, or 0 if there is none."""
    note = Path(args.load) / LATEST
    if not note.is_file():
        state.get_logger().info("no checkpoint in %s: the training starts from the beginning", args.load)
        return 0
    found = Path(args.load) / f"iter_{int(note.read_text()):07d}"
    file = found / f"rank_{world.rank}.pt"
    saved: dict[str, Any] = {"layout": None}
    if file.is_file():
        saved = torch.load(file, map_location=world.device, weights_only=False)
    present = layout(optimizer, args, world)
    if saved["layout"] != present:
        raise InputError(
            f"the checkpoint {found} is of {saved['layout']}, and this job is {present}; start it with as many "
            "processes and the same switches, or begin from its model: --pretrained-model-name-or-path "
            f"{found / 'model'}"
        )
    for name, value in _bare(model).state_dict().items():
        if isinstance(value, torch.Tensor):
            (value.to_local() if isinstance(value, DTensor) else value).detach().copy_(saved["model"][name])
    inner = _own(optimizer)
    inner.load_state_dict(_like_parameters(inner, saved["optimizer"]))
    scheduler.load_state_dict(saved["scheduler"])
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    scaler.load_state_dict(saved["scaler"])
    torch.set_rng_state(saved["generator"].cpu())
    if saved["device_generator"] is not None:
        torch.cuda.set_rng_state(saved["device_generator"].cpu())
    state.get_logger().info("continues from %s", found)
    return int(saved["iteration"])


def layout(optimizer: Any, args: Namespace, world: World) -> str:
    """Returns how the job divides its state, in words."""
    words = [f"{world.size} processes"]
    for name in LAYOUT:
        value, option = getattr(args, name), f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value > 1:  # False is 0
            words.append(f"{option} {value}")
    if is_shared(optimizer):
        words.append("with parameters in shared memory")
    return " ".join(words)


def _save_model(model: Any, whole: dict[str, Any], folder: Path, world: World) -> None:
    if world.size_of("pp") > 1:
        torch.save(whole, folder / f"stage_{world.rank_in('pp')}.pt")
    elif hasattr(model, "save_pretrained"):
        model.save_pretrained(folder / "model", state_dict=whole)
    else:
        torch.save(whole, folder / "model.pt")


def _bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _own(optimizer: Any) -> Any:
    """Returns the optimizer that has this process's state."""
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer


def _local_copy(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.to_local().detach().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _local_copy(each) for key, each in value.items()}
    return [_local_copy(each) for each in value] if isinstance(value, list) else value


def _like_parameters(optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Returns the saved state with tensors divided as their parameters are."""
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        if not isinstance(parameter, DTensor):
            continue
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.to_local().shape and value.dim() > 0:
                saved["state"][number][name] = DTensor.from_local(
                    value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
                )
    return saved
