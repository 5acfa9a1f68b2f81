"""horovod.runner.common.util.hosts: host lists, and the rank numbers of each slot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ....launch.host_list import parse_hostfile


@dataclass
class HostInfo:
    """A host and its slots (ranks that it may carry)."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parses `name:slots`."""
        (name,), slots = parse_hosts_and_slots(host_string)
        return HostInfo(name, slots[name])


@dataclass
class SlotInfo:
    """The numbers of one rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Returns rank, size, local rank, local size, cross rank and cross size with commas between them."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_host_files(filename: str) -> str:
    """Returns the hosts of a host file as `name:slots,…`. A line is `name slots=4` or `name:4`."""
    return ",".join(map(str, parse_hostfile(filename)))


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Returns the names of `name:slots,…` in order, and the slots of each. ValueError if a part has another form."""
    slots: dict[str, int] = {}
    for part in hosts.split(","):
        match = re.fullmatch(r"([\w.-]+):([0-9]+)", part.strip())
        if match is None:
            raise ValueError(f"cannot read {part!r} in the host list {hosts!r}; write name:slots, as in worker-0:2")
        slots[match[1]] = int(match[2])
    return list(slots), slots


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parses `name:slots,…`."""
    return [HostInfo.from_string(part) for part in hosts_string.split(",")]


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Fills the hosts in their order with at most `max_num_proc` ranks. ValueError if `min_num_proc` do not fit."""
    slots = [(host.hostname, local) for host in hosts for local in range(host.slots)][:max_num_proc]
    if len(slots) < min_num_proc:
        raise ValueError(f"{min_num_proc} ranks do not fit: the hosts have {len(slots)} slots; add hosts or slots")
    local_sizes = {host.hostname: sum(name == host.hostname for name, _ in slots) for host in hosts}
    across = [[name for name, other in slots if other == local] for _, local in slots]
    return [
        SlotInfo(
            hostname=name,
            rank=rank,
            local_rank=local,
            cross_rank=across[rank].index(name),
            size=len(slots),
            local_size=local_sizes[name],
            cross_size=len(across[rank]),
        )
        for rank, (name, local) in enumerate(slots)
    ]


__all__ = [
    "INVALID_SLOT_INFO",
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]
