"""Trained parameters of which each host has one copy, in memory that all of its ranks write."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

from perseus_like.collectives import barrier
from perseus_like.errors import UnavailableError
from perseus_like.host_memory import map_together
from perseus_like.host_memory.malloc_settings import return_freed_memory
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session

from .gradients.gradient_memory import dense_strides

Named = tuple[str, torch.Tensor]
ALIGNED_ELEMENTS = 32  # the distance of tensors is a multiple of this number of elements
_of: dict[int, tuple[weakref.ref[torch.Tensor], ParameterMemory]] = {}  # the keys are the ids of parameters


class ParameterMemory:
    """The memory of some parameters, which the ranks of a process set map."""

    def __init__(self, named: Sequence[Named], followers: Sequence[torch.Tensor], process_set: ProcessSet) -> None:
        """Moves the parameters, whose values become those of the first rank. Collective over the set."""
        self.generation = session.generation
        self.process_set = process_set
        self._storages: dict[int, tuple[int, torch.UntypedStorage]] = {}  # by address: offset, and the private memory
        self._end = 0
        for name, parameter in named:
            self._place(name, parameter)
        contents = [f"{name!r} {each.dtype}{list(each.shape)} {list(each.stride())}" for name, each in named]
        self._mapping = map_together(self._end, contents, "share_parameters", process_set)
        self._move(named, followers)
        return_freed_memory()

    def _place(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.device.type != "cpu" or parameter.layout is not torch.strided:
            raise UnavailableError(
                f"share_parameters: {name!r} is a {parameter.layout} tensor on {parameter.device}; only dense CPU "
                "parameters can be shared"
            )
        storage = parameter.untyped_storage()
        if storage.data_ptr() not in self._storages:
            alignment = ALIGNED_ELEMENTS * parameter.element_size()
            self._end = -(-self._end // alignment) * alignment
            self._storages[storage.data_ptr()] = (self._end, storage)
            self._end += storage.nbytes()

    def _move(self, named: Sequence[Named], followers: Sequence[torch.Tensor]) -> None:
        moved: dict[int, torch.UntypedStorage] = {}
        is_first = self.process_set.rank() == 0
        for address, (offset, storage) in self._storages.items():
            if storage.nbytes():
                place = torch.frombuffer(self._mapping, dtype=torch.uint8, count=storage.nbytes(), offset=offset)
                moved[address] = place.untyped_storage()
                if is_first:
                    place.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
        barrier(self.process_set)
        unique = {id(each): each for each in [*(parameter for _, parameter in named), *followers]}
        for tensor in unique.values():
            target = moved.get(tensor.untyped_storage().data_ptr())
            if target is not None:
                tensor.data = _view_of(tensor, target)
        for _, parameter in named:
            _of[id(parameter)] = (weakref.ref(parameter, _forget(id(parameter))), self)
        self._storages.clear()

    @property
    def mapping(self) -> mmap.mmap:
        return self._mapping


def share_parameters(
    model_or_params: torch.nn.Module | Iterable[torch.Tensor] | Iterable[Named],
    process_set: ProcessSet = global_process_set,
) -> None:
    """Moves parameters to memory of which the host has one copy. The values become those of the first rank.

    Views of a parameter's memory among the parameters and buffers stay views of it, and tied weights stay tied. Other
    buffers stay private. A rank that changes a parameter afterwards changes it for all ranks of the host, so only
    `ZeroRedundancyOptimizer` should do so. It calls this function itself. The call is collective over the set.

    Args:
        model_or_params: a module, its parameters, or pairs of a name and a parameter; the same on all ranks.
        process_set: the ranks that train together, which are on one host. The default is all ranks of the job.

    Raises:
        UnavailableError: a parameter is not a dense CPU tensor, the ranks are on several hosts, or this rank cannot
            map the memory.
        HorovodInternalError: the ranks passed different parameters (DisagreementError), or a rank has ended.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> hvd.share_parameters(model)
    """
    named, followers = _named(model_or_params)
    if not all(is_shared(parameter) for _, parameter in named):
        ParameterMemory(named, followers, process_set)


def unshare_parameters(model_or_params: torch.nn.Module | Iterable[torch.Tensor] | Iterable[Named]) -> None:
    """Gives this rank private copies of parameters that `share_parameters` has moved. Not collective.

    Call it on all ranks, while no rank is in `step()`.

    Args:
        model_or_params: as for `share_parameters`. Parameters that are not shared stay as they are.

    Raises:
        MemoryError: this rank has no memory for the copies.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> hvd.unshare_parameters(model)
    """
    named, followers = _named(model_or_params)
    copies: dict[int, torch.UntypedStorage] = {}
    unique = {id(each): each for each in [*(parameter for _, parameter in named), *followers]}
    for tensor in unique.values():
        storage = tensor.untyped_storage()
        if memory_of(tensor) is not None and storage.nbytes():
            copies.setdefault(storage.data_ptr(), storage.clone())  # type: ignore[no-untyped-call]
    for tensor in unique.values():
        _of.pop(id(tensor), None)
        target = copies.get(tensor.untyped_storage().data_ptr())
        if target is not None:
            tensor.data = _view_of(tensor, target)


def unshare_all() -> None:
    """Gives this rank private copies of all parameters that it shares."""
    unshare_parameters([parameter for reference, _ in list(_of.values()) if (parameter := reference()) is not None])


def memory_of(parameter: torch.Tensor) -> ParameterMemory | None:
    """Returns the memory that the parameter has been moved to, or None."""
    entry = _of.get(id(parameter))
    return None if entry is None else entry[1]


def is_shared(parameter: torch.Tensor) -> bool:
    """Returns True if the ranks of the current session share the parameter."""
    memory = memory_of(parameter)
    return memory is not None and memory.generation == session.generation


def require_dense(name: str, parameter: torch.Tensor) -> None:
    """Raises UnavailableError if elements of the parameter overlap or have gaps."""
    if parameter.numel() and tuple(parameter.stride()) != tuple(dense_strides(parameter)):
        raise UnavailableError(
            f"ZeroRedundancyOptimizer: {name!r} has gaps between its elements, or elements that overlap; store a "
            "contiguous copy of it in its module"
        )


def _view_of(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    place = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(storage, *place)


def _named(given: object) -> tuple[list[Named], list[torch.Tensor]]:
    """Returns the parameters with their names, and tensors that may be views of the parameters' memory."""
    if isinstance(given, torch.nn.Module):
        return list(given.named_parameters()), list(given.buffers())
    named: list[Named] = []
    for position, each in enumerate(given):  # type: ignore[arg-type,var-annotated]
        named.append(each if isinstance(each, tuple) else (f"parameter {position}", each))
    return named, []


def _forget(key: int) -> Callable[[weakref.ref[torch.Tensor]], None]:
    def forget(reference: weakref.ref[torch.Tensor]) -> None:
        if key in _of and _of[key][0] is reference:
            del _of[key]

    return forget
