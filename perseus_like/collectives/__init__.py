"""The verbs, on the tensors of any framework. `operations` and `arguments` have the rules of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ..errors import UnsupportedOpError
from ..operations import UNSCALED, Adasum, Average, Max, Min, Op, Product, Sum, reduce_options, resolve_op
from ..process_sets import GLOBAL, ProcessSet, global_process_set
from ..session import session
from ..tables import DType, Start
from ..tensor import TensorAdapter, View
from .arguments import checked_splits, group_wire, member_id, root_within
from .automatic_names import names
from .handle import CollectiveHandle, HandleEntry

T = TypeVar("T")
Finish = Callable[[Any], Any]

# Their result for complex numbers is not that of the real and imaginary parts.
_ONLY_REAL = frozenset({Max, Min, Product})


def check_op(verb: str, op: Op, tensors: Sequence[T], is_complex: Callable[[T], bool]) -> None:
    """Raises UnsupportedOpError for an operation that complex tensors do not have."""
    if op in _ONLY_REAL and any(map(is_complex, tensors)):
        raise UnsupportedOpError(f"{verb} does not support {op.name} of complex tensors; use Average or Sum")


def _core_verb(op: Op) -> Callable[..., Any]:
    verb: Callable[..., Any] = session.core.adasum if op is Adasum else session.core.allreduce
    return verb


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until all ranks of the set have called it.

    Args:
        process_set: the ranks that wait for each other. The default is all ranks of the job.

    Raises:
        ValueError: this rank is not in `process_set`, or the set is not registered.
        HorovodInternalError: a rank has ended, or `init` was not called.

    Examples:
        >>> hvd.barrier()
    """
    set_id = member_id(process_set)
    names.submit("barrier", None, set_id, session.core.barrier, set_id)[1].wait()


def join(device: int = -1) -> int:
    """Blocks until every rank has joined. Contributes zeros to the other ranks' allreduces meanwhile.

    A rank calls it when it has no more batches, so that the others can finish theirs.

    Args:
        device: the accelerator on which this rank takes part, if it has had no tensor there. -1: the core chooses one.

    Returns:
        The last rank that joined.

    Raises:
        HorovodInternalError: a rank has ended, or `init` was not called.

    Examples:
        >>> hvd.join()
        0
    """
    handle = session.core.join(GLOBAL, device)
    handle.wait()
    names.reset(GLOBAL)  # ranks that joined early have made fewer calls
    return int(handle.number())


class PersistentAllreduce(Generic[T]):
    """An allreduce in place that every training step submits again, like a persistent collective of MPI.

    The constructor checks and converts what the steps have in common. Make another one if the tensor's memory moves.
    """

    def __init__(
        self,
        tensors: TensorAdapter[T],
        tensor: T,
        op: Op = Op.Average,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        wire: DType | None = None,
        contents: str = "",
    ) -> None:
        """Takes a contiguous tensor. `contents`, which may change: names it in the warnings and errors of a stall."""
        check_op("allreduce", op, [tensor], tensors.is_complex)
        view = tensors.view(tensor)
        self.address, self.contents = view[0], contents
        self._tensor, self._views, self._process_set = tensor, [view], process_set
        self._options = reduce_options(op, prescale, postscale, group_wire("allreduce", [view[1]], wire))
        self._verb = _core_verb(op)

    def submit(self, name: str, start: Start) -> HandleEntry[T]:
        """Submits it. The tensor's memory is in use until the handle is done."""
        # The id is looked up each time, because a set gets another one in each session.
        set_id = GLOBAL if self._process_set is global_process_set else member_id(self._process_set)
        full, contents = f"allreduce.{name}", self.contents
        naming = (full, "", contents) if contents else full
        started: HandleEntry[T] = self._verb(naming, self._views, None, self._options, set_id, self._tensor, start)
        return started


