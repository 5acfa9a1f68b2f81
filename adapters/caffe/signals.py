"""Effects of signals on a training: `caffe train`'s --sigint_effect and --sighup_effect, over all ranks."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

import numpy as np

STOP, SNAPSHOT, NONE = EFFECTS = ("stop", "snapshot", "none")


class SignalRequests:
    """Signals of this process, and the effects that all ranks have agreed on.

    A rank that has received a signal sends a flag with its gradients, so that all ranks act after the same step. Must
    be made in the main thread, with the same effects on all ranks.
    """

    def __init__(self, effects: Mapping[signal.Signals, str]) -> None:
        self._requested: set[str] = set()
        self._agreed: set[str] = set()
        self._flags = np.zeros(2, np.float32)  # STOP, SNAPSHOT
        for signum, effect in effects.items():
            signal.signal(signum, signal.SIG_IGN if effect == NONE else self._handler(effect))

    def flags(self) -> np.ndarray[Any, Any]:
        """Returns flags that must be averaged over all ranks in place, before `read_flags` is called."""
        effects, self._requested = self._requested, set()
        self._flags[:] = [STOP in effects, SNAPSHOT in effects]
        return self._flags

    def read_flags(self) -> None:
        """Remembers the effects that any rank has requested."""
        self._agreed.update(effect for effect, ranks in zip(EFFECTS, self._flags, strict=False) if ranks > 0)

    def take(self, effect: str) -> bool:
        """Returns whether any rank has received a signal with this effect since the last call."""
        if effect not in self._agreed:
            return False
        self._agreed.remove(effect)
        return True

    def _handler(self, effect: str) -> Any:
        def note(signum: int, frame: FrameType | None) -> None:
            self._requested.add(effect)

        return note
