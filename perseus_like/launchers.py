"""The launchers: the variables by which they are recognised, and how ranks meet.

The rule: a sign of several ranks means that the ranks meet, or `init` raises. It never starts a job of one rank.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import stat
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .errors import UnavailableError
from .protocol.rank_variables import TCP_RENDEZVOUS
from .tcp_rendezvous import Place

_log = logging.getLogger("perseus_like")

ALONE = "PERSEUS_ALONE"
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_AT_ADDRESS = "at `MASTER_ADDR` and `MASTER_PORT` if they are set, otherwise an error"
_OR_ADDRESS = "or set MASTER_ADDR to the host of rank 0, and MASTER_PORT, on all ranks"


@dataclass(frozen=True)
class Launcher:
    """A launcher, by the variables that it sets in each rank."""

    name: str
    rank: str
    size: str  # "": it does not give the number of ranks
    meet: str  # how its ranks meet, for the document
    also: tuple[str, ...] = ()  # other variables without which this is not the launcher
    any_of: tuple[str, ...] = ()  # one of these is set, too
    kind: str = ""  # its name in the core, which starts its session; "": the core cannot
    remedy: str = ""  # the advice of the error, if its ranks cannot meet
    has_address: bool = False  # the ranks meet at MASTER_ADDR and MASTER_PORT if these are set
    # Without MASTER_ADDR, ranks meet at the first of these hosts, or on this host if there is one host only. The port
    # is computed from the variables that name the job.
    hosts: str = ""
    number_of_hosts: str = ""
    job: tuple[str, ...] = ()

    @property
    def variables(self) -> list[str]:
        """The variables by which it is recognised, except those of `any_of`."""
        return [name for name in (self.rank, self.size, *self.also) if name]


class OwnLauncher(NamedTuple):
    """The rank and the size by a launcher that the core knows. `_core.start` takes it."""

    kind: str
    rank: int  # −1: not told
    size: int  # −1: not told
    evidence: str  # the variable by which it was recognised, for texts
    rendezvous: str  # perseusrun's socket, or ""


TORCHRUN = Launcher(
    "`torchrun`, or a launcher that sets its variables: Ray Train, TorchDistributor, Kubeflow, SageMaker, Azure ML",
    *("RANK", "WORLD_SIZE"),
    "torch's store at `MASTER_ADDR`; without torch, rank 0 listens there",
    remedy="set MASTER_ADDR and MASTER_PORT, or start the job with perseusrun",
    has_address=True,
)
_TENSORFLOW = Launcher(
    *("TensorFlow's jobs of several workers", "TF_CONFIG", "", "an error: use `perseusrun`"),
    remedy="start the ranks with perseusrun, and leave out TF_CONFIG",
)
_PERSEUSRUN_OVER_SSH = Launcher(
    *("`perseusrun` on several hosts without MPI", "PERSEUS_RANK", "PERSEUS_SIZE"),
    "rank 0 listens; the launcher has given all ranks a secret",
    also=(TCP_RENDEZVOUS,),
)
# docs/generate_environment.py writes this table to docs/launching.md. The first row whose variables are set counts.
LAUNCHERS = (
    Launcher(
        *("`mpirun` of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MPI"),
        kind="openmpi",
    ),
    # A user may have set other variables that begin with I_MPI, but only Intel's mpirun sets these.
    Launcher(
        *("`mpirun` of Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI"),
        any_of=("I_MPI_HYDRA_UUID", "I_MPI_INFO_NP", "HYDRA_BSTRAP_LOCALHOST"),
        kind="intel",
    ),
    # srun's PMI-2 has the same names as Hydra, and Hydra under Slurm inherits Slurm's variables.
    Launcher(
        *("`mpirun` of MPICH", "PMI_RANK", "PMI_SIZE", "MPI"),
        any_of=("HYDI_CONTROL_FD", "PMI_PORT", "PMI_HOSTNAME", "MPI_LOCALNRANKS"),
        kind="mpich",
    ),
    Launcher(
        *("`srun --mpi=pmi2`", "PMI_RANK", "PMI_SIZE", "MPI"),
        also=("SLURM_STEP_NUM_TASKS",),
        kind="slurm",
    ),
    Launcher(
        *("another launcher with a PMI, such as flux", "PMI_RANK", "PMI_SIZE", "MPI"),
        kind="mpich",
    ),
    Launcher(
        *("`mpirun` of MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MPI"),
        kind="mpich",
    ),
    # It removes the variables of an outer mpirun, so if both are set, the mpirun is the inner launcher.
    Launcher(
        *("`perseusrun`", "PERSEUS_RANK", "PERSEUS_SIZE", "its own socket"),
        also=("PERSEUS_RENDEZVOUS",),
        kind="perseusrun",
    ),
    _PERSEUSRUN_OVER_SSH,
    Launcher(
        *("`srun --mpi=pmix`", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "MPI"),
        also=("PMIX_RANK", "PMIX_NAMESPACE"),
        kind="slurm",
    ),
    Launcher(
        *("`srun` with Slurm's PMI-1 for Intel MPI", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "MPI"),
        also=("I_MPI_PMI_LIBRARY",),
        kind="slurm",
    ),
    Launcher(
        *("PMIx, such as `prterun` and `jsrun` of Spectrum MPI", "PMIX_RANK", "", "MPI"),
        also=("PMIX_NAMESPACE",),
        kind="openmpi",
    ),
    TORCHRUN,
    Launcher(
        *("a pod of Kubeflow's torch runtime", "PET_NODE_RANK", "PET_NNODES", "an error: use `torchrun`"),
        remedy="start the program with torchrun, which reads these variables, or the job with perseusrun",
    ),
    Launcher(
        *("Horovod's launchers", "HOROVOD_RANK", "HOROVOD_SIZE", "an error: use `perseusrun`"),
        remedy="start the job with perseusrun, or with the horovodrun of this library; Horovod's rendezvous is not "
        "supported",
    ),
    Launcher(
        *("flux without its PMI", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        "on one host, rank 0 listens; on several, " + _AT_ADDRESS,
        remedy="start with `flux run -o pmi=simple`, or with perseusrun inside the allocation, " + _OR_ADDRESS,
        has_address=True,
        number_of_hosts="FLUX_JOB_NNODES",
        job=("FLUX_JOB_ID",),
    ),
    Launcher(
        *("`jsrun` without PMIx", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", _AT_ADDRESS),
        remedy="start with jsrun of Spectrum MPI, which sets PMIX_RANK, or with perseusrun inside the allocation, "
        + _OR_ADDRESS,
        has_address=True,
    ),
    Launcher(
        *("PALS without its PMI", "PALS_RANKID", "", "an error: use `mpiexec --pmi=cray`"),
        remedy="start with `mpiexec --pmi=cray` and Cray's MPI, or with perseusrun inside the allocation",
    ),
    Launcher(
        *("`srun` without a PMI", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        "rank 0 listens on the first host of the step, or at `MASTER_ADDR` and `MASTER_PORT`",
        remedy="start with `srun --mpi=pmix` (Open MPI), `srun --mpi=pmi2` (MPICH, Intel MPI), or with perseusrun "
        "inside the allocation",
        has_address=True,
        hosts="SLURM_STEP_NODELIST",
        number_of_hosts="SLURM_STEP_NUM_NODES",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _TENSORFLOW,
)


def is_alone() -> bool:
    """Returns whether the program wants a job of one rank, whoever has started it."""
    return os.environ.get(ALONE, "0").lower() not in ("", "0", "false")


def own() -> OwnLauncher | None:
    """Returns what such a launcher has told this process. ValueError if its variables contradict each other."""
    for launcher in LAUNCHERS:
        if launcher.kind and _is_set(launcher) and not _is_shell_of_slurm(launcher):
            return _read(launcher)
    return None


def launched() -> OwnLauncher | None:
    """Returns the same, but None if this process has inherited the variables of another process's launcher."""
    rank = _rank_above()
    is_descendant = rank is not None and not _has_own_store(rank)
    return None if is_descendant or _has_lost_pmi() or _has_store() else own()


