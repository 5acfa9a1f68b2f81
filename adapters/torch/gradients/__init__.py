"""Keeps the gradients of one model in buckets of arena memory, and reduces each bucket as it becomes ready.

Each `p.grad` is a view of its bucket. The first backward pass only records the order in which gradients are computed.
After it the ranks agree on an order and lay out the buckets in it. From then on, a bucket is reduced when it is full.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NoReturn

import torch

from perseus_like.collectives import PersistentAllreduce
from perseus_like.collectives.compression import is_called, wire_of
from perseus_like.collectives.handle import error_of
from perseus_like.errors import DisagreementError, HorovodInternalError
from perseus_like.gradients import GradientRules
from perseus_like.gradients.agreement import (
    ChangeExchange,
    CommonChanges,
    OwnChanges,
    OwnerName,
    described,
    report_mixture,
)
from perseus_like.gradients.buckets import FIRST_BUCKET_BYTES, LARGE_BYTES, Layout, PassCounter, lay_out
from perseus_like.host_facts import usable_cores
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session
from perseus_like.tables import Start

from ..compat.dynamo import is_compiling, not_compiled
from ..feedback import FeedbackCompressor
from ..sparse import as_sparse, assign_gradient, sparse_allreduce_async
from ..tensors import tensors
from .bucket_memory import BucketMemory, Changes, Contents
from .gradient_memory import Kind, dense_strides, member_of
from .gradient_watch import ALONE, Steps, report
from .ownership import ReducerPolicy, describe, register, require_sole_owner
from .reduce_fallback import send_compressed, send_late

_log = logging.getLogger("perseus_like")
Hook = Callable[[torch.Tensor], None]
# Communicates a bucket in place of the reduction. Returns a function that waits for the end.
Communicate = Callable[[Contents], Callable[[], object]]


class GradientBuckets:
    """The buckets of one owner. They hold the parameters but not the owner, which hooks must not keep alive."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        rules: GradientRules,
        passes_per_step: int,
        policy: ReducerPolicy | None = None,
    ) -> None:
        self._policy = policy or ReducerPolicy()
        self._names: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._known: dict[int, int] = {}  # the index of each parameter, by id()
        self._groups = rules.groups_of([id(parameter) for _, parameter in parameters])
        self._rules = rules
        self._compresses = is_called(rules.compression)
        self._feedback = _fresh(rules.compression)
        self._generation = session.generation
        # The program's thread calls its `enter_thread` before `synchronize`, which autograd may call in another thread.
        self.common_name = OwnerName(rules.process_set)
        self._name = ""  # of its requests, once the ranks have agreed
        self._layout: Layout[Kind] | None = None
        self._agreed = False  # all ranks agreed on the layout, and none had joined
        self._memory = BucketMemory(self._parameters, self._names, rules.process_set, rules.sparse_as_dense)
        self._in_flight: list[Callable[[], object]] = []
        self._requests: dict[int, PersistentAllreduce[torch.Tensor]] = {}  # by bucket
        self._submitted: list[str] = []  # the names of those in flight that another rank can make fail
        self._sparse: dict[int, int] = {}  # the sparse gradients that all ranks have agreed on
        self._changes = ChangeExchange(rules.process_set)
        self._hooks: list[Any] = []
        self._communicate: Communicate | None = None
        learns = self._policy.learns_passes
        self.passes = PassCounter(
            0, passes_per_step, self._send, self._policy.too_many, learns, self._memory.note_bucket
        )
        self.add(parameters)
        register(self)

    def knows(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._known

    def add(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Adds parameters. The ranks agree again when the step ends."""
        for name, parameter in parameters:
            index = len(self._parameters)
            self._names.append(name)
            self._parameters.append(parameter)
            self._known[id(parameter)] = index
            self._memory.views.append(None)
            self._hooks.append(_hooked(parameter, self._make_hook(index)))
        self.passes.grow(len(parameters))
        self._forget_layout()

    def close(self) -> None:
        """Releases the parameters, since the owner no longer exists."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._requests.clear()
        self._memory.release()

    @property
    def description(self) -> str:
        return self._policy.name

    @property
    def reduces_after(self) -> str:
        return ""

    @property
    def has_hooks(self) -> bool:
        """True while hooks are installed on the parameters."""
        return bool(self._hooks)

    def set_passes_per_step(self, passes: int) -> None:
        """Takes effect at once, or at the next step if gradients of this one may be in flight."""
        self.passes.passes_per_step = passes
        if not self.passes.ready:
            self.passes.reset()

    def communicate_by(self, communicate: Communicate) -> None:
        """Takes effect at the next bucket. All ranks submit their buckets in the same order."""
        self._communicate = communicate
        self.passes.holds = False

    def show(self, index: int) -> None:
        """Sets the parameter's gradient to the reduced one, which other ranks have computed."""
        self._memory.show(index)

    def are_in_place(self, indices: Iterable[int]) -> bool:
        """Returns whether these gradients have the memory of their buckets."""
        return self._memory.are_in_place(indices)

    def scale(self, factor: float) -> None:
        """Multiplies the reduced gradients by a factor."""
        self._memory.scale(factor)

    def rescale(self, factor: float) -> None:
        """Multiplies what a compression has left out by a factor, because gradients have another scale now."""
        if self._feedback is not None:
            self._feedback.rescale(factor)

    def abandon(self) -> None:
        """Discards gradients that are being reduced. Blocks until they are, because their memory is in use."""
        try:
            self._wait()
        except HorovodInternalError as error:
            _log.debug("forgotten gradients had failed: %s", error)
        finally:
            self._memory.abandon()
            self.passes.reset()
            self._memory.clear_notes()

    def synchronize(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        then: Callable[[], None] | None = None,
        steps: Steps | None = None,
        error: str = "",
    ) -> None:
        """Reduces the remaining gradients, with zeros for missing ones, and blocks until all are reduced.

        `parameters`: all of the owner's, also those that are frozen or new. `then`: called when all are there; may
        `show` and `scale`. `steps`: what the program has done with the last reduced gradients; None if that is unknown.
        `error`: the text of this rank's error, which ends the step of all ranks.
        """
        try:
            if self._generation != session.generation:
                self._begin_session()
                steps = None  # new ranks have made none
            with torch.no_grad():
                changes = self._memory.changes(self._memory.are_in_place)
                if self._layout is None:
                    self._agree()
                self._complete(changes.intact)
                mine = self._own_changes(parameters, changes, steps, error)
                self._changes.send(self.common_name, mine)  # before the last bucket, for which the thread waits
                self.passes.send_rest()
                if not self._changes.are_together():
                    self._report_mixture()
                if self._changes.writers and not mine.written:
                    report(self._policy.name, [], subject=self._changes.other_writers(mine))
                difference = None
                if self._changes.steps_differ or self._changes.some_edited:
                    difference = self._report_steps(mine, steps)
                if self._sparse:
                    self._start_sparse()
                self._wait()
                common = self._changes.receive(self._name, mine, len(parameters))
                late: list[tuple[str, torch.Tensor]] = []
                if common.new or mine.removed or common.removed_by_some or mine.frozen != common.frozen:
                    late = self._apply(common, mine, parameters)
                if then is not None:
                    then()
                if self._memory.unfit:
                    self._memory.convert()
        except BaseException:
            try:
                self._wait()
            finally:
                self._changes.discard()
            raise
        finally:
            self.passes.reset()
            self._memory.clear_notes()
        if late:
            self._changes.forget()
            self.add(late)
        elif common.misfits or not self._agreed:
            self._forget_layout()
        self.passes.synchronized = True
        if difference is not None:
            raise difference

    def _make_hook(self, index: int) -> Hook:
        views, adopt, note = self._memory.views, self._memory.adopt, self._memory.note
        arrived = self.passes.arrived
        counts = self._policy.counts

        def hook(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            view = views[index]
            if gradient is not view:
                adopt(index, gradient)
            if counts is None or counts(index):
                if view is None and not is_compiling():
                    note((index,))
                try:
                    arrived(index)
                except AssertionError as error:
                    self._refuse(index, error)

        return hook

    def _refuse(self, index: int, error: AssertionError) -> NoReturn:
        """Raises the error of a gradient that was computed too often. Other ranks get it in their step.

        Blocks until they step. A DistributedDataParallel raises it at once: it meets the others in its next forward.
        """
        if self._policy.fills_in:
            text = f"{self._policy.name}, gradient of {self._names[index]!r}: {error}"
            _log.error("%s; this rank waits until the other ranks step, and they fail too", text)
            self._memory.clear_notes()  # the pass has written to gradients, not the program
            error_of(lambda: self.synchronize([], error=text))
        raise error

    @not_compiled  # hooks run inside compiled training steps
    def _send(self, number: int) -> None:
        if self._generation != session.generation:  # the ranks agreed on the layout in an earlier session
            return
        memory, rules = self._memory, self._rules
        members, row = memory.members[number], memory.rows[number]
        if not all(map(memory.noted.__contains__, members)):
            memory.note_bucket(number)
        name = f"{self._name}.{number}"
        if self._communicate is not None:
            self._in_flight.append(self._communicate(memory.contents(number)))
            return
        if self._compresses:
            gradients = {index: view for index in members if (view := memory.views[index]) is not None}
            self._in_flight.append(send_compressed(name, gradients, rules, self._feedback))
            return
        request = self._requests.get(number)
        if request is None or request.address != row.data_ptr():  # `share_memory_` of a view moves the whole row
            wire = wire_of(rules.compression)
            contents = described(self._policy.name, self._descriptions())
            request = PersistentAllreduce(tensors, row, rules.op, *rules.factors, rules.process_set, wire, contents)
            self._requests[number] = request
        waits = self.passes.holds or number + 1 == len(memory.rows)  # the caller waits for the last one
        self._in_flight.append(request.submit(name, Start.waiter if waits else Start.engine).result)
        self._submitted.append(name)

    def _wait(self) -> None:
        """Waits for all, then raises the first error. Memory must not change while a bucket is being reduced."""
        in_flight, self._in_flight = iter(self._in_flight), []
        self._submitted.clear()
        with torch.no_grad():
            try:
                for finish in in_flight:
                    finish()
            except Exception:
                for finish in in_flight:
                    error_of(finish)
                raise

    def _report_mixture(self) -> NoReturn:
        """Raises DisagreementError on all ranks, which step different owners."""
        descriptions = self._descriptions()
        requests, name, process_set = list(self._submitted), self.common_name.name, self._rules.process_set
        # No other rank has submitted what a hook or a compression has. It stays in flight.
        in_flight, self._in_flight = self._in_flight, []
        try:
            report_mixture(name, self._policy.name, descriptions, False, requests, process_set)
        except DisagreementError:
            if len(requests) == len(in_flight):
                self._in_flight = in_flight
                error_of(self._wait)
            raise

    def _own_changes(
        self, parameters: Sequence[tuple[str, torch.Tensor]], changes: Changes, steps: Steps | None, error: str
    ) -> OwnChanges:
        """Returns what the program has done to the owner's parameters, and `error` or, if it is "", its error.

        Warns of gradients that the program has written to. Call it after `_complete`.
        """
        names = [self._names[index] for index in sorted(changes.written)]
        refused = report(self._policy.name, names) if names else ""
        frozen, removed, new = [], [], []
        for position, (_, parameter) in enumerate(parameters):
            index = self._known.get(id(parameter))
            if index is None:
                if parameter.requires_grad:
                    new.append(position)
                continue
            if not parameter.requires_grad:
                frozen.append(position)
            if index in changes.removed:
                removed.append(position)
        return OwnChanges(
            *(frozenset(frozen), frozenset(removed), frozenset(new), error or refused),
            misfits=bool(self._memory.unfit),
            written=bool(names),
            steps=steps.made if steps else None,
            edited=bool(steps and steps.edited),
        )

    def _report_steps(self, mine: OwnChanges, steps: Steps | None) -> Exception | None:
        """Returns the error of ranks that have used the last reduced gradients in different numbers of steps.

        Warns of gradients that some ranks have changed alone; returns an error if that is to be one.
        """
        if self._changes.steps_differ:
            name = self.common_name.name
            text = self._changes.difference_of_steps(name, self._policy.name, self._descriptions(), mine)
            error: Exception = DisagreementError(text)
            return error
        names = [self._names[index] for index in sorted(steps.edited if steps else ())]
        text = report(self._policy.name, names, ALONE, "the program" if names else "the program of another rank")
        return RuntimeError(text) if text else None

    def _apply(
        self, common: CommonChanges, mine: OwnChanges, parameters: Sequence[tuple[str, torch.Tensor]]
    ) -> list[tuple[str, torch.Tensor]]:
        """Makes the step of a rank that has changed something that of all ranks. Returns the new parameters."""
        late = [parameters[position] for position in common.new]
        late = [(name, parameter) for name, parameter in late if id(parameter) not in self._known]
        if late:
            self._in_flight += [send_late(f"{self._name}.late.{name}", each, self._rules) for name, each in late]
            self._wait()
        for position in mine.frozen - common.frozen:  # other ranks train it
            self._memory.show(self._known[id(parameters[position][1])])
        for position in mine.removed:
            parameter = parameters[position][1]
            parameter.grad = None
            if position not in common.removed:
                self._memory.show(self._known[id(parameter)])
        if some := common.removed_by_some - common.removed:
            error = report(self._policy.name, [parameters[position][0] for position in sorted(some)])
            if error:
                raise RuntimeError(error)
        return late

    def _complete(self, intact: Set[int]) -> None:
        """Copies every gradient into its bucket, also if its passes are not complete. Missing ones become zeros.

        `intact`: gradients that nobody has touched since they were in their places.
        """
        memory = self._memory
        if memory.taken:
            memory.gather()
        for index, (parameter, view) in enumerate(zip(self._parameters, memory.views, strict=True)):
            gradient = parameter.grad
            if view is None or (gradient is view and (index in intact or memory.are_in_place((index,)))):
                continue
            view = memory.renewed_view(index)
            assert view is not None
            if self.passes.incomplete(index) and gradient is not None:
                memory.adopt(index, gradient)
                continue
            if not self.passes.incomplete(index):
                # It was replaced after its bucket was reduced; the bucket has the value of all ranks.
                if gradient is not None:
                    memory.assign(index, view)
                continue
            view.zero_()
            # A parameter that was frozen meanwhile gets no gradient, but its elements of the bucket are reduced.
            if parameter.requires_grad and self._policy.fills_in:
                memory.assign(index, view)

    def _start_sparse(self) -> None:
        rules = self._rules
        for index, dimensions in sorted(self._sparse.items()):
            parameter = self._parameters[index]
            gradient = as_sparse(parameter, dimensions)
            name = f"{self._name}.sparse.{index}"
            finish = sparse_allreduce_async(gradient, name, rules.op, rules.process_set)
            self._in_flight.append(assign_gradient(parameter, finish))

    def _begin_session(self) -> None:
        self._generation = session.generation
        self.common_name = OwnerName(self._rules.process_set, is_renewed=True)
        self._feedback = _fresh(self._rules.compression)
        self._in_flight.clear()
        self._memory.drop_memory()
        self._changes.forget()
        self._forget_layout()

    def _forget_layout(self) -> None:
        self._layout = None
        self._requests.clear()
        self._memory.forget()
        self._memory.sparse_seen.update(self._sparse)
        self._sparse = {}
        self.passes.learn()

    def _agree(self) -> None:
        """Finds one layout for all ranks. If a rank has joined, the others use the layout for one step."""
        require_sole_owner(self, list(zip(self._names, self._parameters, strict=True)))
        for index, parameter in enumerate(self._parameters):
            self._memory.adopt(index, parameter.grad)
        arrivals = list(dict.fromkeys(self.passes.arrivals))
        descriptions = self._descriptions()
        agreement = self.common_name.agree(descriptions, arrivals, self._memory.sparse_seen, self._policy.name)
        self._changes.name_owner(self._policy.name, descriptions)
        self._name = f"{self.common_name.name}.{agreement.number}"
        self._agreed = agreement.complete
        self._sparse = agreement.sparse
        rest = reversed(range(len(self._parameters)))
        order = [index for index in dict.fromkeys([*agreement.order, *rest]) if index not in agreement.sparse]
        self._lay_out(order)

    def _descriptions(self) -> list[str]:
        return [self._describe(index) for index in range(len(self._parameters))]

    def _describe(self, index: int) -> str:
        parameter = self._parameters[index]
        text = f"{describe(self._names[index], parameter)} with strides {list(dense_strides(parameter))}"
        return text if self._feedback is None else f"{text} compressed by {self._feedback}"

    def _lay_out(self, order: Sequence[int]) -> None:
        limit = self._policy.bucket_bytes
        members = {index: member_of(self._parameters[index]) for index in order}
        self._layout = lay_out(members, order, self._groups, min(FIRST_BUCKET_BYTES, limit), limit, LARGE_BYTES)
        self._memory.use(self._layout)
        self.passes.use(self._layout)
        on_host = all(device.type == "cpu" for _, device in self._layout.totals)
        holds = on_host and self._communicate is None
        self.passes.holds = holds and _all_cores_compute(self._rules.process_set)


def _hooked(parameter: torch.Tensor, hook: Hook) -> Any:
    """Registers a hook, also if this rank has frozen the parameter."""
    trains = parameter.requires_grad
    handle = parameter.requires_grad_().register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(trains)
    return handle


def _fresh(compression: Any) -> FeedbackCompressor | None:
    return compression.fresh() if isinstance(compression, FeedbackCompressor) else None


def _all_cores_compute(process_set: ProcessSet) -> bool:
    """Returns True if all ranks are on one host with one core each.

    A reduction during the backward pass would then only take turns with it. If a rank has several cores, the backward
    pass leaves some of them idle. Between hosts, the network works by itself.
    """
    core = session.core
    ranks, cores = core.local_size(), usable_cores()
    if ranks < (process_set.size() or 1) or ranks < core.size():
        return False
    is_shared = cores == os.cpu_count()  # the ranks are not bound to cores of their own
    return cores == 1 or (is_shared and cores <= ranks)
