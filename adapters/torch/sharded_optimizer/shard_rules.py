"""The update of the elements of a shard, by the core's kernels for SGD, Adam and AdamW."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from perseus_like.errors import UnavailableError
from perseus_like.session import session
from perseus_like.tables import DType

from .shard_memory import Segment, ShardMemory, Slot

_ADAM = ("exp_avg", "exp_avg_sq")
_STATES = {torch.optim.Adam: _ADAM, torch.optim.AdamW: _ADAM, torch.optim.SGD: ("momentum_buffer",)}
_DTYPES = {torch.float32: int(DType.float32), torch.bfloat16: int(DType.bfloat16)}
MASTER = "master"  # the float32 copy of a bfloat16 parameter

Group = dict[str, Any]
States = dict[Any, dict[str, Any]]


class Rule(Protocol):
    """The states of an optimizer, and its update of a shard."""

    name: str
    kinds: tuple[str, ...]  # the states that have a value for each element

    def used(self, group: Group, parameter: torch.Tensor) -> tuple[str, ...]:
        """Returns the states of a parameter that have a value for each element, with the master copy."""

    def adopt(self, memory: ShardMemory, slot: Slot, group: Group, states: States, copies: bool) -> None:
        """Makes the states of a parameter views of the host's memory. `copies`: with the values they had before."""

    def segments(self, memory: ShardMemory, states: States) -> list[Segment]:
        """Returns the parts of this rank's shard that are updated together."""

    def update(
        self, memory: ShardMemory, groups: Sequence[Group], states: States, scale: float, is_summed: bool
    ) -> None:
        """Updates this rank's shard. `is_summed`: this rank's row of gradients has the sums of all ranks."""

    def count(self, memory: ShardMemory, states: States) -> None:
        """Counts a step, after all ranks have updated their shards."""

    def catch_up(self, memory: ShardMemory, groups: Sequence[Group], states: States, steps: int) -> None:
        """Counts steps that other ranks have made while this rank had joined."""


def adopt_kinds(memory: ShardMemory, slot: Slot, kinds: Sequence[str], state: dict[str, Any], copies: bool) -> None:
    """Makes states of a parameter views of the host's memory. Missing ones begin with 0, the master with the values."""
    for kind in kinds:
        given, view = state.get(kind), memory.state(slot, kind)
        if isinstance(given, torch.Tensor) and given.data_ptr() == view.data_ptr():
            continue
        if copies:
            initial = slot.parameter if kind == MASTER else 0 * view
            view.copy_(given if isinstance(given, torch.Tensor) else initial)
        state[kind] = view


class KernelRule:
    """The core's kernel for an optimizer. It adds the gradients of all ranks and updates in one pass."""

    def __init__(self, optimizer_class: type[torch.optim.Optimizer]) -> None:
        self.name, self.kinds = optimizer_class.__name__, _STATES[optimizer_class]
        self._class = optimizer_class
        self._memory: weakref.ref[ShardMemory] | None = None  # of the segments
        self._pattern: object = None  # of the segments: the ranks; by parameter: group and relative step
        self._segments: list[Segment] = []

    @staticmethod
    def has(optimizer_class: type[torch.optim.Optimizer], groups: Sequence[Group]) -> bool:
        """Returns whether the kernel has this optimizer with these options."""
        return optimizer_class in _STATES and not any(group.get("amsgrad") for group in groups)

    def used(self, group: Group, parameter: torch.Tensor) -> tuple[str, ...]:
        used = () if "momentum" in group and not group["momentum"] else self.kinds
        return (*used, MASTER) if parameter.dtype is torch.bfloat16 else used

    def adopt(self, memory: ShardMemory, slot: Slot, group: Group, states: States, copies: bool) -> None:
        state = states[slot.parameter]
        used = self.used(group, slot.parameter)
        if not isinstance(state.get("step"), torch.Tensor):
            known = any(isinstance(state.get(kind), torch.Tensor) for kind in used if kind != MASTER)
            state["step"] = torch.tensor(float(state.get("step") or known))
        adopt_kinds(memory, slot, used, state, copies)
        for kind in set(state) - {"step", *used}:
            del state[kind]

    def segments(self, memory: ShardMemory, states: States) -> list[Segment]:
        steps = tuple(int(states[slot.parameter]["step"]) for slot in memory.slots)
        kinds = [(slot.group, step - steps[0]) for slot, step in zip(memory.slots, steps, strict=True)]
        pattern = (memory.present, kinds)
        if self._memory is None or self._memory() is not memory or pattern != self._pattern:
            self._memory, self._pattern, self._segments = weakref.ref(memory), pattern, memory.segments(kinds)
        return self._segments

    def update(
        self, memory: ShardMemory, groups: Sequence[Group], states: States, scale: float, is_summed: bool
    ) -> None:
        for segment in self.segments(memory, states):
            slot = segment.slot
            group = groups[slot.group]
            used = self.used(group, slot.parameter)
            moments = [memory.state_address(segment, kind) for kind in used if kind != MASTER]
            session.core.optimizer_step(
                self._options(group, int(states[slot.parameter]["step"]) + 1, scale),
                _DTYPES[slot.parameter.dtype],
                memory.gradient_addresses(segment, of_all=not is_summed),
                segment.parameter_address,
                memory.state_address(segment, MASTER) if MASTER in used else 0,
                *(*moments, 0, 0)[:2],
                segment.count,
            )

    def _options(self, group: Group, step: int, scale: float) -> dict[str, Any]:
        """Returns the options of `_core.optimizer_step`."""
        options: dict[str, Any] = {
            "step": step,
            "gradient_scale": -scale if group.get("maximize") else scale,
            "learning_rate": float(group["lr"]),
            "weight_decay": float(group["weight_decay"]),
        }
        if self._class is torch.optim.SGD:
            momentum = {name: float(group[name]) for name in ("momentum", "dampening")}
            return {**options, **momentum, "kind": "sgd", "nesterov": bool(group["nesterov"])}
        decoupled = self._class is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        beta1, beta2 = (float(beta) for beta in group["betas"])
        rest = {"beta1": beta1, "beta2": beta2, "epsilon": float(group["eps"])}
        return {**options, **rest, "kind": "adamw" if decoupled else "adam"}

    def count(self, memory: ShardMemory, states: States) -> None:
        torch._foreach_add_([states[slot.parameter]["step"] for slot in memory.slots], 1)

    def catch_up(self, memory: ShardMemory, groups: Sequence[Group], states: States, steps: int) -> None:
        torch._foreach_add_([states[slot.parameter]["step"] for slot in memory.slots], steps)


def check_options(optimizer_class: type[torch.optim.Optimizer], group: Group) -> None:
    """Raises UnavailableError if an option of this group cannot be sharded."""
    for option in ("capturable", "differentiable"):
        if group.get(option):
            raise UnavailableError(
                f"ZeroRedundancyOptimizer cannot shard {optimizer_class.__name__} with {option}=True; omit {option}, "
                "or use DistributedOptimizer without shard=True"
            )


def check_dtype(name: str, parameter: torch.Tensor) -> None:
    """Raises UnavailableError if parameters of this dtype cannot be sharded."""
    if parameter.dtype not in _DTYPES:
        raise UnavailableError(
            f"ZeroRedundancyOptimizer: {name!r} is {parameter.dtype}; only float32 and bfloat16 parameters can be "
            "sharded; use DistributedOptimizer without shard=True"
        )
