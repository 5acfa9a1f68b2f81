"""broadcast, all_gather, gather, scatter, all_to_all: data that moves and stays what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .engine import Engine
from .travel import check, dense, finish_all, for_output, from_buffer, in_place, view, width
from .work import PerseusWork


class Gathers(Engine):
    """Numbers of elements must agree between ranks, shapes need not."""

    def broadcast(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, **_: Any) -> PerseusWork:
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        root = opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))
        flats = [in_place("broadcast", tensor) for tensor in listed]
        views = [view(flat.tensor) for flat in flats]
        finish = finish_all(flats)
        return self._start(
            "broadcast", self._core.broadcast, views, None, root, self._number, flats, result=listed, finish=finish
        )

    def allgather(self, outputs: Sequence[Any], inputs: Sequence[Tensor] | Tensor, *_: Any, **__: Any) -> PerseusWork:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        lists = [list(each) for each in outputs]
        for tensors in lists:
            if len(tensors) != self._size:
                raise ValueError(f"all_gather: {len(tensors)} outputs for {self._size} ranks")
        return self._all_gather("all_gather", lists, list(inputs), outputs)

    def allgather_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Tensor], *_: Any) -> PerseusWork:
        by_input = [[outputs[rank][place] for rank in range(self._size)] for place in range(len(inputs))]
        return self._all_gather("all_gather_coalesced", by_input, list(inputs), outputs)

    def _all_gather(
        self, what: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], result: Any
    ) -> PerseusWork:
        """`outputs[i][r]` gets rank r's `inputs[i]`; sizes may differ between ranks where the outputs do."""
        sources = [dense(what, tensor) for tensor in inputs]
        if not sources or len(outputs) != len(sources):
            raise ValueError(f"{what}: {len(outputs)} outputs for {len(sources)} inputs")
        for each in outputs:
            for tensor in each:
                check(what, tensor)

        def finish(handle: Any) -> None:
            for tensors, source, buffer in zip(outputs, sources, handle.outputs(), strict=True):
                gathered = from_buffer(buffer, source.dtype)
                _check_total(what, sum(tensor.numel() for tensor in tensors), gathered)
                at = 0
                for tensor in tensors:
                    tensor.copy_(gathered[at : at + tensor.numel()].view(tensor.shape))
                    at += tensor.numel()

        views = [view(source) for source in sources]
        return self._start(what, self._core.allgather, views, self._number, sources, result=result, finish=finish)

    def _allgather_base(self, output: Tensor, input: Tensor, *_: Any) -> PerseusWork:
        return self._all_gather("all_gather_into_tensor", [[output]], [input], [output])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *_: Any
    ) -> PerseusWork:
        lists = [[output] for output in outputs]
        return self._all_gather("all_gather_into_tensor_coalesced", lists, list(inputs), list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: Sequence[Any], inputs: Sequence[Tensor], opts: Any = None) -> PerseusWork:
        root = int(getattr(opts, "rootRank", 0))
        source = dense("gather", inputs[0])
        splits = [0] * self._size
        splits[root] = source.numel()
        parts = list(outputs[0]) if self._rank == root else []
        if self._rank == root and len(parts) != self._size:
            raise ValueError(f"gather: {len(parts)} outputs for {self._size} ranks")
        return self._all_to_all("gather", source, splits, parts, outputs)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Any], opts: Any = None) -> PerseusWork:
        root = int(getattr(opts, "rootRank", 0))
        output = outputs[0]
        check("scatter", output)
        parts = [dense("scatter", part) for part in inputs[0]] if self._rank == root else []
        if self._rank == root and len(parts) != self._size:
            raise ValueError(f"scatter: {len(parts)} inputs for {self._size} ranks")
        source = torch.cat([part.reshape(-1) for part in parts]) if parts else output.new_empty(0)
        splits = [part.numel() for part in parts] or [0] * self._size
        return self._all_to_all("scatter", source, splits, [output], list(outputs))

    def alltoall_base(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], *_: Any
    ) -> PerseusWork:
        what = "all_to_all_single"
        source = dense(what, input)
        flat = for_output(what, output)
        parts = torch.split(flat.tensor.view(-1), _elements(what, output, output_splits, self._size))
        splits = _elements(what, source, input_splits, self._size)
        return self._all_to_all(what, source, splits, list(parts), [output], flat.finish)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *_: Any) -> PerseusWork:
        sources = [dense("all_to_all", tensor) for tensor in inputs]
        if len(sources) != self._size or len(outputs) != self._size:
            raise ValueError(f"all_to_all: {len(sources)} inputs and {len(outputs)} outputs for {self._size} ranks")
        joined = torch.cat([source.reshape(-1) for source in sources])
        splits = [source.numel() for source in sources]
        return self._all_to_all("all_to_all", joined, splits, list(outputs), list(outputs))

    def _all_to_all(
        self, what: str, source: Tensor, splits: Sequence[int], parts: Sequence[Tensor], result: Any, then: Any = None
    ) -> PerseusWork:
        """`splits[r]` elements to rank r; what comes fills `parts`, one after the other."""
        for part in parts:
            check(what, part)
        wide = width(source.dtype)

        def finish(handle: Any) -> None:
            came = from_buffer(handle.outputs()[0], source.dtype)
            _check_total(what, sum(part.numel() for part in parts), came)
            at = 0
            for part in parts:
                part.copy_(came[at : at + part.numel()].view(part.shape))
                at += part.numel()
            if then is not None:
                then()

        counts = [split * wide for split in splits]
        return self._start(
            what, self._core.alltoall, view(source), counts, self._number, source, result=result, finish=finish
        )

    def barrier(self, *_: Any, **__: Any) -> PerseusWork:
        return self._start("barrier", self._core.barrier, self._number, result=[])


def _elements(what: str, tensor: Tensor, rows: Sequence[int], size: int) -> list[int]:
    """Elements for each rank, of splits that count rows."""
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


def _check_total(what: str, room: int, came: Tensor) -> None:
    if room != came.numel():
        raise ValueError(f"{what}: {came.numel()} elements came, but the outputs have room for {room}")
