"""horovod.runner.mpi_run: which MPI perseusrun would use. An `env` may hold another PATH."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from ..launch.mpi.family import Family, find_mpirun
from ..launch.start_errors import LaunchError


def _family(env: Mapping[str, str] | None) -> Family | None:
    """Returns the family of the mpirun found, or None if there is none that perseusrun knows."""
    given = None
    if env is not None:
        given = shutil.which("mpirun", path=env.get("PATH", ""))
        if given is None:
            return None
    try:
        return find_mpirun(given).family
    except LaunchError:
        return None


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Returns whether perseusrun finds an mpirun that it can use."""
    return _family(env) is not None


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Returns whether the mpirun found is Open MPI's."""
    return _family(env) in (Family.OPEN_MPI_4, Family.OPEN_MPI_5)


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Returns whether the mpirun found is MPICH's."""
    return _family(env) is Family.MPICH


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Returns whether the mpirun found is Intel MPI's."""
    return _family(env) is Family.INTEL


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Returns False: perseusrun does not know IBM Spectrum MPI."""
    return False


__all__ = ["is_intel_mpi", "is_mpich", "is_open_mpi", "is_spectrum_mpi", "mpi_available"]
