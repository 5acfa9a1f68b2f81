"""The hosts of an elastic job, in the order of their arrival, and the hosts that get no new workers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..host_list import Host


@dataclass
class Blacklisting:
    """The failures of a host, and the time until which it gets no worker. None stands for the rest of the job."""

    count: int = 0
    until: float | None = None


@dataclass
class HostManager:
    """The hosts of the job.

    `cooldown` has the seconds for which a host gets no worker after its first failure, and the longest such time. The
    time doubles with each failure. Without a cooldown, a host that failed gets no worker for the rest of the job.
    """

    cooldown: tuple[int, int] | None
    found: dict[str, int] = field(default_factory=dict)  # slots by name, the oldest host first
    _blacklist: dict[str, Blacklisting] = field(default_factory=dict)
    _missing: set[str] = field(default_factory=set)  # in the last answer

    def update(self, hosts: list[Host]) -> bool:
        """Replaces the list of hosts by an answer of the discovery. Returns True if it has changed.

        A host that stays keeps its position. It leaves once it is missing in two answers in succession.
        """
        slots = {host.name: host.slots for host in hosts}
        missing = self.found.keys() - slots.keys()
        slots |= {name: self.found[name] for name in missing - self._missing}
        self._missing = missing
        ordered = {name: slots[name] for name in [*self.found, *slots] if name in slots}
        is_new = ordered != self.found
        self.found = ordered
        return is_new

    def blacklist(self, name: str) -> float | None:
        """Blacklists a host after a failure. Returns for how many seconds; None for the rest of the job."""
        entry = self._blacklist.setdefault(name, Blacklisting())
        entry.count += 1
        if self.cooldown is None:
            entry.until = None
            return None
        shortest, longest = self.cooldown
        seconds = float(min(longest, shortest * 2 ** min(entry.count - 1, 30)))
        entry.until = time.monotonic() + seconds
        return seconds

    def is_blacklisted(self, name: str) -> bool:
        entry = self._blacklist.get(name)
        return entry is not None and (entry.until is None or entry.until > time.monotonic())

    def has_failed(self, name: str) -> bool:
        """Returns True if a worker or the agent of this host has failed before."""
        return name in self._blacklist

    def have_all_failed(self) -> bool:
        """Returns True if each host of the job has failed at some time."""
        return all(self.has_failed(name) for name in self.found)

    def are_all_lost(self) -> bool:
        """Returns True if all hosts are blacklisted for the rest of the job."""
        return bool(self.found) and self.cooldown is None and not self.staying()

    def usable(self) -> dict[str, int]:
        """Returns the slots of the hosts that may get workers."""
        return {name: slots for name, slots in self.found.items() if not self.is_blacklisted(name)}

    def staying(self) -> dict[str, int]:
        """Returns the slots of the hosts whose workers stay.

        Workers leave a blacklisted host, unless the job has no other host: then the survivors continue.
        """
        return self.usable() if len(self.found) > 1 else self.found

    def describe(self) -> str:
        """Describes the hosts for the user: "a:4, b:2 (blacklisted)"."""
        marks = ((f"{name}:{slots}", self.is_blacklisted(name)) for name, slots in self.found.items())
        return ", ".join(f"{text} (blacklisted)" if is_out else text for text, is_out in marks) or "none"
