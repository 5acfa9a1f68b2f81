"""broadcast, all_gather, gather, scatter, all_to_all and barrier: collectives that do not compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...tensors.tensor_memory import write
from ..layout_conversion import (
    adjacent,
    check,
    check_output,
    dense,
    finish_all,
    for_output,
    from_buffer,
    in_place,
    joined,
    rows,
    sizes_text,
    view,
    width,
    with_own_dtypes,
    written_directly,
)
from ..numbered_group import NumberedGroup, collective, root_of
from ..works import PerseusWork


class Gathers(NumberedGroup):
    """The collectives that move data. Ranks must agree on the number of elements, and may differ in shapes."""

    @collective("broadcast")
    def broadcast(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, **named: Any) -> PerseusWork:
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        root = root_of(opts, **named)
        flats = [in_place("broadcast", tensor) for tensor in listed]
        views = [view(flat.tensor) for flat in flats]
        finish = finish_all(flats)
        call, arguments = with_own_dtypes("broadcast", listed), (views, None, root, self._number, flats)
        return self._start(call, self._core.broadcast, *arguments, result=listed, finish=finish, what="broadcast")

    @collective("all_gather", tensors=1)
    def allgather(self, outputs: Sequence[Any], inputs: Sequence[Tensor] | Tensor, *_: Any, **__: Any) -> PerseusWork:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        return self._all_gather_lists("all_gather", [list(each) for each in outputs], list(inputs), outputs)

    @collective("all_gather_coalesced", tensors=1)
    def allgather_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Tensor], *_: Any) -> PerseusWork:
        if len(outputs) != self._size:
            raise ValueError(f"all_gather_coalesced: {len(outputs)} lists of outputs for {self._size} ranks")
        by_input = [[outputs[rank][place] for rank in range(self._size)] for place in range(len(inputs))]
        return self._all_gather_lists("all_gather_coalesced", by_input, list(inputs), outputs)

    def _all_gather_lists(
        self, what: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], result: Any
    ) -> PerseusWork:
        """Copies rank r's `inputs[i]` to `outputs[i][r]`. The sizes of `outputs` tell how many elements ranks give."""
        uneven = []
        for tensors, source in zip(outputs, inputs, strict=True):
            sizes = [tensor.numel() for tensor in tensors]
            if len(sizes) != self._size:
                raise ValueError(f"{what}: {len(sizes)} outputs for {self._size} ranks")
            if sizes[self._rank] != source.numel():
                raise ValueError(
                    f"{what}: this rank gives {source.numel()} elements, its outputs have room for {sizes} of the ranks"
                )
            if len(set(sizes)) > 1:
                uneven.append(sizes_text(sizes))
        call = f"{what} of {', '.join(uneven)} elements" if uneven else what
        return self._all_gather(what, outputs, inputs, result, call)

    def _all_gather(
        self, what: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], result: Any, call: str
    ) -> PerseusWork:
        sources = [dense(what, tensor) for tensor in inputs]
        if not sources or len(outputs) != len(sources):
            raise ValueError(f"{what}: {len(outputs)} outputs for {len(sources)} inputs")
        for tensors, source in zip(outputs, sources, strict=True):
            for tensor in tensors:
                check_output(what, tensor, source)

        def finish(handle: Any) -> None:
            if buffers := handle.outputs():  # otherwise the results are in their places
                for tensors, source, buffer in zip(outputs, sources, buffers, strict=True):
                    _divide(from_buffer(buffer, source.dtype), tensors)

        direct = self._direct_outputs(outputs, sources)
        # If all ranks give the same number, each gives one row, because ranks must agree on the size of a row.
        views = [view(source) if call != what else rows(source, 1, source.numel()) for source in sources]
        arguments = (views, self._number, (sources, outputs), direct)
        call = with_own_dtypes(call, inputs)
        return self._start(call, self._core.allgather, *arguments, result=result, finish=finish, what=what)

    def _direct_outputs(self, outputs: Sequence[Sequence[Tensor]], sources: Sequence[Tensor]) -> list[Any] | None:
        """Returns where on a device the core writes the results. None if these are not one memory for each input."""
        if outputs[0][0].get_device() < 0:
            return None
        wholes = [each[0] if len(each) == 1 else adjacent(each) for each in outputs]
        found = [whole for whole in wholes if whole is not None]
        are_even = all(each[0].numel() == part.numel() for each in outputs for part in each)
        return written_directly(found, sources, self._rank if are_even else -1) if len(found) == len(wholes) else None

    @collective("all_gather_into_tensor", tensors=1)
    def _allgather_base(self, output: Tensor, input: Tensor, *_: Any) -> PerseusWork:
        return self._all_gather_whole("all_gather_into_tensor", [output], [input])

    all_gather_single = _allgather_base

    @collective("all_gather_into_tensor_coalesced", tensors=1)
    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *_: Any
    ) -> PerseusWork:
        return self._all_gather_whole("all_gather_into_tensor_coalesced", list(outputs), list(inputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _all_gather_whole(self, what: str, outputs: list[Tensor], inputs: list[Tensor]) -> PerseusWork:
        for output, source in zip(outputs, inputs, strict=True):
            if output.numel() != self._size * source.numel():
                raise ValueError(
                    f"{what}: {self._size * source.numel()} elements come, but the output has room for {output.numel()}"
                )
        return self._all_gather(what, [[output] for output in outputs], inputs, outputs, what)

    @collective("gather", tensors=1)
    def gather(
        self, outputs: Sequence[Any], inputs: Sequence[Tensor] | Tensor, opts: Any = None, **named: Any
    ) -> PerseusWork:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        root = root_of(opts, **named)
        parts = list(outputs[0]) if self._rank == root else []
        return self._gather("gather", root, parts, inputs[0], outputs)

    @collective("gather_single", tensors=1)
    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> PerseusWork:
        """Gathers into one tensor of the root. torch passes an empty `output` on the other ranks."""
        root = root_of(opts)
        if self._rank != root:
            return self._gather("gather_single", root, [], input, [output])
        flat = for_output("gather_single", output)
        if output.numel() != self._size * input.numel():
            raise ValueError(
                f"gather_single: {self._size * input.numel()} elements come, but the output has room for "
                f"{output.numel()}"
            )
        parts = list(flat.tensor.view(-1).tensor_split(self._size))
        return self._gather("gather_single", root, parts, input, [output], flat.finish)

    gather_into_tensor = gather_single

    def _gather(
        self, what: str, root: int, parts: list[Tensor], tensor: Tensor, result: Any, then: Any = None
    ) -> PerseusWork:
        """Copies rank r's tensor to the root's `parts[r]`; the other ranks have no parts."""
        source = dense(what, tensor)
        if self._rank == root:
            self._require_alike(what, "outputs", parts, source)
        splits = [0] * self._size
        splits[root] = 1
        call = f"{what} to rank {self.job_ranks[root]}"
        return self._exchange(call, rows(source, 1, source.numel()), splits, source, parts, result, then, typed=tensor)

    @collective("scatter")
    def scatter(
        self, outputs: Sequence[Tensor] | Tensor, inputs: Sequence[Any], opts: Any = None, **named: Any
    ) -> PerseusWork:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        root = root_of(opts, **named)
        output = outputs[0]
        check("scatter", output)
        parts = [dense("scatter", part) for part in inputs[0]] if self._rank == root else []
        if self._rank == root:
            self._require_alike("scatter", "inputs", parts, output)
        source = joined("scatter", parts) if parts else output.new_empty(0)
        splits = [1 if parts else 0] * self._size
        call = f"scatter from rank {self.job_ranks[root]}"
        given = rows(source, len(parts), output.numel())
        return self._exchange(call, given, splits, source, [output], list(outputs), typed=output)

    def _require_alike(self, what: str, name: str, parts: Sequence[Tensor], other: Tensor) -> None:
        if len(parts) != self._size:
            raise ValueError(f"{what}: {len(parts)} {name} for {self._size} ranks")
        if any(part.numel() != other.numel() or part.dtype != other.dtype for part in parts):
            found = sizes_text([part.numel() for part in parts])
            raise ValueError(
                f"{what}: {name} of {found} elements, of {parts[0].dtype}, beside a tensor of {other.numel()}, of "
                f"{other.dtype}; all must be alike"
            )

    @collective("all_to_all_single", tensors=1)
    def alltoall_base(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], *_: Any
    ) -> PerseusWork:
        what = "all_to_all_single"
        source = dense(what, input)
        flat = for_output(what, output)
        parts = torch.split(flat.tensor.view(-1), _elements(what, output, output_splits, self._size))
        splits = _elements(what, source, input_splits, self._size)
        return self._all_to_all(what, source, splits, list(parts), [output], flat.finish, typed=input)

    all_to_all_single = alltoall_base

    @collective("all_to_all", tensors=1)
    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *_: Any) -> PerseusWork:
        sources = [dense("all_to_all", tensor) for tensor in inputs]
        if len(sources) != self._size or len(outputs) != self._size:
            raise ValueError(f"all_to_all: {len(sources)} inputs and {len(outputs)} outputs for {self._size} ranks")
        splits = [source.numel() for source in sources]
        source = joined("all_to_all", sources)
        return self._all_to_all("all_to_all", source, splits, list(outputs), list(outputs), typed=inputs[0])

    def _all_to_all(
        self,
        what: str,
        source: Tensor,
        splits: Sequence[int],
        parts: Sequence[Tensor],
        result: Any,
        then: Any = None,
        *,
        typed: Tensor,
    ) -> PerseusWork:
        """Sends `splits[r]` elements to rank r, and receives into `parts[r]`, which rank r's elements must fill."""
        expected = [part.numel() for part in parts]
        given = view(source) if width(source.dtype) == 1 else rows(source, source.numel(), 1)
        return self._exchange(what, given, splits, source, parts, result, then, typed=typed, expected=expected)

    def _exchange(
        self,
        call: str,
        given: Any,
        splits: Sequence[int],
        source: Tensor,
        parts: Sequence[Tensor],
        result: Any,
        then: Any = None,
        *,
        typed: Tensor,
        **options: Any,
    ) -> PerseusWork:
        """Sends `splits[r]` rows of `given`, which is the memory of `source`, to rank r, and receives into `parts`.

        `typed`: a tensor of the caller with their dtype.
        """
        for part in parts:
            check_output(call, part, source)

        def finish(handle: Any) -> None:
            _divide(from_buffer(handle.outputs()[0], source.dtype), parts)
            if then is not None:
                then()

        arguments = (given, list(splits), self._number, (source, parts))
        named = with_own_dtypes(call, [typed])
        return self._start(named, self._core.alltoall, *arguments, result=result, finish=finish, what=call, **options)

    @collective("barrier")
    def barrier(self, opts: Any = None, *_: Any, **__: Any) -> PerseusWork:
        return self._start("barrier", self._core.barrier, self._number, result=[])


def _elements(what: str, tensor: Tensor, rows: Sequence[int], size: int) -> list[int]:
    """Returns the number of elements for each rank, from splits that count rows."""
    if not rows:
        if (tensor.shape[0] if tensor.dim() else tensor.numel()) % size:
            raise ValueError(
                f"{what}: {tuple(tensor.shape)} cannot be divided evenly among {size} ranks; give split sizes"
            )
        return [tensor.numel() // size] * size
    count = tensor.shape[0] if tensor.dim() else 1
    if len(rows) != size or sum(rows) != count or min(rows) < 0:
        raise ValueError(f"{what}: split sizes {list(rows)} do not fit {count} rows and {size} ranks")
    row = tensor.numel() // count if count else 0
    return [each * row for each in rows]


def _divide(came: Tensor, parts: Sequence[Tensor]) -> None:
    at = 0
    for part in parts:
        write(part, came[at : at + part.numel()].view(part.shape))
        at += part.numel()
