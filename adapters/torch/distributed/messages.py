"""send and recv between two ranks, and the barrier that says who has not come, which is made of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor

from perseus_like.errors import TimedOutError

from .. import cuda
from .engine import Engine
from .travel import check, dense, for_output, host_view
from .work import Finish, PerseusWork

_ANYBODY = -1
_ANSWER_BYTES = 1024


class Messages(Engine):
    """Messages of one sender and tag arrive in order. A send does not wait for its receive: the data are copied.

    Those of CUDA tensors go by way of pinned host memory: `send` blocks until the current stream has come so far.
    """

    _barriers = 0

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> PerseusWork:
        (tensor,) = tensors
        source = dense("send", tensor)
        if not source.is_cpu:
            source = cuda.fetched(source)
        handle = self._core.post(host_view(source), dst, tag, True, self._number, source)
        return PerseusWork(f"send to rank {dst} with tag {tag}", handle, [tensor], self._timeout, margin=0.0)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> PerseusWork:
        (tensor,) = tensors
        place, finish = _landing(tensor)
        handle = self._core.post(host_view(place), src, tag, False, self._number, place)
        sender = "any rank" if src == _ANYBODY else f"rank {src}"
        what = f"recv from {sender} with tag {tag}"
        return PerseusWork(what, handle, [tensor], self._timeout, finish, margin=0.0)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> PerseusWork:
        return self.recv(tensors, _ANYBODY, tag)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Raises TimedOutError, with one text on all ranks, where some do not come; it names all of them.

        `wait_all_ranks` changes nothing: whoever is missing at the end is known together.
        """
        limit = self._timeout if timeout is None else timeout.total_seconds()
        self._barriers += 1
        tag = -1 - self._barriers  # users' tags are not negative
        if self._rank == 0:
            self._watch_over_barrier(tag, limit)
            return
        self.send([torch.ones(1, dtype=torch.uint8)], 0, tag)
        answer = torch.empty(_ANSWER_BYTES, dtype=torch.uint8)
        # Rank 0 may have come earlier, but not so much later.
        self.recv([answer], 0, tag).wait(timedelta(seconds=2 * limit))
        text = bytes(answer.tolist()).rstrip(b"\0").decode()
        if text:
            raise TimedOutError(text)

    def _watch_over_barrier(self, tag: int, limit: float) -> None:
        deadline = time.monotonic() + limit
        coming = {r: self.recv([torch.empty(1, dtype=torch.uint8)], r, tag) for r in range(1, self._size)}
        missing = [rank for rank, work in coming.items() if not work.comes_until(deadline)]
        text = f"monitored_barrier: ranks {missing} of the group did not come within {limit:g} s" if missing else ""
        answer = torch.tensor(list(text.encode()[:_ANSWER_BYTES].ljust(_ANSWER_BYTES, b"\0")), dtype=torch.uint8)
        for rank in range(1, self._size):
            self.send([answer], rank, tag).wait()
        if missing:
            raise TimedOutError(text)


def _landing(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Where in host memory a message for the tensor is received, and what brings it there if that is elsewhere."""
    check("recv", tensor)
    if tensor.is_cpu:
        flat = for_output("recv", tensor)
        return flat.tensor, None if flat.target is None else lambda _: flat.finish()
    landing, deliver = cuda.landing(tensor), cuda.Delivery(tensor)
    return landing, lambda _: deliver(landing)
