"""all_reduce, reduce and reduce_scatter, in all their forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from perseus_like.tensor import AS_IT_IS, DType

from .engine import Engine
from .reduce_op import Reduction, resolve
from .sparse import sparse_allreduce
from .travel import dense, finish_all, for_output, from_buffer, in_place, view
from .work import PerseusWork


class Reductions(Engine):
    """Numbers of elements must agree between ranks, shapes need not."""

    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, **_: Any) -> PerseusWork:
        listed = _listed(tensors)
        if len(listed) == 1 and listed[0].layout is torch.sparse_coo:
            return sparse_allreduce(self, listed[0], opts)
        return self._all_reduce("all_reduce", listed, opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> PerseusWork:
        return self._all_reduce("all_reduce_coalesced", list(tensors), opts)

    def average(self, tensor: Tensor, wire: DType) -> PerseusWork:
        """In place; float32 and float64 travel as `wire`, other types as they are."""
        flat = in_place("all_reduce", tensor)
        kind = int(wire) if tensor.dtype in (torch.float32, torch.float64) else AS_IT_IS
        tail = (0, True, 1.0, 1.0, kind, self._number, flat, False)
        finish = finish_all([flat])
        return self._start(
            "all_reduce", self._core.allreduce, [view(flat.tensor)], None, *tail, result=[tensor], finish=finish
        )

    def reduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, *_: Any, **__: Any) -> PerseusWork:
        """Tensors of the other ranks stay as they are."""
        listed = _listed(tensors)
        root = int(getattr(opts, "rootRank", 0))
        if root == self._rank:
            return self._all_reduce("reduce", listed, opts)
        scratch = [torch.empty_like(dense("reduce", tensor)) for tensor in listed]
        return self._all_reduce("reduce", listed, opts, scratch)

    def _all_reduce(
        self, what: str, tensors: list[Tensor], opts: Any, outputs: list[Tensor] | None = None
    ) -> PerseusWork:
        flats = [in_place(what, tensor) for tensor in tensors]
        reduction = _common_reduction(what, opts, tensors)
        inputs = [view(flat.tensor) for flat in flats]
        targets = None if outputs is None else [view(tensor) for tensor in outputs]
        kept = (flats, outputs)
        tail = (reduction.op, reduction.average, reduction.prescale, 1.0, AS_IT_IS, self._number, kept, False)
        finish = finish_all(flats) if outputs is None else None
        return self._start(what, self._core.allreduce, inputs, targets, *tail, result=tensors, finish=finish)

    def reduce_scatter(
        self, outputs: Sequence[Tensor] | Tensor, inputs: Sequence[Any], opts: Any = None, **_: Any
    ) -> PerseusWork:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        if len(outputs) != 1 or len(inputs) != 1:
            raise ValueError("reduce_scatter: one output and one list of inputs are needed")
        parts = [dense("reduce_scatter", part) for part in inputs[0]]
        if len(parts) != self._size:
            raise ValueError(f"reduce_scatter: {len(parts)} inputs for {self._size} ranks")
        mine = outputs[0].numel()
        if parts[self._rank].numel() != mine:
            raise ValueError(
                f"reduce_scatter: the output has {mine} elements, this rank's input {parts[self._rank].numel()}"
            )
        joined = torch.cat([part.reshape(-1) for part in parts])
        if all(part.numel() == mine for part in parts):
            return self._reduce_scatter("reduce_scatter", [outputs[0]], [joined], opts)
        start = sum(part.numel() for part in parts[: self._rank])
        return self._reduce_part("reduce_scatter", outputs[0], joined, start, opts)

    def _reduce_part(self, what: str, output: Tensor, joined: Tensor, start: int, opts: Any) -> PerseusWork:
        """Shares of different sizes: everything is reduced, and this rank takes its part."""
        reduction = resolve(what, opts, joined.dtype)
        tail = (reduction.op, reduction.average, reduction.prescale, 1.0, AS_IT_IS, self._number, joined, False)

        def finish(_: Any) -> None:
            output.copy_(joined[start : start + output.numel()].view(output.shape))

        return self._start(what, self._core.allreduce, [view(joined)], None, *tail, result=[output], finish=finish)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> PerseusWork:
        return self._reduce_scatter("reduce_scatter_tensor", [output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> PerseusWork:
        return self._reduce_scatter("reduce_scatter_tensor_coalesced", list(outputs), list(inputs), opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _reduce_scatter(self, what: str, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> PerseusWork:
        sources = [dense(what, tensor) for tensor in inputs]
        flats = [for_output(what, tensor) for tensor in outputs]
        for output, source in zip(outputs, sources, strict=True):
            if source.numel() != output.numel() * self._size or source.dtype != output.dtype:
                raise ValueError(
                    f"{what}: an input of {source.numel()} {source.dtype} for {self._size} ranks does not fit an "
                    f"output of {output.numel()} {output.dtype}"
                )
        reduction = _common_reduction(what, opts, sources)
        tail = (reduction.op, reduction.average, reduction.prescale, 1.0, self._number, sources)

        def finish(handle: Any) -> None:
            for flat, buffer in zip(flats, handle.outputs(), strict=True):
                flat.tensor.view(-1).copy_(from_buffer(buffer, flat.tensor.dtype))
                flat.finish()

        return self._start(
            what,
            self._core.reduce_scatter,
            [view(source) for source in sources],
            *tail,
            result=outputs,
            finish=finish,
        )


def _listed(tensors: Sequence[Tensor] | Tensor) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _common_reduction(what: str, opts: Any, tensors: Sequence[Tensor]) -> Reduction:
    if not tensors:
        raise ValueError(f"{what}: the list of tensors is empty")
    for tensor in tensors[1:]:
        resolve(what, opts, tensor.dtype)
    return resolve(what, opts, tensors[0].dtype)
