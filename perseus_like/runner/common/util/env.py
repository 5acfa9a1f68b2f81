"""horovod.runner.common.util.env."""

from __future__ import annotations

import os
import re

from . import secret

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"
# Names of environment variables that Horovod's launcher does not hand to the ranks of other hosts.
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", secret.HOROVOD_SECRET_KEY}

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns rank and size from the launcher, (0, 1) without a launcher. RuntimeError if only one is set."""
    for names in _PAIRS:
        values = [os.environ.get(name) for name in names]
        if None not in values:
            rank, size = (int(value) for value in values if value is not None)
            return rank, size
        if values != [None, None]:
            raise RuntimeError(f"of {names[0]} and {names[1]} only one is set; the launcher sets both")
    return 0, 1


def is_exportable(v: str) -> bool:
    """Returns whether none of IGNORE_REGEXES matches the start of the name `v`."""
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def is_kubeflow_mpi() -> bool:
    """Returns whether Kubeflow's MPI Operator has set its remote shell."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC  # noqa: SIM112


__all__ = [
    "IGNORE_REGEXES",
    "KUBEFLOW_MPI_EXEC",
    "LOG_LEVEL_STR",
    "get_env_rank_and_size",
    "is_exportable",
    "is_kubeflow_mpi",
]
