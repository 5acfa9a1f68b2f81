"""How ranks find each other through torch's key-value store."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from perseus_like.errors import TimedOutError

_LENGTH = struct.Struct("!Q")


class StoreExchange:
    """A function that gives every rank's bytes, by rank; collective, round after round.

    Rank 0 collects, so that a store of a thousand ranks answers a thousand questions and not a million. Errors:
    TimedOutError on all ranks, naming those that have not come.
    """

    def __init__(self, store: Store, prefix: str, rank: int, size: int, timeout: timedelta) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._round = 0

    def __call__(self, mine: bytes) -> list[bytes]:
        place = f"{self._prefix}/{self._round}"
        self._round += 1
        if self._rank == 0:
            return self._collect(place, mine)
        self._store.set(f"{place}/{self._rank}", mine.hex())
        # Rank 0 says who is missing, a little later than a rank alone would give up.
        if not self._arrives([f"{place}/all"], self._timeout + timedelta(seconds=5)):
            raise TimedOutError(self._text([0]))
        kind, *parts = unpack(bytes.fromhex(self._store.get(f"{place}/all").decode()))
        if kind != b"all":
            raise TimedOutError(parts[0].decode())
        return parts

    def _collect(self, place: str, mine: bytes) -> list[bytes]:
        keys = [f"{place}/{rank}" for rank in range(1, self._size)]
        if not self._arrives(keys, self._timeout):
            text = self._text([rank for rank, key in enumerate(keys, 1) if not self._store.check([key])])
            self._store.set(f"{place}/all", pack([b"missing", text.encode()]).hex())
            raise TimedOutError(text)
        parts = [mine, *(bytes.fromhex(self._store.get(key).decode()) for key in keys)]
        self._store.set(f"{place}/all", pack([b"all", *parts]).hex())
        return parts

    def _arrives(self, keys: Sequence[str], limit: timedelta) -> bool:
        if not keys:
            return True
        try:
            self._store.wait(list(keys), limit)
        except RuntimeError:
            return all(self._store.check([key]) for key in keys)
        return True

    def _text(self, missing: Sequence[int]) -> str:
        ranks = ", ".join(map(str, missing))
        return (
            f"process group of {self._size} ranks: {'rank' if len(missing) == 1 else 'ranks'} {ranks} did not come to "
            f"the store within {self._timeout.total_seconds():g} s. All its ranks must make it; has one failed?"
        )


def pack(parts: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append(data[at : at + length])
        at += length
    return parts
