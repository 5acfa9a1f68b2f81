"""Updates a shard by an optimizer of torch or of the user, if it updates each element by itself. A trial decides."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from perseus_like.errors import UnavailableError

from .shard_memory import Segment, ShardMemory, Slot
from .shard_rules import MASTER, Group, States, adopt_kinds

_WHOLE_TENSORS = {
    "LBFGS": "it needs all gradients at once",
    "Adafactor": "it divides by norms of rows and columns",
    "Muon": "it multiplies whole matrices",
    "SparseAdam": "it takes sparse gradients only",
}
_TRIAL_SHAPES = ((4, 6), (5,))
_TRIAL_STEPS = 3
_CUT = 10  # elements of the first trial parameter that belong to the first shard

Pieces = list[torch.nn.Parameter]


class TorchRule:
    """An optimizer over pieces of the parameters: for each parameter the elements that are in this rank's shard.

    A parameter that has none is an empty piece, so that every rank has the states that are one number for a parameter,
    such as the number of steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises UnavailableError if the update of an element depends on other elements."""
        self._optimizer = optimizer
        self.name = type(optimizer).__name__
        self.kinds = tuple(sorted({kind for group in optimizer.param_groups for kind in _kinds(optimizer, group)}))
        self._memory: weakref.ref[ShardMemory] | None = None  # of the segments
        self._present: tuple[int, ...] = ()  # the ranks of the segments
        self._segments: list[Segment] = []
        self._pieces: Pieces = []
        self._shard: torch.optim.Optimizer | None = None

    def used(self, group: Group, parameter: torch.Tensor) -> tuple[str, ...]:
        return (*self.kinds, MASTER) if parameter.dtype is torch.bfloat16 else self.kinds

    def adopt(self, memory: ShardMemory, slot: Slot, group: Group, states: States, copies: bool) -> None:
        """States that the optimizer has not made yet stay missing, because it gives them their first values."""
        if slot.parameter not in states:
            return
        state = states[slot.parameter]
        present = [kind for kind in self.kinds if isinstance(state.get(kind), torch.Tensor)]
        master = [MASTER] if slot.parameter.dtype is torch.bfloat16 else []
        adopt_kinds(memory, slot, [*present, *master], state, copies)

    def segments(self, memory: ShardMemory, states: States) -> list[Segment]:
        if self._memory is None or self._memory() is not memory or self._present != memory.present:
            self._memory, self._present = weakref.ref(memory), memory.present
            mine = {id(each.slot): each for each in memory.segments(range(len(memory.slots)))}
            self._segments = [mine.get(id(slot), Segment(slot, 0, 0)) for slot in memory.slots]
            self._pieces = [torch.nn.Parameter(memory.piece(each, self._target(each.slot))) for each in self._segments]
            self._shard = None
        return self._segments

    def update(
        self, memory: ShardMemory, groups: Sequence[Group], states: States, scale: float, is_summed: bool
    ) -> None:
        segments = self.segments(memory, states)
        shard = self._shard = self._shard or self._over(segments, self._pieces, groups)
        for group, given in zip(shard.param_groups, groups, strict=True):
            group.update(_options(given))
        for segment, piece in zip(segments, self._pieces, strict=True):
            piece.grad = memory.summed(segment, is_summed).mul_(scale)
            state = states[segment.slot.parameter]
            if self._target(segment.slot) == MASTER and MASTER not in state:
                piece.data.copy_(memory.piece(segment, None))
                state[MASTER] = memory.state(segment.slot, MASTER)
            shard.state[piece] = self._state_of_piece(memory, segment, state)
        with torch.enable_grad():  # as in a plain step, so that the optimizer chooses its own mode
            shard.step()
        for segment, piece in zip(segments, self._pieces, strict=True):
            piece.grad = None
            self._keep(memory, segment, shard.state[piece], states[segment.slot.parameter])
            if segment.slot.parameter.dtype is torch.bfloat16:
                memory.piece(segment, None).copy_(piece.detach())

    def count(self, memory: ShardMemory, states: States) -> None:
        """Does nothing: the optimizer has counted."""

    def catch_up(self, memory: ShardMemory, groups: Sequence[Group], states: States, steps: int) -> None:
        """Makes the steps with empty pieces."""
        segments = [Segment(slot, 0, 0) for slot in memory.slots]
        pieces = [torch.nn.Parameter(torch.empty(0)) for _ in segments]
        optimizer = self._over(segments, pieces, groups)
        for segment, piece in zip(segments, pieces, strict=True):
            piece.grad = torch.empty(0)
            optimizer.state[piece] = self._state_of_piece(memory, segment, states[segment.slot.parameter])
        for _ in range(steps):
            with torch.enable_grad():
                optimizer.step()
        for segment, piece in zip(segments, pieces, strict=True):
            state = states[segment.slot.parameter]
            self._keep(memory, segment, optimizer.state[piece], state)
            if self._target(segment.slot) == MASTER:
                state[MASTER] = memory.state(segment.slot, MASTER)

    @staticmethod
    def _target(slot: Slot) -> str | None:
        return MASTER if slot.parameter.dtype is torch.bfloat16 else None

    def _over(self, segments: Sequence[Segment], pieces: Pieces, groups: Sequence[Group]) -> torch.optim.Optimizer:
        members: list[Pieces] = [[] for _ in groups]
        for segment, piece in zip(segments, pieces, strict=True):
            members[segment.slot.group].append(piece)
        described = [{**_options(group), "params": each} for group, each in zip(groups, members, strict=True)]
        return _alike(self._optimizer, described)

    def _state_of_piece(self, memory: ShardMemory, segment: Segment, state: dict[str, Any]) -> dict[str, Any]:
        kinds = {kind: memory.piece(segment, kind) for kind in self.kinds if kind in state}
        return {**{name: value for name, value in state.items() if name not in (*self.kinds, MASTER)}, **kinds}

    def _keep(self, memory: ShardMemory, segment: Segment, new: dict[str, Any], state: dict[str, Any]) -> None:
        """Takes the states that the optimizer has made or replaced."""
        for name, value in new.items():
            if name not in self.kinds:
                state[name] = value
                continue
            view = memory.piece(segment, name)
            if value.data_ptr() != view.data_ptr():
                view.copy_(value)
            state[name] = memory.state(segment.slot, name)


def _options(group: Group) -> Group:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _alike(optimizer: torch.optim.Optimizer, groups: list[Group]) -> torch.optim.Optimizer:
    """Returns an optimizer of the same class over other groups."""
    accepted = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return type(optimizer)(groups, **defaults)


def _kinds(optimizer: torch.optim.Optimizer, group: Group) -> set[str]:
    """Returns the states with a value for each element. Raises UnavailableError if a shard needs other elements.

    Trains two small parameters as a whole, and in two shards, which must give the same values.
    """
    name = type(optimizer).__name__
    if name in _WHOLE_TENSORS:
        _refuse(name, _WHOLE_TENSORS[name])
    options = _options(group)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            whole = [torch.randn(shape) for shape in _TRIAL_SHAPES]
            gradients = [[torch.randn(shape) for shape in _TRIAL_SHAPES] for _ in range(_TRIAL_STEPS)]
            trained = _Trial(optimizer, options, whole)
            shards = [_Trial(optimizer, options, _shard(whole, place)) for place in (0, 1)]
            for step in gradients:
                trained.step(step)
                for place, shard in enumerate(shards):
                    shard.step(_shard(step, place))
    except Exception as error:
        _refuse(name, f"a trial of it failed with {type(error).__name__}: {error}")
    for values, *parts in zip(trained.pieces, shards[0].pieces, shards[1].pieces, strict=True):
        joined = torch.cat([part.detach() for part in parts])
        if not torch.allclose(values.detach().flatten(), joined, rtol=1e-5, atol=1e-7):
            _refuse(name, "a trial shows that its update of an element depends on other elements or on chance")
    return trained.kinds(name)


class _Trial:
    """A training of small parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: Group, values: list[torch.Tensor]) -> None:
        self.pieces: Pieces = [torch.nn.Parameter(value.clone()) for value in values]
        self._optimizer = _alike(optimizer, [{**options, "params": self.pieces}])

    def step(self, gradients: list[torch.Tensor]) -> None:
        for piece, gradient in zip(self.pieces, gradients, strict=True):
            piece.grad = gradient.clone()
        self._optimizer.step()

    def kinds(self, name: str) -> set[str]:
        found = set()
        for piece in self.pieces:
            for kind, value in self._optimizer.state[piece].items():
                if not isinstance(value, torch.Tensor) or value.numel() == 1:
                    continue
                if value.shape != piece.shape or value.dtype is not torch.float32:
                    _refuse(name, f"its state {kind!r} is not a float32 tensor of the parameter's shape")
                found.add(kind)
        return found


def _shard(values: list[torch.Tensor], place: int) -> list[torch.Tensor]:
    """Returns the first elements of the first tensor, or all others."""
    first, second = (value.flatten() for value in values)
    return [first[:_CUT], second[:0]] if place == 0 else [first[_CUT:], second]


def _refuse(name: str, reason: str) -> NoReturn:
    raise UnavailableError(
        f"ZeroRedundancyOptimizer cannot shard {name}: {reason}; use an optimizer that updates each element by "
        "itself, or DistributedOptimizer without shard=True"
    )
