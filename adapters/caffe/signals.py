"""What signals ask of a training: `caffe train`'s --sigint_effect and --sighup_effect, over all ranks."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

import numpy as np

STOP, SNAPSHOT, NONE = EFFECTS = ("stop", "snapshot", "none")


class Requests:
    """Signals of this process, and what the ranks make of theirs together.

    A rank that was asked tells the others along with its gradients, so all do it after the same step. Only to be made
    in the main thread, on all ranks alike.
    """

    def __init__(self, effects: Mapping[signal.Signals, str]) -> None:
        self._asked: set[str] = set()
        self._agreed: set[str] = set()
        self._told = np.zeros(2, np.float32)  # STOP, SNAPSHOT
        for signum, effect in effects.items():
            signal.signal(signum, signal.SIG_IGN if effect == NONE else self._handler(effect))

    def telling(self) -> np.ndarray[Any, Any]:
        """What goes with the gradients, to be averaged over all ranks in place; then `heard` is called."""
        asked, self._asked = self._asked, set()
        self._told[:] = [STOP in asked, SNAPSHOT in asked]
        return self._told

    def heard(self) -> None:
        self._agreed.update(effect for effect, ranks in zip(EFFECTS, self._told, strict=False) if ranks > 0)

    def take(self, effect: str) -> bool:
        """Whether any rank was asked for it since the last time."""
        if effect not in self._agreed:
            return False
        self._agreed.remove(effect)
        return True

    def _handler(self, effect: str) -> Any:
        def note(signum: int, frame: FrameType | None) -> None:
            self._asked.add(effect)

        return note
