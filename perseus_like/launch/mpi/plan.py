"""What is asked of an mpirun, whatever its dialect."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..hosts import Host


@dataclass(frozen=True)
class Plan:
    """One job. `environment` is complete; `forward` are the names in it that other hosts need, too."""

    size: int
    hosts: list[Host] | None  # None: this host, or what the batch system has allotted
    command: list[str]
    environment: dict[str, str]
    forward: list[str]
    tag: str  # unique; marks whose output follows
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
    """A command line and the environment it is to be run in."""

    argv: list[str]
    environment: dict[str, str]
