"""Updates the shard of one rank, between two barriers of all ranks of the host."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from perseus_like.collectives import Sum
from perseus_like.errors import DisagreementError, HorovodInternalError
from perseus_like.gradients.agreement import OwnerName, report_mixture
from perseus_like.host_memory.malloc_settings import keep_freed_memory
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session
from perseus_like.tables import Start

from ..compat.dynamo import not_compiled
from ..gradients.bucket_memory import GradientWatch
from ..gradients.gradient_memory import fill, has_layout_of, is_at
from ..gradients.gradient_watch import CLIP, report
from ..gradients.ownership import describe
from ..parameter_memory import is_shared, require_dense, share_parameters, unshare_all, unshare_parameters
from ..tensors import collectives
from .shard_group import ShardGroup
from .shard_memory import ShardMemory, Slot
from .shard_reduction import DDP, OWNER, ShardReduction
from .shard_rules import MASTER, Rule, check_dtype
from .shard_writes import ProgramWrites, warn_of_writers
from .step_barrier import OwnStep, StepBarrier, may_overflow

_all: weakref.WeakSet[ShardedUpdate] = weakref.WeakSet()


class ShardedUpdate:
    """The memory and the steps of one sharded optimizer. It holds the groups and states, but not the optimizer."""

    description = OWNER

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: Rule,
        process_set: ProcessSet,
        averages: bool,
        passes: int,
        names: dict[int, str],
    ) -> None:
        self._groups, self._state = optimizer.param_groups, optimizer.state
        self._rule, self._set, self._averages = rule, process_set, averages
        self._names = names
        self.reduction = ShardReduction(process_set, averages, passes)
        self._memory: ShardMemory | None = None
        self._group = ShardGroup(process_set, process_set, [])
        self._generation = session.generation
        self._common_name = OwnerName(process_set)
        self._name = ""
        self._hooks: list[Any] = []
        # The number, the slot and the gradient of each parameter, by id(). `grad` is another tensor of that memory.
        self._known: dict[int, tuple[int, Slot, torch.Tensor]] = {}
        self._watch = GradientWatch([])
        self._addresses: list[int] = []
        self._writes = ProgramWrites()
        self._has_touched = False  # the program has written to gradients, until other ranks know
        self._written = ""  # the name of a parameter that the program has written, until other ranks know
        self._error = ""  # what all ranks shall raise, likewise
        self._trains_others = False  # the program has frozen, unfrozen or added parameters, likewise
        self._partial_steps = 0  # without ranks that had joined, since all ranks met
        self._has_loaded = False  # a state, since then
        self._squares = 0.0  # the sum of the squares of this rank's sums
        self._present: tuple[int, ...] = ()  # the places in the set of the ranks that have not joined
        self._summed = False  # this rank's gradients have been replaced by sums
        self.has_spread = False  # GradScaler.unscale_() has made all ranks find the infinities of this step
        self._partially_updated = False  # parameters may be updated in part
        self._closed = False
        for name, parameter in self._named():
            check_dtype(name, parameter)
            require_dense(name, parameter)
        _all.add(self)

    @property
    def reduces_after(self) -> str:
        return DDP if self._is_reduced else ""

    @property
    def _is_reduced(self) -> bool:
        return self.reduction.is_reduced

    @property
    def has_hooks(self) -> bool:
        """Returns False if the reduction owns the parameters in place of this object."""
        return not self._closed and not self.reduction.owns

    def knows(self, parameter: torch.Tensor) -> bool:
        return any(parameter is each for group in self._groups for each in group["params"])

    def close(self) -> None:
        """Releases the memory, since the optimizer no longer exists."""
        self._closed = True
        self.reduction.close()
        self.forget_memory()

    def forget_memory(self) -> None:
        """Makes the next step allocate all memory anew."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._memory = None
        self._known = {}

    def _named(self, group: int | None = None) -> list[tuple[str, torch.Tensor]]:
        # A parameter that was frozen after its gradient was computed is trained for as long as it has one.
        return [
            (self._names.get(id(each), f"group {number}, parameter {place}"), each)
            for number, owner in enumerate(self._groups)
            for place, each in enumerate(owner["params"])
            if group in (None, number) and (each.requires_grad or (each.grad is not None and id(each) in self._known))
        ]

    # --- memory

    def prepare(self) -> None:
        """Moves parameters, gradients and states to memory of the host. Collective."""
        named = self._named()
        if self._generation != session.generation:
            self._common_name, self._generation = OwnerName(self._set, is_renewed=True), session.generation
        self._name = self._common_name.meet(self._descriptions(), OWNER)
        group = self._group = ShardGroup.of(self._set)
        self.reduction.choose(self, named, group.has_several_hosts)
        group.spread_first_values(named, self._name)
        share_parameters(named, group.host)
        self.forget_memory()
        groups = [self._named(number) for number in range(len(self._groups))]
        owned = [(own, each) for own, members in zip(self._groups, groups, strict=True) for _, each in members]
        used = {kind for own, each in owned for kind in self._rule.used(own, each)}
        kinds = [kind for kind in (*self._rule.kinds, MASTER) if kind in used]
        options = [f"{self._rule.name} with the states {kinds}"]
        memory = ShardMemory(groups, kinds, group.host, options, self._is_reduced)
        # Parameters were in the heap of this process, and the gradients of a step are.
        keep_freed_memory(max((view.nbytes for view in memory.gradients), default=0), 2 * memory.row_bytes)
        with torch.no_grad():
            self._watch = GradientWatch([slot.parameter for slot in memory.slots])
            for number, (slot, place) in enumerate(zip(memory.slots, memory.gradients, strict=True)):
                parameter = slot.parameter
                self._known[id(parameter)] = (number, slot, place)
                if self._is_reduced:
                    continue
                if parameter.grad is not None:
                    self._adopt_gradient(parameter)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._make_hook()))  # type: ignore[no-untyped-call]
            self._memory, self._partial_steps, self._has_loaded = memory, 0, False
            if memory.index == 0:
                self._adopt_states()
            self._step_barrier(memory)
            self._adopt_states(copies=memory.index == 0)
        self._summed = False
        self._addresses = [slot.parameter.data_ptr() for slot in memory.slots]
        self._writes.note((slot.parameter for slot in memory.slots), after_step=False)

    def _descriptions(self) -> list[str]:
        return [describe(*each) for each in self._named()]

    def _ensure(self) -> ShardMemory:
        if self._partially_updated:
            raise RuntimeError(
                "ZeroRedundancyOptimizer: a rank was lost during a step, so that parameters may be updated in part; "
                "restore the last commit, or load the states of the model and the optimizer, before the next step()"
            )
        if self._memory is None or self._generation != session.generation:
            self.prepare()
        memory = self._memory
        assert memory is not None
        trained = [parameter for _, parameter in self._named()]
        self._trains_others = len(trained) != len(memory.slots) or not all(map(is_shared, trained))
        for slot, address in zip(memory.slots, self._addresses, strict=True):
            if slot.parameter.data_ptr() != address and not self._trains_others:
                name = self._names.get(id(slot.parameter), "a parameter")
                self._error = (
                    f"ZeroRedundancyOptimizer: {name!r} has left the memory that the ranks of this host share (by "
                    ".data = … or .to(…)); copy values into the parameter instead"
                )
        return memory

    def leave(self, is_partially_updated: bool) -> None:
        """Gives this rank private parameters and states, so that it can restore them whatever other ranks do."""
        memory = self._memory
        if memory is None:
            return
        unshare_parameters([slot.parameter for slot in memory.slots])
        for slot, view in zip(memory.slots, memory.gradients, strict=True):
            if slot.parameter.grad is not None and is_at(slot.parameter.grad, view):
                slot.parameter.grad = None
            state = self._state.get(slot.parameter, {})
            state.update({key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)})
        self._partially_updated = is_partially_updated
        self.forget_memory()

    def reduce(self) -> None:
        """Blocks until the gradients are those of all ranks, if they are reduced before the update. Collective."""
        self._ensure()
        self.reduction.finish(self._named())

    # --- gradients and states

    def _make_hook(self) -> Callable[[torch.Tensor], None]:
        this = weakref.ref(self)

        def hook(parameter: torch.Tensor) -> None:
            update = this()
            if update is not None:
                update._adopt_gradient(parameter)
                update._watch.note(update._known[id(parameter)][:1])

        return hook

    @not_compiled  # hooks run inside compiled training steps
    def _adopt_gradient(self, parameter: torch.Tensor) -> None:
        """Copies a gradient that autograd has allocated to the memory of the host, if other ranks need it.

        A gradient with a graph stays where it is, too: the program may need it (`backward(create_graph=True)`).
        """
        if self._summed:
            raise RuntimeError(
                "backward() was called between clip_grad_norm_() and step() of a sharded optimizer; call "
                "clip_grad_norm_() after the last backward pass of a step"
            )
        gradient, (_, slot, place) = parameter.grad, self._known[id(parameter)]
        if gradient is None or is_at(gradient, place):
            return
        if self._memory is not None and self._memory.stays(slot) and has_layout_of(gradient, place):
            return
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        with torch.no_grad():
            fill(place, gradient.detach())
        if not gradient.requires_grad:
            parameter.grad = place.data

    def adopt_unscaled(self) -> None:
        """Takes the gradients as a GradScaler has left them, as if they had just been computed."""
        self.has_spread = True
        self._watch.note_again()

    def discard_gradients(self) -> None:
        """Forgets what was computed since the last step."""
        self._watch.clear_notes()
        self.discard_sums()

    def discard_sums(self) -> None:
        self._summed = self.has_spread = False
        if self._memory is not None:
            self._memory.staying.clear()

    def adopt_loaded(self) -> None:
        """Copies states that the program has loaded to the memory of the host."""
        self._partially_updated, self._has_loaded, self.has_spread = False, True, False
        self._watch.clear_notes()
        self.reduction.abandon()
        if self._memory is not None and self._generation == session.generation:
            self._adopt_states()

    def _adopt_states(self, copies: bool = True) -> None:
        memory = self._memory
        assert memory is not None
        for slot in memory.slots:
            self._rule.adopt(memory, slot, self._groups[slot.group], self._state, copies)

    def _complete(self, memory: ShardMemory) -> None:
        """Makes every gradient of this rank ready for the update. Missing ones become zeros."""
        memory.staying.clear()
        for slot, view in zip(memory.slots, memory.gradients, strict=True):
            gradient = slot.parameter.grad
            if gradient is None:
                view.zero_()
            elif memory.stays(slot) and has_layout_of(gradient, view):
                memory.staying[id(slot.parameter)] = gradient.detach()
            elif self._is_reduced:
                fill(view, gradient.detach())
            else:
                self._adopt_gradient(slot.parameter)
        self._adopt_states()

    # --- steps

    def step(self, loss_scale: float, found_infinity: bool, clip: float) -> None:
        """Updates the parameters once. Collective."""
        self._common_name.enter_thread()
        memory = self._ensure()
        try:
            self.reduction.finish(self._named())
            self._written = self._writes.first(self._named())
            self._check_gradients()
            if not self._summed:
                memory, skips = self._gather(memory, found_infinity, loss_scale)
            else:
                skips = self._step_barrier(memory, found_infinity, loss_scale)
            if not skips:
                self._refresh_masters(memory)
                is_summed = self._summed or self._is_reduced
                scale = clip / loss_scale / self._divisor()
                self._rule.update(memory, self._groups, self._state, scale, is_summed)
            self.discard_sums()
            self._step_barrier(memory)
            self.reduction.begin_step()
        except DisagreementError:
            raise
        except HorovodInternalError:
            self.leave(is_partially_updated=True)
            raise
        if not skips:
            self._count(memory)

    def _check_gradients(self) -> None:
        """Notices what the program has written to gradients since they were computed."""
        written, removed, _ = self._watch.changes()
        self._watch.clear_notes()
        if changed := written | removed:
            names = [
                name for name, each in self._named() if id(each) in self._known and self._known[id(each)][0] in changed
            ]
            self._error, self._has_touched = report(OWNER, names, CLIP), True

    def _gather(
        self, memory: ShardMemory, found_infinity: bool = False, loss_scale: float = 1.0
    ) -> tuple[ShardMemory, bool]:
        """Waits until the gradients of all ranks are ready. Returns the memory, which is new if all ranks train other
        parameters now, and whether a rank has found an infinity.
        """
        self._complete(memory)
        skips = self._step_barrier(memory, found_infinity, loss_scale)
        if self._trains_others:
            self._trains_others = False
            self.prepare()
            assert self._memory is not None
            memory = self._memory
            self._complete(memory)
            self._step_barrier(memory)
        if not self._is_reduced and not self._all_are_present():  # other ranks now need gradients that stayed
            self._complete(memory)
            self._step_barrier(memory)
        return memory, skips

    def norm(self) -> float:
        """Returns the norm of the reduced gradients. This rank's shard of the gradients becomes their sum."""
        self._common_name.enter_thread()
        memory = self._ensure()
        try:
            self.reduction.finish(self._named())
            if not self._summed:
                self._check_gradients()
                memory, _ = self._gather(memory)
                self._sum(memory)
            self.reduction.require_unchanged()
            squares = torch.tensor([self._squares], dtype=torch.float64)
            name = f"{self._name}.norm"
            total = collectives.reduce_in_place(squares, Sum, name, process_set=self._set, start=Start.call).result()
        except DisagreementError:
            raise
        except HorovodInternalError:
            self.leave(is_partially_updated=True)
            raise
        hosts = self._group.hosts_with(self._present)  # each of them adds the squares of all elements
        norm: float = (float(total[0]) / hosts) ** 0.5 / self._divisor()
        return norm

    def _sum(self, memory: ShardMemory) -> None:
        """Makes this rank's shard of its row the sum over all ranks, and notes the squares. Idempotent in a step."""
        if self._summed:
            return
        segments = self._rule.segments(memory, self._state)
        ranks = [memory.index] if self._is_reduced else memory.present
        self._squares = memory.sum_gradients(segments, ranks)
        self._summed = not self._is_reduced  # the sums of this rank's own gradients are these gradients

    def _divisor(self) -> int:
        """Returns the number by which sums become the gradients of the step."""
        return (self._set.size() or 1) if self._averages and not self._is_reduced else 1

    def spread_infinities(self) -> None:
        """Makes a GradScaler of every rank find infinities if one rank has them, or their sum may. Collective.

        The sum of the ranks' largest gradients limits every sum. It costs no pass over the gradients of other ranks.
        """
        self._common_name.enter_thread()
        self.reduce()
        if self._is_reduced:
            return
        parameters = [each for _, each in self._named() if each.numel()]
        if parameters and all(each.grad is None for each in parameters):
            parameters[0].grad = torch.zeros_like(parameters[0])  # GradScaler raises an error without any
        gradients = [each.grad for each in parameters if each.grad is not None]
        with torch.no_grad():
            largest = [float(torch.linalg.vector_norm(each, float("inf"))) for each in gradients]
            shares = [each / torch.finfo(of.dtype).max for each, of in zip(largest, gradients, strict=True)]
            bad = not all(share <= 1.0 for share in shares)
            with self._together() as (name, number):
                found = may_overflow(self._set, name, number, 2.0 if bad else max(shares, default=0.0))
            if found and not bad and gradients:
                gradients[0].data.fill_(float("inf"))  # not counted as a change

    def _step_barrier(self, memory: ShardMemory, found_infinity: bool = False, loss_scale: float = 1.0) -> bool:
        """Blocks until all ranks are here. Returns whether one of them has found an infinity.

        The elements are divided among the ranks that have not joined. One that comes back counts the steps it missed.
        """
        written, self._written = self._written, ""
        error, self._error = self._error, ""
        touched, self._has_touched = self._has_touched, False
        mine = OwnStep(
            found_infinity,
            loss_scale,
            self._partial_steps,
            self._has_loaded,
            has_written=bool(written),
            has_failed=bool(error),
            trains_others=self._trains_others,
            has_touched=touched,
        )
        with self._together() as (name, number):
            barrier = StepBarrier.of(self._set, name, number, mine)
        if barrier.touched and not touched:
            ranks = [(self._set.ranks or [0])[place] for place in barrier.touched]
            subject = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} other ranks"
            error = error or report(OWNER, [], CLIP, subject)
        barrier.check(error, self._set)
        writers = len(self._group.places_on_host(barrier.writers))
        if written and writers > 1:
            warn_of_writers(written, writers)
        self._present = barrier.present
        memory.present = self._group.places_on_host(barrier.present)
        if self._all_are_present():
            missed = 0 if barrier.has_loaded else barrier.partial_steps - self._partial_steps
            if missed:
                self._rule.catch_up(memory, self._groups, self._state, missed)
            self._partial_steps, self._has_loaded = 0, False
        return barrier.found_infinity

    @contextlib.contextmanager
    def _together(self) -> Iterator[tuple[str, int]]:
        """Yields the name of a request at which ranks of different steps meet, and the number of this optimizer.

        If they meet, all ranks get a DisagreementError that says what each of them steps.
        """
        name, number = self._common_name.name, self._common_name.number
        assert number is not None
        try:
            yield f"{name}.step", number
        except DisagreementError:
            report_mixture(name, OWNER, self._descriptions(), False, [], self._set)

    def _all_are_present(self) -> bool:
        return len(self._present) == (self._set.size() or 1)

    def _refresh_masters(self, memory: ShardMemory) -> None:
        """Takes the values of bfloat16 parameters that the program has changed since the last step."""
        changed = {
            id(slot.parameter)
            for slot in memory.slots
            if slot.parameter.dtype is torch.bfloat16 and self._writes.is_written(slot.parameter)
        }
        if not changed:
            return
        for slot in memory.slots:
            if id(slot.parameter) in changed and MASTER in self._state[slot.parameter]:
                self._state[slot.parameter][MASTER].copy_(slot.parameter)
        self._step_barrier(memory)  # no rank updates masters that another rank still writes

    def _count(self, memory: ShardMemory) -> None:
        self._partial_steps += not self._all_are_present()
        self._rule.count(memory, self._state)
        for slot in memory.slots:
            torch.autograd.graph.increment_version(slot.parameter)
        self._writes.note((slot.parameter for slot in memory.slots), after_step=True)


def leave_all() -> None:
    """Gives this rank private copies of everything that it shares with other ranks."""
    for update in list(_all):
        update.leave(is_partially_updated=False)
    unshare_all()