def foreign() -> Launcher | None:
    """Returns the launcher that has started this process as one of several ranks, if the core does not know it."""
    found = [launcher for launcher in LAUNCHERS if not launcher.kind and _is_one_of_several(launcher)]
    if found:
        return next(filter(place_of, found), found[0])
    if _has_store() and own() is not None:
        return TORCHRUN  # of one rank: the core would see the outer launcher
    return None


def is_launched() -> bool:
    """Returns whether a launcher has started this process, and not a torchrun, whose store torch reaches by itself."""
    launcher = foreign()
    can_meet = launcher is not None and launcher is not TORCHRUN and place_of(launcher) is not None
    return own() is not None or can_meet


def _is_set(launcher: Launcher) -> bool:
    needed = (launcher.size or launcher.rank, *launcher.also)
    return all(map(os.environ.get, needed)) and (not launcher.any_of or any(map(os.environ.get, launcher.any_of)))


def _is_shell_of_slurm(launcher: Launcher) -> bool:
    """Returns whether this may be a shell in a step of one task (salloc, srun --pty), which is no job."""
    is_one = launcher.rank == "SLURM_PROCID" and os.environ[launcher.size] == "1"
    return is_one and not os.environ.get("PMIX_RANK")


def _read(launcher: Launcher) -> OwnLauncher:
    # Without its rank, an MPI tells it later. perseusrun has no other way.
    has_rank = launcher.kind == "perseusrun" or os.environ.get(launcher.rank)
    rank = number(launcher.rank) if has_rank else -1
    size = number(launcher.size) if launcher.size else -1
    if launcher.size and rank >= size:
        raise ValueError(
            f"init(): {launcher.rank}={rank} contradicts {launcher.size}={size}; start with perseusrun or an mpirun, "
            "which set both"
        )
    sign = launcher.size or "PMIX_NAMESPACE"
    rendezvous = os.environ["PERSEUS_RENDEZVOUS"] if launcher.kind == "perseusrun" else ""
    return OwnLauncher(launcher.kind, rank, size, f"{sign}={os.environ[sign]}", rendezvous)


