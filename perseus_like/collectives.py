"""The rules of every collective's arguments, once for all frameworks: operations, names, roots, splits, groups."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeVar

from .compression import wire_dtype
from .errors import UnsupportedOpError
from .handle import InFlight, Pending
from .process_sets import GLOBAL, ProcessSet, global_process_set
from .request_names import names
from .session import session
from .tensor import AS_IT_IS, DType, Start, TensorAdapter, View

T = TypeVar("T")
Finish = Callable[[Any], Any]


class Op(IntEnum):
    """What an allreduce does; Horovod's numbers."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum, Min, Max, Product = Op

_ADASUM = Op.Adasum
# By the numbers of Op; a dictionary would ask each member for its hash, which is Python. Adasum is a verb of its own.
_CORE_OPS = ((0, True), (0, False), (0, False), (1, False), (2, False), (3, False))


def core_op(op: Op) -> tuple[int, bool]:
    """The core's number of the operation, and whether to divide by the number of ranks; Sum's for Adasum."""
    return _CORE_OPS[op]


def resolve_op(op: int | None, average: bool | None = None) -> Op:
    """`op`, or what the deprecated `average` means; Average when neither is given."""
    if op is None:
        return Op.Sum if average is False else Op.Average
    if average is not None:
        raise ValueError("op and average were both given; average is deprecated, use op alone")
    if type(op) is Op:
        return op
    try:
        return Op(op)
    except ValueError:
        raise ValueError(f"op is {op!r}, which is none of {', '.join(Op.__members__)}") from None


def gradient_rules(op: int, predivide_factor: float, known: Sequence[Op]) -> tuple[Op, tuple[float, float]]:
    """How gradients are reduced: by which of `known`, and the factors before and after. ValueError for others."""
    chosen = resolve_op(op)
    if chosen not in known:
        names = [each.name for each in known]
        raise ValueError(f"gradients are reduced by {', '.join(names[:-1])} or {names[-1]}, not {chosen.name}")
    if predivide_factor != 1.0 and chosen is not Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    return chosen, (1.0 / predivide_factor, predivide_factor)


def member_id(process_set: ProcessSet) -> int:
    """The core's id of a set. ValueError if it is not registered, or if this rank is not in it."""
    if process_set is global_process_set:
        return GLOBAL
    number = process_set.require_id()
    if not process_set.included():
        raise ValueError(f"rank {session.core.rank()} is not in {process_set} and cannot take part in its collectives")
    return number


def root_within(root_rank: int, process_set: ProcessSet) -> int:
    """The rank in the set of a root given by its rank in the job. ValueError if it is not there."""
    if process_set.process_set_id != GLOBAL:
        return process_set.rank_within(root_rank)
    if not 0 <= root_rank < session.core.size():
        raise ValueError(f"root_rank is {root_rank}, but ranks go from 0 to {session.core.size() - 1}")
    return root_rank


def checked_splits(splits: Sequence[int] | None, rows: int, process_set: ProcessSet) -> list[int] | None:
    """The rows for each rank as plain integers. ValueError when they do not fit the set or the tensor."""
    count = process_set.size() or 1
    if splits is None:
        if rows % count:
            raise ValueError(f"alltoall without splits: {rows} rows cannot be shared out equally to {count} ranks")
        return None
    try:
        plain = [operator.index(split) for split in splits]
    except TypeError:
        raise ValueError(f"alltoall: splits must be whole numbers, not {splits}") from None
    if len(plain) != count:
        raise ValueError(f"alltoall: {len(plain)} splits for {count} ranks")
    if min(plain) < 0:
        raise ValueError(f"alltoall: splits {plain} must not be negative")
    if sum(plain) > rows:
        raise ValueError(f"alltoall: splits {plain} want {sum(plain)} rows of a tensor that has {rows}")
    return plain


def group_wire(verb: str, dtypes: Sequence[int], wire: DType | None) -> int:
    """The core's `wire_dtype` for tensors that travel as one. ValueError where it would differ between them."""
    if wire is None:
        return AS_IT_IS
    kinds = {wire_dtype(wire, dtype) for dtype in dtypes}
    if len(kinds) > 1:
        raise ValueError(f"{verb} with compression: the tensors must all be float32 or float64, or none of them")
    return kinds.pop()


