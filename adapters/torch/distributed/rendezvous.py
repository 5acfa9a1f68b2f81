"""The rendezvous of a process group's ranks through torch's key-value store.

A store may be older than the group. torchrun keeps one store for all its restarts, and a program may make a group again
after a failure, with some processes that were there before and some that are new. So the ranks share no counter, and no
rank reads a key that an earlier attempt can have written:

1. Each rank draws a random name. Ranks other than 0 announce theirs under a key of their rank.
2. Rank 0 invites every announced name to its rendezvous, which is called by rank 0's own name.
3. All further keys contain the name of the rendezvous, and keys of one rank its name.

A process that replaces another one announces another name. Until the first round is complete rank 0 invites it in place
of the one before; later it is an error on all ranks. A new rank 0 invites the names that it finds in the same way.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import struct
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from perseus_like.errors import HorovodInternalError, PeerLostError, TimedOutError, TransportError, UnavailableError

from ..compat.stores import has_keys, set_key

_LENGTH = struct.Struct("!Q")
_NAME = re.compile(r"[0-9a-f]{32}")
# Rank 0 reports who is missing, so the others give up a little later than rank 0.
_GRACE_SECONDS = 5.0
# A rank that fails before it was invited waits for its invitation for this time, to report the failure under its name.
_REPORT_SECONDS = 5.0
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS_PER_RANK = 0.001, 0.01, 0.0002

# First part of rank 0's answer to a round.
_ALL, _TIMED_OUT, _PEER_LOST, _FAILED = b"all", b"timed out", b"peer lost", b"failed"
_ERRORS: dict[bytes, type[Exception]] = {
    _TIMED_OUT: TimedOutError,
    _PEER_LOST: PeerLostError,
    _FAILED: UnavailableError,
}


class StoreRendezvous:
    """An allgather of bytes over the store: a function that returns every rank's bytes, by rank. Collective.

    Rank 0 collects, so that a store of a thousand ranks answers thousands of requests and not a million. Raises on all
    ranks: TimedOutError if ranks are missing, PeerLostError if a rank was lost or started again, UnavailableError if a
    rank has called `fail`, or if the store is gone.
    """

    def __init__(self, store: Store, prefix: str, rank: int, size: int, timeout: timedelta) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._round = 0
        self._name = uuid.uuid4().hex
        self._rendezvous = self._name if rank == 0 else ""  # empty: this rank has not been invited yet
        self._is_over = False  # the other ranks know the reason, or no other rank is there
        self._pause = _SHORTEST_PAUSE_SECONDS  # until the next look at the store
        self._invited: dict[int, str] = {}  # at rank 0: names by rank
        # Whoever notices that a rank is lost writes to this eventfd. A round that is not complete then ends.
        self.lost = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.lost)

    def __call__(self, mine: bytes) -> list[bytes]:
        if self._size == 1:
            return [mine]
        try:
            parts = self._collect(mine) if self._rank == 0 else self._contribute(mine)
        except RuntimeError as error:
            if isinstance(error, HorovodInternalError | UnavailableError):
                raise
            raise UnavailableError(
                f"process group of {self._size} ranks: torch's store does not answer ({error}). torchrun's agent or "
                "rank 0 serves it; if that process has ended, start the job again"
            ) from error
        self._round += 1
        return parts

    def fail(self, error: Exception) -> None:
        """Reports to the other ranks that this rank cannot continue, unless they know. They raise in this round.

        If this rank has noticed that another rank is lost, they raise PeerLostError, as if they had noticed it first.
        Blocks for up to 5 seconds if the ranks have not met yet.
        """
        if self._is_over or self._size == 1:
            return
        kind, text = _FAILED, f"process group of {self._size} ranks: rank {self._rank} failed to join. {error}"
        if isinstance(error, PeerLostError):
            kind, text = _PEER_LOST, f"{self._lost_text()}. Rank {self._rank} reports: {error}"
        with contextlib.suppress(RuntimeError):  # the store is gone, and the other ranks notice that by themselves
            if self._rank == 0:
                self._answer(kind, text.encode())
                self._invite_before_leaving()
            elif self._rendezvous or self._is_invited_in_time():
                self._report(kind, text)

    def _report(self, kind: bytes, text: str) -> None:
        """Tells the other ranks that this rank, which was invited, cannot continue."""
        self._set(self._key("failed"), pack((kind, text.encode())).hex())

    def _invite_before_leaving(self) -> None:
        """Invites the ranks that arrive in the first round, so that they read rank 0's answer."""
        for _ in self._polls(_REPORT_SECONDS if self._round == 0 else 0.0):
            if self._round == 0:
                self._invite()
            if len(self._invited) == self._size - 1:
                return

    def _is_invited_in_time(self) -> bool:
        """Announces this rank, unless it has done so, and waits for an invitation."""
        self._set(self._announcement(self._rank), self._name)
        for _ in self._polls(_REPORT_SECONDS):
            self._rendezvous = self._read_invitation()
            if self._rendezvous:
                return True
        return False

    def _collect(self, mine: bytes) -> list[bytes]:
        """Executes rank 0's part of a round."""
        for _ in self._polls(self._timeout.total_seconds()):
            self._invite()
            # A rank that gave up may have contributed before, so its failure counts more than its piece.
            if has_keys(self._store, [self._key("failed")]):
                error = self._end(*self._read_failure())
                self._invite_before_leaving()
                raise error
            keys = [self._piece(self._invited[rank]) for rank in sorted(self._invited)]
            if len(keys) == self._size - 1 and has_keys(self._store, keys):
                parts = [mine, *(self._read(key) for key in keys)]
                self._answer(_ALL, *parts)
                return parts
        missing = [
            rank
            for rank in range(1, self._size)
            if rank not in self._invited or not has_keys(self._store, [self._piece(self._invited[rank])])
        ]
        raise self._end(_TIMED_OUT, self._missing_text(missing))

    def _invite(self) -> None:
        """Invites each rank that has announced a name which is new to this rendezvous."""
        for rank in range(1, self._size):
            key = self._announcement(rank)
            if not has_keys(self._store, [key]):
                continue
            name = self._store.get(key).decode(errors="replace")
            if name == self._invited.get(rank) or not _NAME.fullmatch(name):
                continue
            if self._round > 0:
                raise self._end(_PEER_LOST, self._restarted_text(rank))
            self._invited[rank] = name
            self._set(self._invitation(name), self._rendezvous)
            self._pause = _SHORTEST_PAUSE_SECONDS  # its piece comes soon

    def _contribute(self, mine: bytes) -> list[bytes]:
        """Executes the other ranks' part of a round."""
        if self._round == 0:
            self._set(self._announcement(self._rank), self._name)
        contributed_to = ""
        for _ in self._polls(self._timeout.total_seconds() + _GRACE_SECONDS):
            rendezvous = self._read_invitation()
            if rendezvous != self._rendezvous and self._round > 0:
                raise PeerLostError(self._restarted_text(0))
            self._rendezvous = rendezvous
            if rendezvous != contributed_to:
                self._set(self._piece(self._name), mine.hex())
                contributed_to = rendezvous
                self._pause = _SHORTEST_PAUSE_SECONDS  # the answer may come soon
            if rendezvous and has_keys(self._store, [self._key(f"{self._round}/answer")]):
                return self._read_answer()
            if rendezvous and has_keys(self._store, [self._key("failed")]):  # rank 0 may be the rank that was lost
                kind, text = self._read_failure()
                self._is_over = True
                raise _ERRORS[kind](text)
        self._is_over = not self._rendezvous
        raise TimedOutError(self._missing_text([0]))

    def _read_invitation(self) -> str:
        key = self._invitation(self._name)
        if not has_keys(self._store, [key]):
            return ""
        name = self._store.get(key).decode(errors="replace")
        if not _NAME.fullmatch(name):
            raise TransportError(self._unreadable_text(key))
        return name

    def _read_failure(self) -> tuple[bytes, str]:
        """Returns the kind and the text of the error of a rank that cannot continue."""
        key = self._key("failed")
        kind, *texts = unpack(self._read(key)) or [b""]
        if kind not in _ERRORS:
            raise TransportError(self._unreadable_text(key))
        return kind, b"".join(texts).decode(errors="replace")

    def _read_answer(self) -> list[bytes]:
        key = self._key(f"{self._round}/answer")
        kind, *parts = unpack(self._read(key)) or [b""]
        if kind in _ERRORS:
            self._is_over = True
            raise _ERRORS[kind](b"".join(parts).decode(errors="replace"))
        if kind != _ALL or len(parts) != self._size:
            raise TransportError(self._unreadable_text(key))
        return parts

    def _end(self, kind: bytes, text: str) -> Exception:
        """Ends the rendezvous on the other ranks, too: returns the error that rank 0 is to raise."""
        self._answer(kind, text.encode())
        self._is_over = True
        return _ERRORS[kind](text)

    def _answer(self, *parts: bytes) -> None:
        self._set(self._key(f"{self._round}/answer"), pack(parts).hex())

    def _announcement(self, rank: int) -> str:
        return f"{self._prefix}/announced/{rank}"

    def _invitation(self, name: str) -> str:
        return f"{self._prefix}/invited/{name}"

    def _piece(self, name: str) -> str:
        return self._key(f"{self._round}/{name}")

    def _key(self, rest: str) -> str:
        return f"{self._prefix}/{self._rendezvous}/{rest}"

    def _set(self, key: str, value: str) -> None:
        set_key(self._store, key, value)

    def _read(self, key: str) -> bytes:
        try:
            return bytes.fromhex(self._store.get(key).decode())
        except ValueError:
            raise TransportError(self._unreadable_text(key)) from None

    def _polls(self, seconds: float) -> Iterator[None]:
        """Yields until the time is over, at intervals that grow as long as nothing sets `_pause` back.

        Raises PeerLostError once a rank is lost.

        `Store.wait` is not used: it logs a warning each time that it gives up, and it cannot look at two keys.
        """
        deadline = time.monotonic() + seconds
        self._pause = _SHORTEST_PAUSE_SECONDS
        longest = max(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS_PER_RANK * self._size)
        lost = select.poll()
        lost.register(self.lost, select.POLLIN)
        while True:
            yield
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if lost.poll(1000 * min(self._pause, left)):
                yield  # a round that is complete has its answer before the first of its ranks can end
                text = self._lost_text()
                if self._rank == 0:
                    raise self._end(_PEER_LOST, text)
                with contextlib.suppress(RuntimeError):  # the store is gone
                    self._report(_PEER_LOST, text)  # ranks of other hosts may not notice the loss
                self._is_over = True
                raise PeerLostError(text)
            self._pause = min(2 * self._pause, longest)

    def _lost_text(self) -> str:
        return (
            f"process group of {self._size} ranks: a rank ended while the group was being made. Look for the first "
            "error of a rank, and make the group again on all ranks; under torchrun, let this process end with this "
            "error"
        )

    def _missing_text(self, missing: Sequence[int]) -> str:
        return (
            f"process group of {self._size} ranks timed out after {self._timeout.total_seconds():g} s: "
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} did not come to the store. All "
            "its ranks must make the group; look for the first error of a rank that did not"
        )

    def _restarted_text(self, rank: int) -> str:
        return (
            f"process group of {self._size} ranks: rank {rank} was started again while the group was being made. Make "
            "the group again on all ranks; under torchrun, let this process end with this error"
        )

    def _unreadable_text(self, key: str) -> str:
        return (
            f"process group of {self._size} ranks: the store's key {key!r} has a value that perseus_like has not "
            "written. Use a store of your own, or another prefix (torch.distributed.PrefixStore), for this group"
        )


def pack(parts: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    """Returns the parts that `pack` has joined; an empty list if `data` is not of this form."""
    parts, at = [], 0
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            return []
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            return []
        parts.append(data[at : at + length])
        at += length
    return parts
