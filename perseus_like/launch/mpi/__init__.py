"""Starts of ranks by the installed mpirun: the description of a job, from which its command line is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..host_list import Host


@dataclass(frozen=True)
class Plan:
    """One job. `environment` is complete, and `forward` has the names of the variables that other hosts need."""

    size: int
    hosts: list[Host] | None  # None: this host, or the allocation of the batch system
    command: list[str]
    environment: dict[str, str]
    forward: list[str]
    tag: str  # unique; marks the output of a rank
    remote_shell: str | None = None
    ssh_args: list[str] = field(default_factory=list)
    interfaces: str | None = None
    tcp: bool = False
    binding: list[str] | None = None
    extra: list[str] = field(default_factory=list)
    is_oversubscribed: bool = False
    is_root: bool = False


@dataclass(frozen=True)
class Line:
    """A command line and its environment."""

    argv: list[str]
    environment: dict[str, str]
