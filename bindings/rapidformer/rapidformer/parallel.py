"""Divides a model among processes, and makes the optimizer that fits."""

from __future__ import annotations

import contextlib
import itertools
import math
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from perseus_like import torch as hvd
from perseus_like.errors import UnavailableError

from . import state
from .options import InputError
from .world import World

NO_DECAY = ("bias", "norm", "ln_", "layernorm")


def divide_layers(model: nn.Module, world: World) -> None:
    """Divides the layers that the model's `tp_plan` names among the processes of tensor parallelism."""
    parts = world.size_of("tp")
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    styles: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        style = _style_of(name, plan)
        if style is not None and isinstance(module, nn.Linear):
            if (module.out_features if style == "colwise" else module.in_features) % parts:
                raise InputError(f"{name} cannot be divided by --tensor-model-parallel-size {parts}: {module}")
            styles[name] = ColwiseParallel() if style == "colwise" else RowwiseParallel()
    if not styles:
        raise InputError(
            f"{type(model).__name__} has no tp_plan, so --tensor-model-parallel-size {parts} cannot divide it; "
            "models like Llama, Mistral and Qwen have one"
        )
    parallelize_module(model, world.mesh["tp"], dict(styles))


def _style_of(name: str, plan: dict[str, str]) -> str | None:
    """Returns `colwise` or `rowwise`. Layers with another style, for example the head, stay whole."""
    parts = name.split(".")
    for pattern, style in plan.items():
        words = pattern.split(".")
        if len(words) == len(parts) and all(word in ("*", part) for word, part in zip(words, parts, strict=True)):
            return style if style in ("colwise", "rowwise") else None
    return None


def shard(model: nn.Module, world: World, keep_gathered: bool) -> None:
    """Divides parameters among the replicas by FSDP2, one group for each layer. `keep_gathered` is ZeRO-2."""
    # Most models keep their layers in a ModuleList.
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=world.mesh["dp"], reshard_after_forward=not keep_gathered)
    fully_shard(model, mesh=world.mesh["dp"], reshard_after_forward=not keep_gathered)


def wrap(model: nn.Module, args: Namespace, world: World) -> nn.Module:
    """Returns the model as the switches ask, for `world`. Parameters may be other objects afterwards."""
    if world.size_of("tp") > 1:
        divide_layers(model, world)
    if args.zero_2_memory_optimization or args.zero_3_memory_optimization or args.fsdp_memory_optimization:
        shard(model, world, keep_gathered=args.zero_2_memory_optimization)
        return model
    if world.size_of("tp") == world.size_of("pp") == 1 and world.size > 1:
        return DistributedDataParallel(model)
    return model


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns the parameters in two groups. Biases and norms have no weight decay."""
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    kept = [value for name, value in named if not any(word in name.lower() for word in NO_DECAY)]
    free = [value for name, value in named if any(word in name.lower() for word in NO_DECAY)]
    groups = ({"params": kept, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def make_optimizer(groups: list[dict[str, Any]], kind: type[torch.optim.Optimizer], args: Namespace) -> Any:
    """Makes an optimizer of this kind. With --zero-1-memory-optimization each process keeps a part of its state."""
    if args.zero_1_memory_optimization and dist.get_world_size() > 1:
        # The options of each group are in the groups. The class needs a default for the rate.
        return ZeroRedundancyOptimizer(groups, optimizer_class=kind, lr=groups[0].get("lr", args.lr))
    return kind(groups, lr=groups[0].get("lr", args.lr))  # type: ignore[call-arg]


def shared_optimizer(groups: list[dict[str, Any]], kind: type[torch.optim.Optimizer], world: World, passes: int) -> Any:
    """Returns an optimizer whose step adds the gradients of all ranks and updates memory that the ranks share.

    `passes`: the backward passes of a step.

    Returns None if the parameters, the optimizer or the hosts do not allow it. The model then needs a wrapper that
    averages gradients, and does not need it otherwise.
    """
    if world.size == 1 or dist.get_backend() != "perseus":
        return None
    try:
        optimizer = hvd.ZeroRedundancyOptimizer(groups, kind, backward_passes_per_step=passes)
    except UnavailableError as error:
        state.get_logger().info("--zero-1-memory-optimization: torch's ZeroRedundancyOptimizer, because %s", error)
        return None
    state.get_logger().info("--zero-1-memory-optimization: parameters and optimizer states once per host")
    return optimizer


def is_shared(optimizer: Any) -> bool:
    """Returns whether `shared_optimizer` made the optimizer."""
    return isinstance(optimizer, hvd.ZeroRedundancyOptimizer)


def clip_shared(optimizer: Any, limit: float) -> float:
    """Makes the next step clip the averaged gradients if `limit` is more than 0. Returns their norm."""
    return float(optimizer.clip_grad_norm_(limit if limit > 0 else math.inf))


def groups_by_name(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[dict[str, Any]]:
    """Returns the optimizer's groups with the names of parameters in their place."""
    names = {id(value): name for name, value in model.named_parameters()}
    found = []
    for group in optimizer.param_groups:
        if any(id(value) not in names for value in group["params"]):
            raise InputError("the optimizer has parameters that are not the model's; make it from model.parameters()")
        found.append({**group, "params": [names[id(value)] for value in group["params"]]})
    return found


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Averages the gradients of replicas, for models that no wrapper reduces: tensor and pipeline parallelism."""
    if world.size_of("dp") == 1:
        return
    group = world.group("dp")
    gradients = [local(value.grad) for value in parameters if value.grad is not None]
    for dtype, alike in itertools.groupby(sorted(gradients, key=lambda each: str(each.dtype)), lambda each: each.dtype):
        several = list(alike)
        flat = torch.cat([each.reshape(-1) for each in several]).to(dtype)
        dist.all_reduce(flat, group=group)
        flat /= world.size_of("dp")
        for each, part in zip(several, torch.split(flat, [each.numel() for each in several]), strict=True):
            each.copy_(part.view_as(each))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this process's part of a divided tensor, or the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, world: World) -> float:
    """Scales all gradients so that their norm is at most `limit`. Returns the norm before."""
    gradients = [value.grad for value in parameters if value.grad is not None]
    total = torch.zeros(3, dtype=torch.float64, device=world.device)  # whole, divided by tp, divided by dp
    for gradient in gradients:
        total[_divided_by(gradient)] += local(gradient).double().square().sum()
    for index, dimension in ((1, "tp"), (2, "dp")):
        if world.size_of(dimension) > 1:
            dist.all_reduce(part := total[index : index + 1].clone(), group=world.group(dimension))
            total[index] = part[0]
    square = total.sum().reshape(1)
    if world.size_of("pp") > 1:
        dist.all_reduce(square, group=world.group("pp"))
    norm = float(square.sqrt())
    if limit > 0 and norm > limit:
        for gradient in gradients:
            local(gradient).mul_(limit / (norm + 1e-6))
    return norm


def _divided_by(gradient: torch.Tensor) -> int:
    if not isinstance(gradient, DTensor) or all(isinstance(place, Replicate) for place in gradient.placements):
        return 0
    if not all(isinstance(place, Shard | Replicate) for place in gradient.placements):
        raise RuntimeError(f"a gradient is placed as {gradient.placements}, whose norm is not known")
    return 1 if gradient.device_mesh.mesh_dim_names == ("tp",) else 2


@contextlib.contextmanager
def without_reduction(model: nn.Module, active: bool) -> Iterator[None]:
    """Keeps DDP from reducing gradients in backward passes that are not the last one of a step."""
    with model.no_sync() if active and isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
        yield