class Collectives(Generic[T]):
    """The verbs on one framework's tensors. Each submits a request and returns at once.

    Outputs are new tensors unless `in_place` is true. A non-contiguous tensor is sent as a contiguous copy.
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
        start: Start = Start.engine,
    ) -> CollectiveHandle[T]:
        """Submits an allreduce. With `Start.call` and a name it is complete on return."""
        check_op("allreduce", op, [tensor], self._tensors.is_complex)
        source, target, finish = self._prepare(tensor, in_place)
        inputs = [self._tensors.view(source)]
        outputs = None if target is source else [self._tensors.view(target)]
        kept = (source, target)
        set_id = member_id(process_set)
        options = reduce_options(op, prescale, postscale, group_wire("allreduce", [inputs[0][1]], wire))
        # An automatic name is assigned under a lock. No thread waits for other ranks under that lock.
        begun = Start.waiter if name is None and start is Start.call else start
        full, handle = names.submit(
            "allreduce", name, set_id, _core_verb(op), inputs, outputs, options, set_id, kept, begun
        )
        return CollectiveHandle(full, handle, target, finish)

    def reduce_in_place(
        self,
        tensor: T,
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        wire: DType | None = None,
        start: Start = Start.engine,
    ) -> HandleEntry[T]:
        """Submits an `allreduce` in place. It takes a faster path if there is a name and nothing to convert.

        Adapters use it for single gradients, so it runs for every small tensor of a training step.
        """
        view = None if name is None or wire is not None or op is Adasum else self._tensors.direct_view(tensor)
        if view is None:
            return self.allreduce(tensor, op, name, prescale, postscale, process_set, wire, in_place=True, start=start)
        scaled = prescale != 1.0 or postscale != 1.0
        options = reduce_options(op, prescale, postscale) if scaled else UNSCALED[op]
        set_id = GLOBAL if process_set is global_process_set else member_id(process_set)
        full = f"allreduce.{name}"
        started: HandleEntry[T] = session.core.allreduce(full, [view], None, options, set_id, tensor, start)
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
    ) -> CollectiveHandle[list[T]]:
        """Submits one allreduce of several tensors. If one of them fails, all fail.

        `member_names` has the names of the tensors for error texts, one per line. If a tensor only stands in for a
        missing one, a tab and a description of what this rank has follow its name.
        """
        verb = "grouped_allreduce"
        check_op(verb, op, tensors, self._tensors.is_complex)
        prepared = [self._prepare(tensor, in_place) for tensor in tensors]
        inputs = self._group_views(verb, [source for source, _, _ in prepared])
        pairs = zip(prepared, inputs, strict=True)
        outputs = [view if target is source else self._tensors.view(target) for (source, target, _), view in pairs]
        set_id = member_id(process_set)
        options = reduce_options(op, prescale, postscale, group_wire(verb, [view[1] for view in inputs], wire))
        core = _core_verb(op)
        start = core if not member_names else lambda full, *rest: core((full, "", member_names), *rest)
        full, handle = names.submit(verb, name, set_id, start, inputs, outputs, options, set_id, prepared, Start.engine)

        def finish(done: Any) -> list[T]:
            return [target if step is None else step(done) for _, target, step in prepared]

        return CollectiveHandle(full, handle, None, finish)

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        in_place: bool = False,
    ) -> CollectiveHandle[T]:
        set_id = member_id(process_set)
        root = root_within(root_rank, process_set)
        source, target, finish = self._prepare(tensor, in_place)
        inputs = [self._tensors.view(source)]
        outputs = None if target is source else [self._tensors.view(target)]
        kept = (source, target)
        full, handle = names.submit(
            "broadcast", name, set_id, session.core.broadcast, inputs, outputs, root, set_id, kept
        )
        return CollectiveHandle(full, handle, target, finish)

    def allgather(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> CollectiveHandle[T]:
        """Concatenates along dimension 0, which may differ between ranks."""
        pending = self._allgather("allgather", [tensor], name, process_set)
        return pending.then(lambda gathered: gathered[0])

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> CollectiveHandle[list[T]]:
        return self._allgather("grouped_allgather", tensors, name, process_set)

    def alltoall(
        self,
        tensor: T,
        splits: Sequence[int] | None = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> CollectiveHandle[tuple[T, list[int]]]:
        """Sends `splits[r]` rows to rank r of the set. The result is the received rows, and their number by rank."""
        set_id = member_id(process_set)
        source = self._tensors.contiguous(tensor)
        view = self._tensors.view(source)
        self._check_rows("alltoall", source, view)
        plain = checked_splits(splits, view[2][0], process_set)
        full, handle = names.submit("alltoall", name, set_id, session.core.alltoall, view, plain, set_id, source)

        def finish(done: Any) -> tuple[T, list[int]]:
            return self._tensors.from_buffer(done.outputs()[0], source), list(done.received_splits())

        return CollectiveHandle(full, handle, None, finish)

    def reduce_scatter(
        self,
        tensor: T,
        op: Op = Op.Average,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> CollectiveHandle[T]:
        """Reduces, and returns this rank's rows of the result. The first ranks get one more if they do not divide."""
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
    ) -> CollectiveHandle[list[T]]:
        return self._reduce_scatter("grouped_reducescatter", tensors, op, name, prescale, postscale, process_set)

    def _prepare(self, tensor: T, in_place: bool) -> tuple[T, T, Finish | None]:
        """Returns the tensor to read, the tensor to write, and a function that makes the result if it is another."""
        source = self._tensors.contiguous(tensor)
        if source is tensor:
            return source, source if in_place else self._tensors.empty_like(source), None
        if not in_place:
            return source, source, None

        def copy_back(_: Any) -> T:
            self._tensors.copy_into(tensor, source)
            return tensor

        return source, source, copy_back

    def _allgather(
        self, verb: str, tensors: Sequence[T], name: str | None, process_set: ProcessSet
    ) -> CollectiveHandle[list[T]]:
        set_id = member_id(process_set)
        sources = [self._tensors.contiguous(tensor) for tensor in tensors]
        views = self._row_views(verb, sources)
        full, handle = names.submit(verb, name, set_id, session.core.allgather, views, set_id, sources)
        return CollectiveHandle(full, handle, None, lambda done: self._outputs(done, sources))

    def _reduce_scatter(
        self,
        verb: str,
        tensors: Sequence[T],
        op: Op,
        name: str | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> CollectiveHandle[list[T]]:
        if op not in (Op.Average, Op.Sum):
            raise UnsupportedOpError(f"{verb} does not support {op.name}; use Average or Sum")
        set_id = member_id(process_set)
        sources = [self._tensors.contiguous(tensor) for tensor in tensors]
        views = self._row_views(verb, sources)
        options = reduce_options(op, prescale, postscale)
        full, handle = names.submit(verb, name, set_id, session.core.reduce_scatter, views, options, set_id, sources)
        return CollectiveHandle(full, handle, None, lambda done: self._outputs(done, sources))

    def _outputs(self, done: Any, sources: Sequence[T]) -> list[T]:
        pairs = zip(done.outputs(), sources, strict=True)
        return [self._tensors.from_buffer(buffer, source) for buffer, source in pairs]

    def _group_views(self, verb: str, sources: Sequence[T]) -> list[View]:
        if not sources:
            raise ValueError(f"{verb}: the list of tensors is empty; pass at least one tensor")
        views = [self._tensors.view(source) for source in sources]
        if len({view[3] for view in views}) > 1:
            raise ValueError(f"{verb}: the tensors are on several devices; move all tensors of a group to one device")
        return views

    def _row_views(self, verb: str, sources: Sequence[T]) -> list[View]:
        views = self._group_views(verb, sources)
        for source, view in zip(sources, views, strict=True):
            self._check_rows(verb, source, view)
        return views

    def _check_rows(self, verb: str, source: T, view: View) -> None:
        dimensions = len(view[2]) - self._tensors.is_complex(source)
        if dimensions == 0:
            raise ValueError(f"{verb}: the tensor has no dimension 0 to divide or join; reshape it to one element")


__all__ = [
    "Adasum",
    "Average",
    "Collectives",
    "Max",
    "Min",
    "Op",
    "Product",
    "Sum",
    "barrier",
    "join",
    "resolve_op",
]
