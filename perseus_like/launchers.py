"""The launchers: the variables by which they are recognised, and how ranks meet.

The rule: a sign of several ranks means that the ranks meet, or `init` raises. It never starts a job of one rank.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import UnavailableError
from .session import session
from .tcp_rendezvous import SECRET_FILE, Place, TcpRendezvous

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
    is_of_core: bool = False  # csrc/bootstrap/launcher.cc recognises it, and the core starts its session
    remedy: str = ""  # the advice of the error, if its ranks cannot meet
    has_address: bool = False  # the ranks meet at MASTER_ADDR and MASTER_PORT if these are set
    # Without MASTER_ADDR, ranks meet at the first of these hosts, or on this host if there is one host only. The port
    # is computed from the variables that name the job.
    hosts: str = ""
    number_of_hosts: str = ""
    job: tuple[str, ...] = ()

    @property
    def variables(self) -> list[str]:
        """The variables by which it is recognised."""
        return [name for name in (self.rank, self.size, *self.also) if name]


_TORCHRUN = Launcher(
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
# docs/generate_environment.py writes this table to docs/launching.md. The first row whose variables are set counts.
LAUNCHERS = (
    Launcher(
        *("`mpirun` of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MPI"),
        is_of_core=True,
    ),
    Launcher(
        *("`mpirun` of MPICH and Intel MPI, `srun --mpi=pmi2`, flux", "PMI_RANK", "PMI_SIZE", "MPI"),
        is_of_core=True,
    ),
    Launcher(
        *("`mpirun` of MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MPI"),
        is_of_core=True,
    ),
    Launcher(
        *("`perseusrun`", "PERSEUS_RANK", "PERSEUS_SIZE", "its own socket"),
        also=("PERSEUS_RENDEZVOUS",),
        is_of_core=True,
    ),
    Launcher(
        *("`srun --mpi=pmix`", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "MPI"),
        also=("PMIX_RANK", "PMIX_NAMESPACE"),
        is_of_core=True,
    ),
    Launcher(
        *("`srun` with Slurm's PMI-1 for Intel MPI", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "MPI"),
        also=("I_MPI_PMI_LIBRARY",),
        is_of_core=True,
    ),
    Launcher(
        *("PMIx, such as `prterun` and `jsrun` of Spectrum MPI", "PMIX_RANK", "", "MPI"),
        also=("PMIX_NAMESPACE",),
        is_of_core=True,
    ),
    _TORCHRUN,
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


def launched() -> tuple[int, int] | None:
    """Returns the rank and the number of ranks that the core reads off its launcher; −1 if this does not give them.

    None without such a launcher, and if this process has inherited the variables of another process's launcher.
    """
    is_of_core = any(launcher.is_of_core and _is_set(launcher) for launcher in LAUNCHERS)
    if not is_of_core or _is_descendant() or _has_lost_pmi() or _has_store():
        return None
    found: tuple[int, int] | None = session.core.launched(sys.prefix)
    return found


def foreign() -> Launcher | None:
    """Returns the launcher that has started this process as one of several ranks, if the core does not know it."""
    found = [launcher for launcher in LAUNCHERS if not launcher.is_of_core and _is_one_of_several(launcher)]
    if found:
        return next(filter(_place_of, found), found[0])
    if _has_store() and session.core.launched(sys.prefix) is not None:
        return _TORCHRUN  # of one rank: the core would see the outer launcher
    return None


def _is_set(launcher: Launcher) -> bool:
    return all(os.environ.get(name) for name in launcher.variables)


def _is_one_of_several(launcher: Launcher) -> bool:
    """Returns whether the variables say that this launcher has started this process as one of several ranks."""
    if launcher.rank not in os.environ:
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ and launcher is not _TORCHRUN:
        return False  # a torchrun inside this launcher's job has started the process
    if launcher is _TENSORFLOW:
        return _workers_of_tensorflow(os.environ["TF_CONFIG"]) > 1
    given = os.environ.get(launcher.size or launcher.rank)
    return bool(given) and not (launcher.size and given == "1")


def start(holder: str) -> bool:
    """Starts a session of the ranks that the launcher has started, unless one is running, without arguments of `init`.

    Returns True if it has started one.
    """
    if not session.is_running():
        require_own_rank()
        if not launched() and (launcher := foreign()):
            return start_foreign(launcher, holder)
    return session.start({}, holder=holder)


def start_foreign(launcher: Launcher, holder: str = "init") -> bool:
    """Starts a session of the ranks of such a launcher. UnavailableError if they have no way to meet."""
    limit = float(os.environ.get("PERSEUS_START_TIMEOUT") or os.environ.get("HOROVOD_START_TIMEOUT") or 60)
    place = _place_of(launcher)
    if place is None:
        signs = ", ".join(f"{name}={os.environ[name]}" for name in (launcher.rank, launcher.size) if name)
        raise UnavailableError(
            f"init(): {signs} say that this process is one of several ranks of {launcher.name.replace('`', '')}, but "
            f"they have no way to find each other; {launcher.remedy}. {ALONE}=1 makes a job of this process alone"
        )
    rank, size = _number(launcher.rank), _number(launcher.size)
    if rank >= size:
        raise ValueError(f"init(): {launcher.rank}={rank} contradicts {launcher.size}={size}; set both, or neither")
    if size == 1:
        return session.start({}, rendezvous=(0, 1, lambda mine: [mine]), holder=holder)
    if launcher is _TORCHRUN and importlib.util.find_spec("torch") is not None:
        # Only this program decides whether torch is imported, so the adapter is not named statically.
        store = importlib.import_module(".torch.distributed.launched", __package__)
        return bool(store.start(rank, size, limit))
    rendezvous = TcpRendezvous(rank, size, place, limit, os.environ.get(SECRET_FILE, ""))
    try:
        started = session.start({}, rendezvous=(rank, size, rendezvous), holder=holder)
    except Exception as error:
        rendezvous.fail(error)
        raise
    _connected.append(rendezvous)
    return started


_connected: list[TcpRendezvous] = []  # the ranks of the running session


def _disconnect() -> None:
    while _connected:
        _connected.pop().close()


def _place_of(launcher: Launcher) -> Place | None:
    """Returns the address at which the ranks of this launcher meet, if there is one."""
    # A pod of Kubernetes may run before the names of the others are known.
    may_be_early = "KUBERNETES_SERVICE_HOST" in os.environ
    if launcher.has_address and all(os.environ.get(name) for name in _ADDRESS):
        job = f"{os.environ['MASTER_PORT']} {os.environ.get('TORCHELASTIC_RUN_ID', '')}"
        return Place(os.environ["MASTER_ADDR"], _number("MASTER_PORT"), job, may_be_early=may_be_early)
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


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"init(): {name}={text!r} is no number; set it as its launcher does, or start with perseusrun")
    return int(text)


def require_own_rank() -> None:
    """Raises UnavailableError in a process that a rank has started, and that has inherited its launcher's variables."""
    if _is_descendant():
        pid, rank, *_ = _rank_above()
        raise UnavailableError(
            f"init(): this process was started by rank {rank} (pid {pid}) of a job, so it is no rank itself. "
            "Communicate in that rank, start this process with a launcher of its own, such as perseusrun, or set "
            f"{ALONE}=1"
        )
    if _has_lost_pmi() and foreign() is None:
        raise UnavailableError(
            f"init(): PMI_FD={os.environ['PMI_FD']} is a connection of the process that has started this one, so this "
            "process is no rank of that mpirun. Communicate in that process, start this one with a launcher of its "
            f"own, such as perseusrun, or set {ALONE}=1"
        )