def _is_one_of_several(launcher: Launcher) -> bool:
    """Returns whether the variables say that this launcher has started this process as one of several ranks."""
    if not all(map(os.environ.get, (launcher.rank, *launcher.also))):
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ and launcher is not TORCHRUN:
        return False  # a torchrun inside this launcher's job has started the process
    if launcher is _TENSORFLOW:
        return _workers_of_tensorflow(os.environ["TF_CONFIG"]) > 1
    given = os.environ.get(launcher.size or launcher.rank)
    return bool(given) and not (launcher.size and given == "1")


def place_of(launcher: Launcher) -> Place | None:
    """Returns the address at which the ranks of this launcher meet, if there is one."""
    if launcher is _PERSEUSRUN_OVER_SSH:
        host, base, secret = os.environ[TCP_RENDEZVOUS].split()
        return Place(host, int(base), "", TCP_RENDEZVOUS, secret=secret)
    # A pod of Kubernetes may run before the names of the others are known.
    may_be_early = "KUBERNETES_SERVICE_HOST" in os.environ
    if launcher.has_address and all(os.environ.get(name) for name in _ADDRESS):
        job = f"{os.environ['MASTER_PORT']} {os.environ.get('TORCHELASTIC_RUN_ID', '')}"
        return Place(os.environ["MASTER_ADDR"], number("MASTER_PORT"), job, may_be_early=may_be_early)
    job = " ".join(os.environ.get(name, "") for name in launcher.job)
    # These ports are below those that Linux gives to connections.
    port = 20000 + zlib.crc32(job.encode(errors="surrogateescape")) % 10000
    if os.environ.get(launcher.number_of_hosts) == "1":
        return Place("127.0.0.1", port, job)
    variable = "MASTER_ADDR" if os.environ.get("MASTER_ADDR") else launcher.hosts
    if not launcher.hosts or not os.environ.get(variable):
        return None
    # The first host of "n[01-03,7]-x[1-2],m" is n01-x1.
    return Place(
        re.sub(r"\[([0-9]+)[^]]*\]", r"\1", os.environ[variable]).split(",")[0], port, job, variable, may_be_early
    )


def number(name: str) -> int:
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"init(): {name}={text!r} is no number; set it as its launcher does, or start with perseusrun")
    return int(text)


def require_own_rank() -> None:
    """Raises UnavailableError in a process that a rank has started, and that has inherited its launcher's variables.

    Warns if such a process has a store of its own and the rank's own number: its rank may have set these for itself.
    """
    rank = _rank_above()
    if rank is not None and not _has_own_store(rank):
        raise UnavailableError(
            f"init(): this process was started by rank {rank.rank} (pid {rank.pid}) of a job, so it is no rank itself. "
            "Communicate in that rank, start this process with a launcher of its own, such as perseusrun, or set "
            f"{ALONE}=1"
        )
    if rank is not None and (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank.rank), str(rank.size)):
        _warn_once(
            f"init(): this process was started by rank {rank.rank} (pid {rank.pid}) of a job of {rank.size}, which has "
            f"set MASTER_ADDR={os.environ['MASTER_ADDR']} and MASTER_PORT={os.environ['MASTER_PORT']} for it or for "
            f"itself. Such processes of all {rank.size} ranks make a second job there. Remove these variables or set "
            f"{ALONE}=1 if they shall not"
        )
    if _has_lost_pmi() and foreign() is None:
        raise UnavailableError(
            f"init(): PMI_FD={os.environ['PMI_FD']} is a connection of the process that has started this one, so this "
            "process is no rank of that mpirun. Communicate in that process, start this one with a launcher of its "
            f"own, such as perseusrun, or set {ALONE}=1"
        )


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


