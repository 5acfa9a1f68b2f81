"""The parts of a job on several hosts that do not depend on its start: addresses, limits, the check, the heartbeat."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Sequence

from ..host_facts import installed_version
from .addresses import listen_at, own_addresses
from .command_line import Options
from .environment import user_variables
from .mpi.heartbeat import DEFAULT_TIMEOUT_SECONDS, LauncherHeartbeat
from .preflight import DEFAULT_SECONDS, Wanted, check_hosts
from .start_errors import LaunchError

DEFAULT_START_SECONDS = 60  # as in the core

_HEARTBEAT_TIMEOUT = "PERSEUS_HEARTBEAT_TIMEOUT"


def ssh_args(options: Options) -> list[str]:
    """Returns the options of ssh that the user has given."""
    args = ["-p", str(options.ssh_port)] if options.ssh_port else []
    return args + (["-i", options.ssh_identity_file] if options.ssh_identity_file else [])


def check_seconds(options: Options) -> float:
    """Returns the time in which a host must answer to the check before the start."""
    return options.start_timeout or DEFAULT_SECONDS


def check_over_shell(options: Options, hosts: Sequence[str], shell: Sequence[str], paths: list[str]) -> None:
    """Checks hosts over a remote shell before the start. `paths` must exist on all hosts. Raises LaunchError."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(each) for each in listen_at(reachable_addresses(options))]
        way_back = [each.getsockname()[:2] for each in listeners]
        check_hosts(hosts, shell, Wanted(installed_version(), paths, way_back), check_seconds(options))


def reachable_addresses(options: Options) -> list[str]:
    """Returns the addresses at which other hosts may reach this one."""
    return [each for each in own_addresses(_interfaces(options)) if not ipaddress.ip_address(each).is_loopback]


def start_seconds(options: Options) -> float:
    """Returns the time in which all ranks must have started."""
    given = user_variables(os.environ, options)
    text = given.get("PERSEUS_START_TIMEOUT") or given.get("HOROVOD_START_TIMEOUT") or ""
    return options.start_timeout or float(text if text.isdecimal() else DEFAULT_START_SECONDS)


def heartbeat_seconds(options: Options) -> int:
    """Returns the time without an answer after which a host counts as lost; 0: never."""
    text = user_variables(os.environ, options).get(_HEARTBEAT_TIMEOUT) or str(DEFAULT_TIMEOUT_SECONDS)
    if not re.fullmatch("[0-9]+", text):
        raise LaunchError(f"{_HEARTBEAT_TIMEOUT}={text!r} is not a number of seconds; give a whole number, or 0")
    return int(text)


def make_heartbeat(options: Options, size: int, seconds: int, is_open: bool = False) -> LauncherHeartbeat:
    """Returns the launcher's end of the connections to `size` ranks, which listens now."""
    return LauncherHeartbeat(seconds, own_addresses(_interfaces(options)), size, is_open)


def _interfaces(options: Options) -> str | None:
    return options.nics or user_variables(os.environ, options).get("PERSEUS_NETWORK_INTERFACES")
