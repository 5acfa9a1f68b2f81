"""all_reduce, reduce and reduce_scatter, in all their forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from perseus_like.tables import DType, Start
from perseus_like.tensor import AS_IT_IS, ReduceOptions

from ...tensors.tensor_memory import write
from ..dtype_fallback import DTypeFallback, dtype_fallback
from ..layout_conversion import (
    adjacent,
    check_output,
    dense,
    finish_all,
    for_output,
    from_buffer,
    in_place,
    is_direct,
    joined,
    own_dtype,
    require_same_place,
    sizes_text,
    view,
    with_own_dtypes,
    written_directly,
)
from ..numbered_group import NumberedGroup, collective, root_of
from ..reduce_op import Reduction, resolve
from ..works import PerseusWork
from .sparse_reduction import sparse_allreduce


class _Plan(NamedTuple):
    """The operation, conversions and options for the tensors of a call."""

    reduction: Reduction
    fallbacks: list[DTypeFallback | None]  # by tensor
    options: ReduceOptions
    keeps_dtypes: bool

    def there(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [
            tensor if way is None else way.there(tensor) for way, tensor in zip(self.fallbacks, tensors, strict=True)
        ]


class Reductions(NumberedGroup):
    """all_reduce, reduce and reduce_scatter. Ranks must agree on the number of elements, and may differ in shapes."""

    @collective("all_reduce")
    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, op: Any = None) -> PerseusWork:
        opts = op if opts is None else opts
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if len(listed) != 1:
            return self._all_reduce("all_reduce", listed, opts)
        (tensor,) = listed
        if tensor.layout is torch.sparse_coo:
            return sparse_allreduce(self, tensor, opts)
        # Tensor parallelism waits for one small tensor after the other. This is all that such a call needs.
        if is_direct(tensor) and (plan := self._plan_of_one("all_reduce", opts, tensor.dtype)).keeps_dtypes:
            tail = (plan.options, self._number, tensor, self._start_of(opts))
            call = with_own_dtypes("all_reduce", listed) if own_dtype(tensor) else "all_reduce"
            return self._start(call, self._core.allreduce, [view(tensor)], None, *tail, result=listed)
        return self._all_reduce("all_reduce", listed, opts)

    @collective("all_reduce_coalesced")
    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> PerseusWork:
        return self._all_reduce("all_reduce_coalesced", list(tensors), opts)

    def average(self, tensor: Tensor, wire: DType) -> PerseusWork:
        """Averages in place. The wire dtype is `wire` for float32 and float64 tensors."""
        flat = in_place("all_reduce", tensor)
        kind = int(wire) if tensor.dtype in (torch.float32, torch.float64) else AS_IT_IS
        tail = (ReduceOptions(average=True, wire_dtype=kind), self._number, flat, Start.engine)
        finish = finish_all([flat])
        call = with_own_dtypes("all_reduce", [tensor])
        return self._start(call, self._core.allreduce, [view(flat.tensor)], None, *tail, result=[tensor], finish=finish)

    @collective("reduce")
    def reduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, op: Any = None, **named: Any) -> PerseusWork:
        """Reduces to the root. Tensors of the other ranks do not change."""
        root = root_of(opts, **named)
        opts = (op or ReduceOp.SUM) if opts is None or isinstance(opts, int) else opts
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        return self._all_reduce(f"reduce to rank {self.job_ranks[root]}", listed, opts, root)

    def _all_reduce(self, call: str, tensors: list[Tensor], opts: Any, root: int | None = None) -> PerseusWork:
        """Reduces in place; with a root, on that rank alone."""
        flats = [in_place(call, tensor) for tensor in tensors]
        plan = self._plan(call, opts, tensors)
        sources = plan.there([flat.tensor for flat in flats])
        is_root = root is None or root == self._rank
        # A converted tensor is a copy already.
        targets = [
            source if is_root or way is not None else torch.empty_like(source)
            for way, source in zip(plan.fallbacks, sources, strict=True)
        ]
        tail = (plan.options, self._number, (sources, targets, flats), self._start_of(opts))

        def bring_back(_: Any) -> None:
            for flat, way, target in zip(flats, plan.fallbacks, targets, strict=True):
                if way is not None:
                    flat.tensor.view(-1).copy_(way.back(target).view(-1))
                flat.finish()

        finish = (finish_all(flats) if plan.keeps_dtypes else bring_back) if is_root else None
        inputs = [view(source) for source in sources]
        outputs = [view(target) for target in targets] if root is not None else None
        named = with_own_dtypes(call, tensors)
        return self._start(named, self._core.allreduce, inputs, outputs, *tail, result=tensors, finish=finish)

    @collective("reduce_scatter")
    def reduce_scatter(
        self, outputs: Sequence[Tensor] | Tensor, inputs: Sequence[Any], opts: Any = None, op: Any = None
    ) -> PerseusWork:
        opts = op if opts is None else opts
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
        counts = [part.numel() for part in parts]
        if counts == [mine] * self._size:
            whole = adjacent(parts)
            if whole is None:
                whole = joined("reduce_scatter", parts)
            return self._reduce_scatter("reduce_scatter", [outputs[0]], [whole], opts)
        return self._reduce_part(counts, outputs[0], joined("reduce_scatter", parts), opts)

    def _reduce_part(self, counts: Sequence[int], output: Tensor, whole: Tensor, opts: Any) -> PerseusWork:
        """Executes a reduce_scatter with parts of different sizes: reduces everything, and copies this rank's part."""
        call = f"reduce_scatter of {sizes_text(counts)} elements"
        check_output(call, output, whole)
        plan = self._plan(call, opts, [whole])
        (source,) = plan.there([whole])
        (way,) = plan.fallbacks
        start = sum(counts[: self._rank])
        tail = (plan.options, self._number, (source, output), Start.engine)

        def finish(_: Any) -> None:
            part = source[start : start + output.numel()]
            write(output, (part if way is None else way.back(part)).view(output.shape))

        named = with_own_dtypes(call, [output])
        return self._start(named, self._core.allreduce, [view(source)], None, *tail, result=[output], finish=finish)

    @collective("reduce_scatter_tensor")
    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> PerseusWork:
        return self._reduce_scatter("reduce_scatter_tensor", [output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    @collective("reduce_scatter_tensor_coalesced")
    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> PerseusWork:
        return self._reduce_scatter("reduce_scatter_tensor_coalesced", list(outputs), list(inputs), opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _reduce_scatter(self, call: str, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> PerseusWork:
        given = [dense(call, tensor) for tensor in inputs]
        flats = [for_output(call, tensor) for tensor in outputs]
        for output, source in zip(outputs, given, strict=True):
            if source.numel() != output.numel() * self._size or source.dtype != output.dtype:
                raise ValueError(
                    f"{call}: an input of {source.numel()} {source.dtype} for {self._size} ranks does not fit an "
                    f"output of {output.numel()} {output.dtype}"
                )
            require_same_place(call, output, source)
        plan = self._plan(call, opts, given)
        sources = plan.there(given)

        def finish(handle: Any) -> None:
            if buffers := handle.outputs():  # otherwise the results are in their places
                for flat, way, source, buffer in zip(flats, plan.fallbacks, sources, buffers, strict=True):
                    found = from_buffer(buffer, source.dtype)
                    flat.tensor.view(-1).copy_(found if way is None else way.back(found))
                    flat.finish()

        direct = written_directly(outputs, sources) if plan.keeps_dtypes else None
        return self._start(
            with_own_dtypes(call, outputs),
            self._core.reduce_scatter,
            [view(source) for source in sources],
            *(plan.options, self._number, (sources, flats), direct),
            result=outputs,
            finish=finish,
        )

    def _plan_of_one(self, call: str, given: Any, dtype: torch.dtype) -> _Plan:
        """Returns a plan. Plans are kept, because training repeats few of them."""
        op = ReduceOp.SUM if given is None else getattr(given, "reduceOp", given)
        key = (type(op), hash(op), dtype)  # the hash is the number; comparing two operations takes longer
        plan = self._plans.get(key)
        if plan is None:
            reduction = resolve(call, given, dtype)
            way = dtype_fallback(dtype, reduction, self._size)
            plan = _plan(reduction if way is None else way.reduction, [way])
            if reduction.name != ReduceOp.PREMUL_SUM.name:  # its factor may differ in each call
                self._plans[key] = plan
        return plan

    def _start_of(self, opts: Any) -> Start:
        """Returns how to start: without `async_op`, torch waits for the work next."""
        waits = self._coalesced is None and not getattr(opts, "asyncOp", True)
        return Start.waiter if waits else Start.engine

    def _plan(self, call: str, opts: Any, tensors: Sequence[Tensor]) -> _Plan:
        """Returns one plan for all tensors, with conversions for dtypes that need them."""
        if len(tensors) == 1:
            return self._plan_of_one(call, opts, tensors[0].dtype)
        if not tensors:
            raise ValueError(f"{call}: the list of tensors is empty")
        reductions = [resolve(call, opts, tensor.dtype) for tensor in tensors]
        fallbacks = [
            dtype_fallback(tensor.dtype, reduction, self._size)
            for tensor, reduction in zip(tensors, reductions, strict=True)
        ]
        chosen = {each if way is None else way.reduction for each, way in zip(reductions, fallbacks, strict=True)}
        if len(chosen) > 1:
            raise ValueError(f"{call}: {reductions[0].name} of uint64 beside other types; reduce it by itself")
        return _plan(chosen.pop(), fallbacks)


def _plan(reduction: Reduction, fallbacks: list[DTypeFallback | None]) -> _Plan:
    options = ReduceOptions(reduction.op, reduction.average, reduction.prescale)
    return _Plan(reduction, fallbacks, options, not any(fallbacks))