class _Rank(NamedTuple):
    """The identity of a rank, which it gives to the processes that it starts while its session runs."""

    pid: int
    rank: int
    size: int
    launcher: dict[str, str | None]  # the values of its launcher's variables
    store: dict[str, str | None]  # and of its store's


_VARIABLE = "PERSEUS_STARTED_BY"  # the rank sets it to a _Rank
_STORE = ("RANK", "WORLD_SIZE", *_ADDRESS)
_inherited: dict[str, str] = {}  # the variable as the rank above has set it


def mark_rank(rank: int, size: int) -> None:
    """Lets processes that this one starts see that they are no ranks."""
    above = os.environ.get(_VARIABLE)
    if above and json.loads(above)[0] != os.getpid():
        _inherited[_VARIABLE] = above
    os.environ[_VARIABLE] = json.dumps(_Rank(os.getpid(), rank, size, _identity(), _values(_STORE)))


def unmark_rank() -> None:
    os.environ.pop(_VARIABLE, None)
    os.environ.update(_inherited)


def _rank_above() -> _Rank | None:
    """Returns the rank that has started this process. None if there is no such rank, or a launcher in between."""
    if _VARIABLE not in os.environ:
        return None
    rank = _Rank(*json.loads(os.environ[_VARIABLE]))
    if rank.pid == os.getpid() or _has_pmi():
        return None
    return rank if any(rank.launcher.values()) and rank.launcher == _values(rank.launcher) else None


def _has_own_store(rank: _Rank) -> bool:
    """Returns whether the rank that has started this process has given it another store than its own."""
    store = _values(_STORE)
    return all(store.values()) and store != rank.store


def _identity() -> dict[str, str | None]:
    """Returns variables in which any two ranks differ. Their values are None if no launcher has started this process.

    A launcher that a rank starts sets or changes one of them.
    """
    names = ["PERSEUS_RENDEZVOUS", TCP_RENDEZVOUS, "PERSEUS_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_FD", "PMI_RANK"]
    is_of_core = any(name in os.environ for name in names)
    names.append("TORCHELASTIC_RUN_ID")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        names += ["MASTER_PORT", "RANK"]
    elif not is_of_core and (launcher := foreign()):
        names += [launcher.rank, launcher.size, *launcher.job]
    return _values(filter(None, names))


def _values(names: Iterable[str]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def _has_store() -> bool:
    """Returns whether this is a rank of a torchrun, or of a launcher with its variables, below another launcher.

    Then the variables of the other launcher are inherited, and the ranks meet at MASTER_ADDR. The same holds for a
    process to which a rank has given a store.
    """
    if (rank := _rank_above()) is not None and _has_own_store(rank):
        return True
    if "PERSEUS_RENDEZVOUS" in os.environ or _has_pmi():
        return False
    is_below = "TORCHELASTIC_RUN_ID" in os.environ or _has_lost_pmi()
    # The outer launcher has started one process, for example DeepSpeed's launcher.
    is_below |= any(os.environ.get(name) == "1" for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    return is_below and all(os.environ.get(name) for name in _STORE)


def _has_pmi() -> bool:
    """Returns whether the connection to an mpirun of PMI is open in this process, which others do not inherit."""
    try:
        return stat.S_ISSOCK(os.fstat(int(os.environ.get("PMI_FD", "-1"))).st_mode)
    except (OSError, ValueError):
        return False


def _has_lost_pmi() -> bool:
    """Returns whether an mpirun of PMI has started a process above this one, and no other launcher this one.

    MPI_Init would abort.
    """
    others = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PERSEUS_RENDEZVOUS", TCP_RENDEZVOUS)
    is_inherited = "PMI_FD" in os.environ and os.environ.get("PMI_SIZE") != "1" and not _has_pmi()
    return is_inherited and not any(name in os.environ for name in others)


def _workers_of_tensorflow(config: str) -> int:
    try:
        cluster = json.loads(config or "{}").get("cluster", {})
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        return 0
