"""mpirun of Open MPI 4 (ORTE) and 5 (PRRTE)."""

from __future__ import annotations

import shlex
from pathlib import Path

from .plan import Line, Plan


def line_4(mpirun: Path, plan: Plan) -> Line:
    """The command line for Open MPI 4."""
    args = ["--tag-output"]
    if plan.remote_shell:
        args += ["--mca", "plm_rsh_agent", plan.remote_shell]
    if plan.ssh_args:
        args += ["--mca", "plm_rsh_args", shlex.join(plan.ssh_args)]
    if plan.interfaces:
        args += ["--mca", "oob_tcp_if_include", plan.interfaces]
    return _line(mpirun, plan, args, shared_memory="vader")


def line_5(mpirun: Path, plan: Plan) -> Line:
    """The command line for Open MPI 5 and later."""
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
    # The hosts' slots are the user's word; the number of cores is no reason to refuse.
    own += ["--map-by", "slot:OVERSUBSCRIBE"]
    own += plan.binding if plan.binding is not None else ["--bind-to", "none"]
    own += args
    if plan.interfaces:
        own += ["--mca", "btl_tcp_if_include", plan.interfaces]
    if plan.tcp:
        own += ["--mca", "pml", "ob1", "--mca", "btl", f"self,{shared_memory},tcp"]
    if plan.is_oversubscribed:
        # A rank that waits spins; on fewer cores than ranks that takes the core from the one it waits for.
        own += ["--mca", "mpi_yield_when_idle", "1"]
    for name in plan.forward:
        own += ["-x", name]
    return Line([*own, *plan.extra, *plan.command], plan.environment)
