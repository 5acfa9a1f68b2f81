"""Copies from one rank to all: a model's parameters, an optimizer's state, any object."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perseus_like import rank, size
from perseus_like.collectives.handle import results_of
from perseus_like.objects import allgather_object, broadcast_object
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session

from .data_movement import allgather, broadcast_, broadcast_async_
from .ops import synchronize
from .sharded_optimizer import ZeroRedundancyOptimizer
from .tensors import collectives


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Copies the root rank's values into the tensors of all ranks, so that all start with the same model.

    Args:
        params: a `state_dict()`, a list of pairs of a name and a tensor, or a list of tensors; the same on all ranks.
            Other values in it are not sent.
        root_rank: the rank in the job whose values all ranks get.

    Raises:
        ValueError: `params` is neither a dictionary nor a list, or a dtype cannot be communicated.
        HorovodInternalError: the ranks passed different tensors (DisagreementError), or a rank has ended.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, list | tuple):
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"broadcast_parameters takes a state_dict or a list, not {type(params).__name__}")
    _broadcast_all(((name, value) for name, value in pairs if isinstance(value, torch.Tensor)), root_rank)


def _broadcast_all(pairs: Iterable[tuple[str | None, torch.Tensor]], root_rank: int) -> None:
    results_of([collectives.broadcast(tensor, root_rank, name, in_place=True) for name, tensor in pairs])


@dataclass(frozen=True)
class _TensorAt:
    """Replaces a tensor in an object that is sent; the tensors are sent separately."""

    place: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device_type: str


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Copies the root rank's state and options (learning rate, …) into the optimizers of all ranks.

    The other ranks' optimizers may have any state before. Works for every optimizer whose state is made of tensors and
    values that can be pickled.

    Args:
        optimizer: an optimizer of the same parameters on all ranks; also a DistributedOptimizer.
        root_rank: the rank in the job whose state all ranks get.
        model: has no effect; it is an argument of Horovod.

    Raises:
        ValueError: the ranks have different numbers of parameter groups.
        HorovodInternalError: a rank has ended, or `init` was not called.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    _broadcast_state(optimizer, root_rank)
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.adopt_state()


def _broadcast_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not optimizer.state:  # scripts for Horovod expect zero gradients: it makes state by a step with them
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    is_root = session.core.rank() == root_rank
    tensors: list[torch.Tensor] = []
    sent = _describe(optimizer, parameters, tensors) if is_root else None
    state, groups = broadcast_object(sent, root_rank, "optimizer_state")
    if is_root:
        _broadcast_all(((f"optimizer_state.{place}", tensor) for place, tensor in enumerate(tensors)), root_rank)
        return
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"broadcast_optimizer_state: rank {root_rank} has {len(groups)} parameter groups, "
            f"rank {session.core.rank()} has {len(optimizer.param_groups)}"
        )
    new_state = {}
    for key, value in state.items():
        parameter = parameters[key] if isinstance(key, int) else None
        own = optimizer.state.get(key if parameter is None else parameter)
        own = dict(own) if isinstance(own, Mapping) else own
        device = torch.device("cpu") if parameter is None else parameter.device
        new_state[key] = _rebuild(value, own, device, tensors)
    new_groups = [
        _rebuild(sent_options, own, torch.device("cpu"), tensors)
        for sent_options, own in zip(groups, optimizer.param_groups, strict=True)
    ]
    _broadcast_all(((f"optimizer_state.{place}", tensor) for place, tensor in enumerate(tensors)), root_rank)
    optimizer.state.clear()
    for key, value in new_state.items():
        optimizer.state[parameters[key] if isinstance(key, int) else key] = value
    for own, options in zip(optimizer.param_groups, new_groups, strict=True):
        own.update(options)


def _describe(
    optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], tensors: list[torch.Tensor]
) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """Returns the state by the parameter's place, and the groups' options. Appends their tensors to `tensors`."""
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    state = {
        places[id(key)] if isinstance(key, torch.Tensor) else key: _take_tensors(value, tensors)
        for key, value in optimizer.state.items()
        if not isinstance(key, torch.Tensor) or id(key) in places
    }
    groups = [
        {name: _take_tensors(value, tensors) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    return state, groups


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TensorAt(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        taken = copy.copy(value)  # an OrderedDict, a defaultdict, or another class of dictionaries stays one
        for key, item in value.items():
            taken[key] = _take_tensors(item, tensors)
        return taken
    if type(value) in (list, tuple):
        return type(value)(_take_tensors(item, tensors) for item in value)
    return value


def _rebuild(sent: Any, own: Any, device: torch.device, tensors: list[torch.Tensor]) -> Any:
    """Returns the sent value. Tensors of `own` that fit are reused, so that references to them see the new values."""
    if isinstance(sent, _TensorAt):
        target = device if sent.device_type != "cpu" else torch.device("cpu")
        fits = (
            isinstance(own, torch.Tensor)
            and own.shape == sent.shape
            and own.dtype == sent.dtype
            and own.device.type == sent.device_type
        )
        tensor = own if fits else torch.empty(sent.shape, dtype=sent.dtype, device=target)
        tensors.extend(torch.empty(0) for _ in range(sent.place + 1 - len(tensors)))
        tensors[sent.place] = tensor
        return tensor
    if isinstance(sent, dict):
        mine = own if isinstance(own, dict) else {}
        rebuilt = copy.copy(sent)
        for key, item in sent.items():
            rebuilt[key] = _rebuild(item, mine.get(key), device, tensors)
        return rebuilt
    if type(sent) in (list, tuple):
        mine_list = list(own) if type(own) is type(sent) and len(own) == len(sent) else [None] * len(sent)
        return type(sent)(_rebuild(item, it, device, tensors) for item, it in zip(sent, mine_list, strict=True))
    return sent


# The functions of this file, and further names of Horovod's module of this path.
__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast_",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "rank",
    "size",
    "synchronize",
]
