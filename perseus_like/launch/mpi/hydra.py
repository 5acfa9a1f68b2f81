"""mpirun of MPICH and of Intel MPI: both are Hydra."""

from __future__ import annotations

import shlex
from pathlib import Path

from .plan import Line, Plan


def mpich_line(mpirun: Path, plan: Plan) -> Line:
    """The command line for MPICH, MVAPICH and others that use its launcher."""
    environment = dict(plan.environment)
    if plan.ssh_args:
        environment["HYDRA_LAUNCHER_EXTRA_ARGS"] = shlex.join(plan.ssh_args)
    if plan.tcp:
        environment.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
        environment.setdefault("FI_PROVIDER", "tcp")
    binding = plan.binding if plan.binding is not None else ["-bind-to", "none"]
    return _line(mpirun, plan, binding, environment)


def intel_line(mpirun: Path, plan: Plan) -> Line:
    """The command line for Intel MPI."""
    environment = dict(plan.environment)
    if plan.ssh_args:
        environment["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] = shlex.join(plan.ssh_args)
    if plan.tcp:
        environment.setdefault("I_MPI_FABRICS", "shm:ofi")
        environment.setdefault("FI_PROVIDER", "tcp")
    if plan.binding is None:
        environment.setdefault("I_MPI_PIN", "0")
    return _line(mpirun, plan, plan.binding or [], environment)


def _line(mpirun: Path, plan: Plan, binding: list[str], environment: dict[str, str]) -> Line:
    own = [str(mpirun)]
    if plan.hosts:
        own += ["-hosts", ",".join(map(str, plan.hosts))]
    if plan.remote_shell:
        own += ["-launcher", "ssh", "-launcher-exec", plan.remote_shell]
    elif plan.ssh_args:
        own += ["-launcher", "ssh"]
    if plan.interfaces:
        own += ["-iface", plan.interfaces]
    own += binding
    # Everything is forwarded, as Open MPI's line does by name.
    own += ["-genvall", "-prepend-pattern", f"<{plan.tag} %r>"]
    return Line([*own, *plan.extra, "-n", str(plan.size), *plan.command], environment)
