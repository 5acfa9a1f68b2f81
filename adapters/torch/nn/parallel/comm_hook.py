"""Communication hooks, as torch's DistributedDataParallel has them: a hook replaces the average of a bucket."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...gradients import Communicate
from ...gradients.bucket_memory import Contents


class GradBucket:
    """The argument of a hook, with the methods of torch.distributed.GradBucket."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._buffer = contents.row

    def index(self) -> int:
        """Returns the bucket's number in the pass. Hooks get buckets in this order on all ranks."""
        return self._contents.number

    def buffer(self) -> torch.Tensor:
        """Returns the bucket as a tensor of one dimension. There may be a few zeros between gradients."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Returns views of the original buffer, one for each parameter."""
        return self._contents.gradients

    def parameters(self) -> list[torch.Tensor]:
        return self._contents.parameters

    def is_last(self) -> bool:
        return self._contents.is_last


Hook = Callable[[Any, Any], Any]


def built_in(kind: Any) -> Hook:
    """Returns the hook of one of torch's BuiltinCommHookType."""
    from torch.distributed import BuiltinCommHookType  # type: ignore[attr-defined]
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hooks: dict[Any, Hook] = {
        BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
        BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
    }
    if kind not in hooks:
        raise ValueError(f"DistributedDataParallel: {kind!r} is no communication hook of torch's own")
    return hooks[kind]


def checked(hook: Any) -> Hook:
    """Raises TypeError if the hook cannot be called with a state and a bucket."""
    if not callable(hook):
        raise TypeError(f"register_comm_hook: a hook is called as hook(state, bucket); {hook!r} cannot be")
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError as error:
        raise TypeError(f"register_comm_hook: a hook is called as hook(state, bucket): {error}") from None
    except ValueError:  # a callable without a known signature
        pass
    return hook  # type: ignore[no-any-return]


def communicating(state: Any, hook: Hook) -> Communicate:
    """Returns a function that starts the hook on a bucket. It returns a wait, after which the bucket has the result."""

    def start(contents: Contents) -> Callable[[], object]:
        with torch.no_grad():
            future = hook(state, GradBucket(contents))
        if not hasattr(future, "wait"):
            raise TypeError(
                f"the communication hook gave {type(future).__name__}; it has to give a torch.futures.Future"
            )
        return lambda: _take(future.wait(), contents.row)

    return start


def _take(found: Any, row: torch.Tensor) -> None:
    result = found[0] if isinstance(found, Sequence) else found
    if not isinstance(result, torch.Tensor) or result.numel() != row.numel():
        given = f"{result.numel()} elements" if isinstance(result, torch.Tensor) else type(result).__name__
        raise ValueError(f"the communication hook's future gave {given} for a bucket of {row.numel()} elements")
    if result.data_ptr() != row.data_ptr() or result.dtype != row.dtype:
        row.copy_(result.view(-1))
