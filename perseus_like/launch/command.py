"""Decides what a command line asks for, and does it."""

from __future__ import annotations

import os

from .allocation import find_allocation
from .cores import usable_cores
from .elastic.settings import is_elastic
from .errors import LaunchError
from .hosts import Host, is_this_machine, parse_hostfile, parse_hosts, place
from .options import Options, parse_options
from .settings import GROUPS
from .torch_program import with_runner
from .version import version

# 128 ranks work on two cores. Beyond that, the number is more likely a slip than a wish.
MOST_RANKS_PER_CORE = 128


def run_command(argv: list[str]) -> int:
    """`perseusrun` with these arguments; returns the exit code. Raises LaunchError."""
    options = parse_options(argv)
    if options.version:
        print(version())
        return 0
    if options.check_build:
        from .check_build import report

        print(report(options.mpirun))
        return 0
    if not options.command:
        raise LaunchError("no command to run; usage: perseusrun -np N [options] command [arguments]")
    options.notes += _without_effect(options.settings)
    options.notes += _start_torch(options)
    hosts = _listed_hosts(options)
    if is_elastic(options):
        from .elastic.run import run_elastic

        return run_elastic(options, hosts)
    size = _number_of_ranks(options, hosts)
    placed = place(hosts, size) if hosts else None
    if not (options.dry_run or options.oversubscribe):
        _check_ranks_here(size, placed)
    if not options.use_mpi and (placed is None or all(is_this_machine(host.name) for host in placed)):
        return _local(options, size)
    return _mpi(options, size, placed)


def _without_effect(settings: dict[str, str]) -> list[str]:
    """Says which of these variables the installed core does not read."""
    if not settings:
        return []
    try:
        from perseus_like import _core
    except ImportError:
        return []
    known = {name for name, *_ in _core.settings_table()}
    # A switch has two options for one variable.
    flags = {(setting.variable, setting.value): setting.flag for group in GROUPS.values() for setting in group}
    return [
        f"{flags.get((name, value)) or flags[name, None]} has no effect in this version ({name})"
        for name, value in settings.items()
        if name not in known
    ]


def _start_torch(options: Options) -> list[str]:
    """Puts the runner before a program that wants torch.distributed to be there; says so where nobody asked for it."""
    if options.torch is False:
        return []
    command = with_runner(options.command, always=bool(options.torch))
    if command is None:
        if options.torch:
            raise LaunchError("--torch needs a command that begins with python, and a script or -m module")
        return []
    options.command = command
    if options.torch:
        return []
    return [
        "torch.distributed is started over perseus before this program of Trainer or accelerate; --no-torch: it is not"
    ]


def _listed_hosts(options: Options) -> list[Host] | None:
    hosts = _named_hosts(options)
    if hosts is None or options.per_host is None:
        return hosts
    return [Host(host.name, options.per_host) for host in hosts]


def _named_hosts(options: Options) -> list[Host] | None:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is not None:
        return parse_hostfile(options.hostfile)
    allocation = None if options.host_discovery_script else find_allocation(os.environ)
    if allocation is None:
        return None
    # mpirun starts its daemons there by means of the batch system.
    options.is_batch = allocation.has_own_shell
    if options.verbose:
        options.notes.append(f"hosts of {allocation.source}: " + ",".join(map(str, allocation.hosts)))
    return allocation.hosts


def _number_of_ranks(options: Options, hosts: list[Host] | None) -> int:
    if options.num_proc is None:
        if not hosts:
            raise LaunchError("how many ranks? give -np N, or hosts with -H or --hostfile")
        return sum(host.slots for host in hosts)
    if options.num_proc < 1:
        raise LaunchError(f"-np {options.num_proc}: there must be at least one rank")
    return options.num_proc


def _check_ranks_here(size: int, hosts: list[Host] | None) -> None:
    cores = usable_cores()
    if size <= MOST_RANKS_PER_CORE * cores:
        return  # without looking names of hosts up, which can take long
    here = size if hosts is None else sum(host.slots for host in hosts if is_this_machine(host.name))
    if here > MOST_RANKS_PER_CORE * cores:
        raise LaunchError(
            f"{here} ranks on this host, which has {cores} usable cores: more than {MOST_RANKS_PER_CORE} for each; "
            "take a smaller -np, or add --oversubscribe"
        )


def _local(options: Options, size: int) -> int:
    from .local import describe_local, run_local

    if options.dry_run:
        print("\n".join(describe_local(options, size)))
        return 0
    return run_local(options, size)


def _mpi(options: Options, size: int, hosts: list[Host] | None) -> int:
    from .mpi.run import describe_mpi, run_mpi

    if options.dry_run:
        print(describe_mpi(options, size, hosts))
        return 0
    return run_mpi(options, size, hosts)
