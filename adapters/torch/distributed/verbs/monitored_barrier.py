"""The barrier that names the ranks that do not come, made of messages.

Rank 0 of the group greets every rank when it comes, and every rank replies. A rank that was not greeted within its
limit replies that it has given up, so rank 0 fails as well. Rank 0 then sends its verdict to all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor

from perseus_like.errors import TimedOutError

from .messages import Messages

_VERDICT_BYTES = 1024
_HERE, _GAVE_UP = 1, 2
# A rank that was greeted waits longer than rank 0 by this time.
_MARGIN_SECONDS = 5.0


class MonitoredBarrier(Messages):
    """Error texts begin as gloo's do, because programs look for them."""

    _barriers = 0

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Raises TimedOutError on all ranks that have come if some ranks do not come.

        The text names all of them. `wait_all_ranks` decides whether it begins with the first one or with all.
        """
        limit = self._timeout if timeout is None else timeout.total_seconds()
        self._barriers += 1
        tag = -1 - self._barriers  # users' tags are not negative
        if self._rank == 0:
            self._watch(tag, limit, wait_all_ranks)
        else:
            self._take_part(tag, limit)

    def _watch(self, tag: int, limit: float, wait_all_ranks: bool) -> None:
        deadline = time.monotonic() + limit
        others = range(1, self._size)
        for rank in others:
            self.send([_byte(_HERE)], rank, tag)
        replies = {rank: _byte(0) for rank in others}
        coming = {rank: self.recv([reply], rank, tag) for rank, reply in replies.items()}
        missing = [rank for rank, work in coming.items() if not work.comes_until(deadline)]
        gave_up = [rank for rank in others if rank not in missing and replies[rank].item() == _GAVE_UP]
        text = self._verdict(missing, gave_up, limit, wait_all_ranks)
        verdict = torch.tensor(list(text.encode()[:_VERDICT_BYTES].ljust(_VERDICT_BYTES, b"\0")), dtype=torch.uint8)
        for rank in others:
            self.send([verdict], rank, tag)
        if text:
            raise TimedOutError(text)

    def _verdict(self, missing: Sequence[int], gave_up: Sequence[int], limit: float, all_first: bool) -> str:
        """Returns an error text, or an empty one if all ranks came."""
        if missing:
            named = missing if all_first else missing[:1]
            rest = [] if all_first else missing[1:]
            nor = f", nor did {_ranks(rest).lower()}" if rest else ""
            reason = f"{_ranks(named)} failed to pass monitoredBarrier in {_milliseconds(limit)}{nor}"
            return f"Rank 0 timed out in monitoredBarrier after {_milliseconds(limit)}: {reason}"
        if gave_up:
            return f"Rank 0 failed to pass monitoredBarrier in time: {_ranks(gave_up).lower()} timed out before"
        return ""

    def _take_part(self, tag: int, limit: float) -> None:
        greeted = self.recv([_byte(0)], 0, tag).comes_until(time.monotonic() + limit)
        self.send([_byte(_HERE if greeted else _GAVE_UP)], 0, tag)
        if not greeted:
            after = _milliseconds(limit)
            raise TimedOutError(
                f"Rank {self._rank} timed out in monitoredBarrier after {after}: Rank 0 failed to pass "
                f"monitoredBarrier in {after}. All ranks of the group must call it"
            )
        verdict = torch.empty(_VERDICT_BYTES, dtype=torch.uint8)
        self.recv([verdict], 0, tag).wait(timedelta(seconds=2 * limit + _MARGIN_SECONDS))
        text = bytes(verdict.tolist()).rstrip(b"\0").decode(errors="replace")
        if text:
            raise TimedOutError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0: {text}"
            )


def _byte(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.uint8)


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)} ms"