def scattered_rows(rows: int, process_set: ProcessSet) -> int:
    """How many rows of a reduce-scatter are this rank's: the first ranks have one more where they do not divide."""
    each, more = divmod(rows, process_set.size() or 1)
    return each + ((process_set.rank() or 0) < more)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until all ranks of the set are here."""
    set_id = member_id(process_set)
    names.submit("barrier", None, set_id, session.core.barrier, set_id)[1].wait()


def join() -> int:
    """Blocks until every rank has joined, taking part in the others' allreduces with zeros; gives the last to join."""
    handle = session.core.join(GLOBAL)
    handle.wait()
    names.reset(GLOBAL)  # ranks that joined early have made fewer calls
    return int(handle.number())


class Collectives(Generic[T]):
    """The verbs on one framework's tensors. Each starts the work and returns at once.

    Outputs are new tensors unless `in_place`. Non-contiguous tensors travel by a contiguous copy.
    """

    def __init__(self, tensors: TensorAdapter[T]) -> None:
        self._tensors = tensors

    def allreduce(
        self,
        tensor: T,
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        wire: DType | None = None,
        in_place: bool = False,
        wait: bool = False,
    ) -> Pending[T]:
        """`wait`: it is complete on return, if it has a name; no thread is woken for it."""
        source, target, finish = self._prepare(tensor, in_place)
        inputs = [self._tensors.view(source)]
        outputs = None if target is source else [self._tensors.view(target)]
        kept = (source, target)
        full, handle = self._reduce(
            "allreduce", inputs, outputs, op, name, prescale, postscale, process_set, wire, kept, wait
        )
        return Pending(full, handle, target, finish)

    def reduce_in_place(
        self,
        tensor: T,
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        wire: DType | None = None,
        wait: bool = False,
    ) -> InFlight[T]:
        """`allreduce` in place, by a shorter way where there is a name and nothing to convert.

        For gradients one by one: a training step does this for every small tensor.
        """
        tensors = self._tensors
        if name is None or wire is not None or op is _ADASUM or tensors.contiguous(tensor) is not tensor:
            return self.allreduce(tensor, op, name, prescale, postscale, process_set, wire, in_place=True, wait=wait)
        number, average = _CORE_OPS[op]
        set_id = GLOBAL if process_set is global_process_set else member_id(process_set)
        full, inputs = f"allreduce.{name}", [tensors.view(tensor)]
        begun = Start.call if wait else Start.engine
        started: InFlight[T] = session.core.allreduce(
            full, inputs, None, number, average, prescale, postscale, AS_IT_IS, set_id, tensor, begun
        )
        return started

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        wire: DType | None = None,
        in_place: bool = False,
        member_names: str = "",
    ) -> Pending[list[T]]:
        """All or nothing: one failing member fails the group.

        `member_names`: what errors call the tensors, a line each; after a tab, what this rank has where one is a
        stand-in. Not with Adasum.
        """
        prepared = [self._prepare(tensor, in_place) for tensor in tensors]
        verb = "grouped_allreduce"
        inputs = self._group_views(verb, [source for source, _, _ in prepared])
        outputs = [self._tensors.view(target) for _, target, _ in prepared]
        full, handle = self._reduce(
            *(verb, inputs, outputs, op, name, prescale, postscale, process_set, wire, prepared),
            member_names=member_names,
        )

        def finish(done: Any) -> list[T]:
            return [target if step is None else step(done) for _, target, step in prepared]

        return Pending(full, handle, None, finish)

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        in_place: bool = False,
    ) -> Pending[T]:
        set_id = member_id(process_set)
        root = root_within(root_rank, process_set)
        source, target, finish = self._prepare(tensor, in_place)
        inputs = [self._tensors.view(source)]
        outputs = None if target is source else [self._tensors.view(target)]
        kept = (source, target)
        full, handle = names.submit(
            "broadcast", name, set_id, session.core.broadcast, inputs, outputs, root, set_id, kept
        )
        return Pending(full, handle, target, finish)

    def allgather(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> Pending[T]:
        """Concatenates along dimension 0, which may differ between ranks."""
        pending = self._allgather("allgather", [tensor], name, process_set)
        return pending.then(lambda gathered: gathered[0])

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Pending[list[T]]:
        return self._allgather("grouped_allgather", tensors, name, process_set)

    def alltoall(
        self,
        tensor: T,
        splits: Sequence[int] | None = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Pending[tuple[T, list[int]]]:
        """Sends `splits[r]` rows to rank r of the set; gives what came, and how many rows came from each."""
        set_id = member_id(process_set)
        source = self._tensors.contiguous(tensor)
        view = self._with_rows("alltoall", self._tensors.view(source))
        plain = checked_splits(splits, view[2][0], process_set)
        full, handle = names.submit("alltoall", name, set_id, session.core.alltoall, view, plain, set_id, source)

        def finish(done: Any) -> tuple[T, list[int]]:
            return self._tensors.from_buffer(done.outputs()[0], source), list(done.received_splits())

        return Pending(full, handle, None, finish)

    def reduce_scatter(
        self,
        tensor: T,
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Pending[T]:
        """This rank's rows of the reduction; the first ranks get one more where they do not divide."""
        pending = self._reduce_scatter("reducescatter", [tensor], op, name, prescale, postscale, process_set)
        return pending.then(lambda shares: shares[0])

    def grouped_reduce_scatter(
        self,
        tensors: Sequence[T],
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Pending[list[T]]:
        return self._reduce_scatter("grouped_reducescatter", tensors, op, name, prescale, postscale, process_set)

    def _prepare(self, tensor: T, in_place: bool) -> tuple[T, T, Finish | None]:
        """What to read, what to write, and what makes the caller's result, if that is not what was written."""
        source = self._tensors.contiguous(tensor)
        if source is tensor:
            return source, source if in_place else self._tensors.empty_like(source), None
        if not in_place:
            return source, source, None

        def copy_back(_: Any) -> T:
            self._tensors.copy_into(tensor, source)
            return tensor

        return source, source, copy_back

    def _reduce(
        self,
        verb: str,
        inputs: list[View],
        outputs: list[View] | None,
        op: Op,
        name: str | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wire: DType | None,
        kept: object,
        wait: bool = False,
        member_names: str = "",
    ) -> tuple[str, Any]:
        set_id = member_id(process_set)
        on_the_wire = group_wire(verb, [view[1] for view in inputs], wire)
        tail = (prescale, postscale, on_the_wire, set_id, kept)
        if op is Op.Adasum:
            return names.submit(verb, name, set_id, session.core.adasum, inputs, outputs, *tail)
        number, average = core_op(op)
        # Numbers are given out under a lock, under which nobody waits for other ranks.
        begun = (Start.waiter if name is None else Start.call) if wait else Start.engine
        core = session.core.allreduce
        start = core if not member_names else lambda full, *rest: core((full, "", member_names), *rest)
        return names.submit(verb, name, set_id, start, inputs, outputs, number, average, *tail, begun)

    def _allgather(
        self, verb: str, tensors: Sequence[T], name: str | None, process_set: ProcessSet
    ) -> Pending[list[T]]:
        set_id = member_id(process_set)
        sources = [self._tensors.contiguous(tensor) for tensor in tensors]
        views = [self._with_rows(verb, view) for view in self._group_views(verb, sources)]
        full, handle = names.submit(verb, name, set_id, session.core.allgather, views, set_id, sources)
        return Pending(full, handle, None, lambda done: self._outputs(done, sources))

    def _reduce_scatter(
        self,
        verb: str,
        tensors: Sequence[T],
        op: Op,
        name: str | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> Pending[list[T]]:
        if op not in (Op.Average, Op.Sum):
            raise UnsupportedOpError(f"{verb} knows Average and Sum, not {op.name}")
        set_id = member_id(process_set)
        sources = [self._tensors.contiguous(tensor) for tensor in tensors]
        views = [self._with_rows(verb, view) for view in self._group_views(verb, sources)]
        arguments = (views, 0, op is Op.Average, prescale, postscale, set_id, sources)
        full, handle = names.submit(verb, name, set_id, session.core.reduce_scatter, *arguments)
        return Pending(full, handle, None, lambda done: self._outputs(done, sources))

    def _outputs(self, done: Any, sources: Sequence[T]) -> list[T]:
        pairs = zip(done.outputs(), sources, strict=True)
        return [self._tensors.from_buffer(buffer, source) for buffer, source in pairs]

    def _group_views(self, verb: str, sources: Sequence[T]) -> list[View]:
        if not sources:
            raise ValueError(f"{verb}: the list of tensors is empty")
        views = [self._tensors.view(source) for source in sources]
        if len({view[3] for view in views}) > 1:
            raise ValueError(f"{verb}: the tensors are on several devices, a group must be on one")
        return views

    @staticmethod
    def _with_rows(verb: str, view: View) -> View:
        if not view[2]:
            raise ValueError(f"{verb}: the tensor has no dimension 0 to divide or join; reshape it to one element")
        return view
