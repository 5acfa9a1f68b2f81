"""Chooses what starts the ranks of several hosts: this launcher over ssh, with UCX between the ranks, or an mpirun."""

from __future__ import annotations

import os

from ..protocol.messages import VARIABLE
from .command_line import Options
from .environment import user_variables
from .start_errors import LaunchError

_TRANSPORT = "PERSEUS_HOST_TRANSPORT"
_NEITHER = (
    "several hosts need UCX or an MPI, and this host has neither; install one of them on all hosts: UCX with "
    "pip install 'perseus-like[ucx]' or apt install libucx0, or an MPI, for example with "
    "pip install 'perseus-like[mpich]'"
)


def asks_for_several_hosts(options: Options) -> bool:
    """Returns True if the user has chosen what connects hosts, so that a job on this host may grow to others."""
    return options.use_mpi or user_variables(os.environ, options).get(_TRANSPORT, "").lower() == "ucx"


def choose_start(options: Options, number_of_hosts: int) -> tuple[bool, str]:
    """Returns whether an mpirun starts the ranks, and the reason. Raises LaunchError if neither way is possible."""
    given = user_variables(os.environ, options)
    transport = given.get(_TRANSPORT, "").lower()
    rules = (  # whether it is given, what it is, and whether it asks for mpirun; the first one counts
        (options.use_mpi, "--mpi", True),
        (transport == "mpi", f"{_TRANSPORT}=mpi", True),
        (VARIABLE in given, "an elastic job", True),
        (options.without_mpi, "--gloo", False),
        (options.mpirun is not None, "--mpirun", True),
        (bool(options.mpi_args), "--mpi-args", True),
        (options.binding_args is not None, "--binding-args or --bind-to", True),
        (transport == "ucx", f"{_TRANSPORT}=ucx", False),
    )
    for is_given, reason, uses_mpirun in rules:
        if is_given:
            return uses_mpirun, reason
    from .command_line.check_build import find_ucx
    from .mpi.family import locate

    try:
        has_mpirun = bool(locate())
    except LaunchError:
        has_mpirun = False
    if has_mpirun and options.is_batch:
        return True, f"the hosts are those of {options.batch_system}"
    if (ucx := find_ucx(given.get("PERSEUS_UCX_LIBRARY", ""))).found:
        return False, f"UCX was found ({ucx.path})"
    if has_mpirun:
        return True, "UCX was not found"
    if number_of_hosts > 1:
        raise LaunchError(_NEITHER)
    return False, "all ranks are on one host"
