"""Command lines for the mpirun of Open MPI 4 (ORTE) and 5 (PRRTE)."""

from __future__ import annotations

import shlex
from pathlib import Path

from . import Line, Plan


def line_4(mpirun: Path, plan: Plan) -> Line:
    """Returns the command line for Open MPI 4."""
    args = ["--tag-output"]
    if plan.remote_shell:
        args += ["--mca", "plm_rsh_agent", plan.remote_shell]
    if plan.ssh_args:
        args += ["--mca", "plm_rsh_args", shlex.join(plan.ssh_args)]
    if plan.interfaces:
        args += ["--mca", "oob_tcp_if_include", plan.interfaces]
    return _line(mpirun, plan, args, shared_memory="vader")


def line_5(mpirun: Path, plan: Plan) -> Line:
    """Returns the command line for Open MPI 5 and later."""
    args = ["--output", "tag"]
    if plan.remote_shell:
        args += ["--prtemca", "plm_ssh_agent", plan.remote_shell]
    if plan.ssh_args:
        args += ["--prtemca", "plm_ssh_args", shlex.join(plan.ssh_args)]
    if plan.interfaces:
        args += ["--prtemca", "prte_if_include", plan.interfaces]
    return _line(mpirun, plan, args, shared_memory="sm")


def _line(mpirun: Path, plan: Plan, args: list[str], shared_memory: str) -> Line:
    own = [str(mpirun), "-np", str(plan.size)]
    if plan.is_root:
        own.append("--allow-run-as-root")
    if plan.hosts:
        own += ["--host", ",".join(map(str, plan.hosts))]
    # The user has set the hosts' slots, so mpirun must not refuse more ranks than cores.
    own += ["--map-by", "slot:OVERSUBSCRIBE"]
    own += plan.binding if plan.binding is not None else ["--bind-to", "none"]
    own += args
    if plan.interfaces:
        own += ["--mca", "btl_tcp_if_include", plan.interfaces]
    if plan.tcp:
        own += ["--mca", "pml", "ob1", "--mca", "btl", f"self,{shared_memory},tcp"]
    if plan.is_oversubscribed:
        # Open MPI polls while it waits. With fewer cores than ranks, this takes the core from the rank it waits for.
        own += ["--mca", "mpi_yield_when_idle", "1"]
    for name in plan.forward:
        own += ["-x", name]
    return Line([*own, *plan.extra, *plan.command], plan.environment)
