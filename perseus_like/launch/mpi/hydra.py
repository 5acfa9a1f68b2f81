"""Command lines for the mpirun of MPICH and of Intel MPI, which are both Hydra."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..environment import forwarded_names
from . import Line, Plan

_DEFAULT_STREAMS = 4


def mpich_line(mpirun: Path, plan: Plan) -> Line:
    """Returns the command line for MPICH, MVAPICH and other MPIs with MPICH's launcher."""
    environment = dict(plan.environment)
    if plan.ssh_args:
        environment["HYDRA_LAUNCHER_EXTRA_ARGS"] = shlex.join(plan.ssh_args)
    if plan.tcp:
        environment.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
        environment.setdefault("FI_PROVIDER", "tcp")
        # The core sets these too (csrc/transport/mpi/streams.cc), if it initialises MPI. The program may do so before.
        if (streams := _streams(plan)) > 1:
            environment.setdefault("MPIR_CVAR_CH4_NUM_VCIS", str(streams + 1))
            environment.setdefault("FI_TCP_MAX_RX_SIZE", "1024")
    hosts = ["-hosts", ",".join(map(str, plan.hosts))] if plan.hosts else []
    binding = plan.binding if plan.binding is not None else ["-bind-to", "none"]
    ranks = ["-n", str(plan.size), *plan.command]
    return Line([str(mpirun), *hosts, *_common(plan, environment), *binding, *plan.extra, *ranks], environment)


def intel_line(mpirun: Path, plan: Plan) -> Line:
    """Returns the command line for Intel MPI."""
    environment = dict(plan.environment)
    if plan.ssh_args:
        environment["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] = shlex.join(plan.ssh_args)
    if plan.tcp:
        environment.setdefault("I_MPI_FABRICS", "shm:ofi")
        environment.setdefault("FI_PROVIDER", "tcp")
        if (streams := _streams(plan)) > 1:
            environment.setdefault("I_MPI_THREAD_SPLIT", "1")
            environment.setdefault("I_MPI_THREAD_RUNTIME", "generic")
            environment.setdefault("I_MPI_THREAD_MAX", str(streams))
    if plan.binding is None:
        environment.setdefault("I_MPI_PIN", "0")
    hosts, ranks = _intel_placement(plan)
    return Line(
        [str(mpirun), *hosts, *_common(plan, environment), *(plan.binding or []), *plan.extra, *ranks], environment
    )


def _streams(plan: Plan) -> int:
    """Returns the number of connections between two hosts, as the core reads it (csrc/base/config.cc)."""
    given = plan.environment.get("PERSEUS_ALLREDUCE_STREAMS") or str(_DEFAULT_STREAMS)
    return int(given) if plan.hosts and given.isdigit() else 1


def _intel_placement(plan: Plan) -> tuple[list[str], list[str]]:
    """Returns the host and rank arguments. Intel's -hosts takes no slots: -ppn has one number for all hosts.

    If the hosts have different slots, the line has a section for each host.
    """
    if not plan.hosts:
        return [], ["-n", str(plan.size), *plan.command]
    each = plan.hosts[0].slots
    if all(host.slots == each for host in plan.hosts[:-1]) and plan.hosts[-1].slots <= each:
        names = ",".join(host.name for host in plan.hosts)
        return ["-hosts", names, "-ppn", str(each)], ["-n", str(plan.size), *plan.command]
    sections = [["-n", str(host.slots), "-host", host.name, *plan.command] for host in plan.hosts]
    joined = sections[0]
    for section in sections[1:]:
        joined = [*joined, ":", *section]
    return [], joined


def _common(plan: Plan, environment: dict[str, str]) -> list[str]:
    args: list[str] = []
    if plan.remote_shell:
        args += ["-launcher", "ssh", "-launcher-exec", plan.remote_shell]
    elif plan.ssh_args:
        args += ["-launcher", "ssh"]
    if plan.interfaces:
        args += ["-iface", plan.interfaces]
    # Hydra's daemons add these variables to the environment of their own host.
    forward = forwarded_names(environment, plan.forward)
    return [*args, "-genvlist", ",".join(forward), "-prepend-pattern", f"<{plan.tag} %r>"]