# A rank sets this variable while its session runs: its pid, its rank, and the values of its launcher's variables and of
# its store's.
_VARIABLE = "PERSEUS_STARTED_BY"
_STORE = ("RANK", "WORLD_SIZE", *_ADDRESS)
_inherited: dict[str, str] = {}  # the variable as the rank above has set it


def mark_rank() -> None:
    """Lets processes that this one starts see that they are no ranks."""
    above = os.environ.get(_VARIABLE)
    if above and json.loads(above)[0] != os.getpid():
        _inherited[_VARIABLE] = above
    os.environ[_VARIABLE] = json.dumps([os.getpid(), session.core.rank(), _identity(), _values(_STORE)])


def unmark_rank() -> None:
    os.environ.pop(_VARIABLE, None)
    os.environ.update(_inherited)


def _is_descendant() -> bool:
    """Returns whether a rank has started this process, without a launcher or a store of its own."""
    rank = _rank_above()
    return rank is not None and not _has_own_store(rank)


def _rank_above() -> Any:
    """Returns the pid and the rank of the rank that has started this process, and the values of its variables.

    None if there is no such rank, or if this process has a launcher of its own.
    """
    rank = json.loads(os.environ.get(_VARIABLE, "null"))
    if rank is None or rank[0] == os.getpid() or _has_pmi():
        return None
    return rank if any(rank[2].values()) and rank[2] == _values(rank[2]) else None


def _has_own_store(rank: Any) -> bool:
    """Returns whether the rank that has started this process has given it another store than its own."""
    store = _values(_STORE)
    return all(store.values()) and store != rank[3]


def _identity() -> dict[str, str | None]:
    """Returns variables in which any two ranks differ. Their values are None if no launcher has started this process.

    A launcher that a rank starts sets or changes one of them.
    """
    names = ["PERSEUS_RENDEZVOUS", "PERSEUS_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_FD", "PMI_RANK"]
    is_of_core = any(name in os.environ for name in names)
    names.append("TORCHELASTIC_RUN_ID")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        names += ["MASTER_PORT", "RANK"]
    elif not is_of_core and (launcher := foreign()):
        names += [launcher.rank, launcher.size, *launcher.job, "MASTER_PORT"]
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
    others = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PERSEUS_RENDEZVOUS")
    is_inherited = "PMI_FD" in os.environ and os.environ.get("PMI_SIZE") != "1" and not _has_pmi()
    return is_inherited and not any(name in os.environ for name in others)


def _workers_of_tensorflow(config: str) -> int:
    try:
        cluster = json.loads(config or "{}").get("cluster", {})
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        return 0


session.on_start(mark_rank)
session.on_stop(unmark_rank)
session.on_stop(_disconnect)
