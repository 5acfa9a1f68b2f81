"""Runs a command line of perseusrun: an ordinary job on one host, over ssh or through mpirun, or an elastic job."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...host_facts import installed_version, usable_cores
from ...protocol.nearest import notes_on_variables
from ..allocation import find_allocation
from ..choice import choose_start
from ..elastic import is_elastic
from ..environment import user_variables
from ..host_list import Host, assign_ranks, is_this_machine, parse_hostfile, parse_hosts
from ..program import split_variables, with_python
from ..start_errors import LaunchError
from ..torch_program import with_runner
from . import Options, parse_options
from .foreign_options import check_nodes
from .settings import parse_forward

if TYPE_CHECKING:
    from ..processes.supervise import Ending

# 128 ranks work on two cores. A larger number is more likely a mistake.
MOST_RANKS_PER_CORE = 128


def run_command(argv: list[str]) -> int:
    """Runs `perseusrun` with these arguments and returns the exit code. Raises LaunchError."""
    options = parse_options(["--help"] if argv == ["help"] else argv)
    if options.version:
        print(installed_version())
        return 0
    if options.check_build:
        from .check_build import report

        print(report(options.mpirun))
        return 0
    variables, options.command = split_variables(options.command)
    options.forward += map(parse_forward, variables)
    if not options.command:
        raise LaunchError("the command to run is missing; usage: perseusrun -np N [options] train.py [arguments]")

    options.command = with_python(options.command)
    options.notes += _unknown_variables(options)
    options.notes += _start_torch(options)
    if is_elastic(options) and (options.cpu_list or options.report_bindings):
        raise LaunchError("--cpu-list and --report-bindings: elastic jobs do not bind their workers; leave them out")
    hosts = _listed_hosts(options)
    check_nodes(options.nodes, len(hosts or ()))
    if is_elastic(options):
        if options.max_restarts:
            options.notes.append("--max-restarts has no effect: an elastic job replaces workers; see --reset-limit")
        from ..elastic.run_elastic import run_elastic

        return run_elastic(options, hosts)
    size = _number_of_ranks(options, hosts)
    placed = assign_ranks(hosts, size, *_remedies(options, size)) if hosts else None
    if not (options.dry_run or options.oversubscribe):
        _check_ranks_here(size, placed)
    if not options.use_mpi and (placed is None or all(is_this_machine(host.name) for host in placed)):
        return _local(options, size)
    uses_mpirun, reason = choose_start(options, len(placed)) if placed else (True, "no hosts are named")
    return _mpi(options, size, placed, reason) if uses_mpirun else _ssh(options, size, placed or [], reason)


def _unknown_variables(options: Options) -> list[str]:
    try:
        from ... import _core
    except ImportError:  # the ranks report it
        return []
    return notes_on_variables(user_variables(os.environ, options), _core)


def _start_torch(options: Options) -> list[str]:
    """Inserts the runner before a program that needs torch.distributed. Returns a note unless --torch is given."""
    if options.torch is False:
        return []
    command = with_runner(options.command, always=bool(options.torch))
    if command is None:
        if options.torch:
            raise LaunchError("--torch needs a command that starts with python and a script or -m module")
        return []
    options.command = command
    if options.torch:
        return []
    note = "starting torch.distributed over perseus before this program, which uses Trainer or accelerate"
    return [f"{note}; --no-torch turns this off"]


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
    # mpirun starts its daemons on these hosts through the batch system.
    options.is_batch = allocation.has_own_shell
    options.batch_system = allocation.source
    if options.verbose:
        options.notes.append(f"hosts of {allocation.source}: " + ",".join(map(str, allocation.hosts)))
    return allocation.hosts


def _remedies(options: Options, size: int) -> list[str]:
    """Returns what to do if a batch job has too few slots; empty if the user has named the hosts."""
    if not options.batch_system:
        return []
    system = options.batch_system
    more = f"Slurm for more tasks (--ntasks={size})" if system == "Slurm" else f"the batch system for more ({system})"
    return [f"they are those of the batch job: ask {more}, name hosts with -H host:slots, or give a smaller -np"]


def _number_of_ranks(options: Options, hosts: list[Host] | None) -> int:
    if options.num_proc is None:
        if not hosts:
            if options.per_host is not None:
                return options.per_host
            raise LaunchError("the number of ranks is missing: give -np N, or hosts with -H or --hostfile")
        return sum(host.slots for host in hosts)
    if options.num_proc < 1:
        raise LaunchError(f"-np {options.num_proc}: there must be at least one rank")
    return options.num_proc


def _check_ranks_here(size: int, hosts: list[Host] | None) -> None:
    cores = usable_cores()
    if size <= MOST_RANKS_PER_CORE * cores:
        return  # avoids the lookup of host names, which can be slow
    here = size if hosts is None else sum(host.slots for host in hosts if is_this_machine(host.name))
    if here > MOST_RANKS_PER_CORE * cores:
        raise LaunchError(
            f"{here} ranks on this host, which has {cores} usable cores, are more than {MOST_RANKS_PER_CORE} per core; "
            "give a smaller -np, or add --oversubscribe"
        )


def _local(options: Options, size: int) -> int:
    from ..local import describe_local, run_local

    if options.dry_run:
        print("\n".join(describe_local(options, size)))
        return 0
    cores = usable_cores()
    if size >= 2 * cores and not options.oversubscribe:
        few = "1 core" if cores == 1 else f"{cores} cores"
        options.notes.append(
            f"{size} ranks share {few} of this host ({size / cores:.3g} ranks per core), so each is slower"
        )
    return _restarting(options, lambda: run_local(options, size))


def _ssh(options: Options, size: int, hosts: list[Host], reason: str) -> int:
    if options.cpu_list or options.report_bindings:
        raise LaunchError(
            "--cpu-list and --report-bindings: on several hosts, only an mpirun binds ranks; give --mpi and its "
            "options in --binding-args"
        )
    from ..ssh import describe_ssh, run_over_ssh

    if options.dry_run:
        print("\n".join(describe_ssh(options, hosts)))
        return 0
    return _restarting(options, lambda: run_over_ssh(options, size, hosts, reason))


def _mpi(options: Options, size: int, hosts: list[Host] | None, reason: str) -> int:
    if options.cpu_list or options.report_bindings:
        raise LaunchError(
            "--cpu-list and --report-bindings: mpirun starts the ranks of this job; give its options in --binding-args"
        )
    if options.verbose:
        options.notes.append(f"starting the ranks through mpirun: {reason}")
    from ..mpi.run_mpi import describe_mpi, run_mpi

    if options.dry_run:
        print(describe_mpi(options, size, hosts))
        return 0
    return _restarting(options, lambda: run_mpi(options, size, hosts))


def _restarting(options: Options, run: Callable[[], Ending]) -> int:
    """Runs the job, and runs it again after a failure, as often as the user allows. Returns its last exit code."""
    forward, most = options.forward, options.max_restarts
    while True:
        if most:
            counts = {"TORCHELASTIC_RESTART_COUNT": options.restart, "TORCHELASTIC_MAX_RESTARTS": most}
            options.forward = [*forward, *((name, str(count)) for name, count in counts.items())]
        ending = run()
        if not ending.has_failed or options.restart == most:
            return ending.code
        options.restart += 1
        options.notes = [f"starting all ranks again: restart {options.restart} of {most}"]
