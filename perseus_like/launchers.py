"""The launchers that the core does not know by itself: the variables by which they are recognised, and how ranks meet.

The rule: a sign of several ranks means that the ranks meet, or `init` raises. It never starts a job of one rank.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import stat
import sys
from dataclasses import dataclass

from .errors import UnavailableError
from .session import session

ALONE = "PERSEUS_ALONE"
_TORCH = "RANK"  # the variable by which launchers with torchrun's variables are recognised


@dataclass(frozen=True)
class Launcher:
    """A launcher, by the variables that it sets in each rank."""

    name: str
    rank: str
    size: str  # "": it does not give the number of ranks
    remedy: str


# docs/launching.md has this table.
LAUNCHERS = (
    Launcher(
        "torchrun, or a launcher that sets its variables (Ray Train, TorchDistributor, Kubeflow, SageMaker, Azure ML)",
        *(_TORCH, "WORLD_SIZE", "install torch, by whose store the ranks meet, or start the job with perseusrun"),
    ),
    Launcher(
        "Horovod's launcher",
        *("HOROVOD_RANK", "HOROVOD_SIZE"),
        "start the job with perseusrun, or with the horovodrun of this library; Horovod's rendezvous is not supported",
    ),
    Launcher(
        "flux without its PMI",
        *("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        "start with `flux run -o pmi=simple`, or with perseusrun inside the allocation",
    ),
    Launcher(
        "jsrun without PMIx",
        *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        "start with jsrun of Spectrum MPI, which sets PMIX_RANK, or with perseusrun inside the allocation",
    ),
    Launcher(
        "PALS without its PMI",
        *("PALS_RANKID", ""),
        "start with `mpiexec --pmi=cray` and Cray's MPI, or with perseusrun inside the allocation",
    ),
)
_TF_CONFIG = Launcher(
    "a job of TensorFlow", "TF_CONFIG", "", "start the ranks with perseusrun, and leave out TF_CONFIG"
)


def is_alone() -> bool:
    """Returns whether the program wants a job of one rank, whoever has started it."""
    return os.environ.get(ALONE, "0").lower() not in ("", "0", "false")


def launched() -> tuple[int, int] | None:
    """Returns the rank and the number of ranks that the core reads off its launcher; −1 if this does not give them.

    None without such a launcher, and if this process has inherited the variables of another process's launcher.
    """
    if _is_descendant() or _has_store():
        return None
    found: tuple[int, int] | None = session.core.launched(sys.prefix)
    return found


def foreign() -> Launcher | None:
    """Returns the launcher that has started this process as one of several ranks, if the core does not know it."""
    for launcher in LAUNCHERS:
        given = os.environ.get(launcher.size or launcher.rank)
        if given and not (launcher.size and given == "1") and launcher.rank in os.environ:
            return launcher
    return _TF_CONFIG if _workers_of_tensorflow(os.environ.get("TF_CONFIG", "")) > 1 else None


def start_foreign(launcher: Launcher) -> bool:
    """Starts a session of the ranks of such a launcher. UnavailableError if they have no way to meet."""
    if launcher.rank == _TORCH and "MASTER_ADDR" in os.environ and importlib.util.find_spec("torch") is not None:
        # Only this program decides whether torch is imported, so the adapter is not named statically.
        store = importlib.import_module(".torch.distributed.launched", __package__)
        limit = os.environ.get("PERSEUS_START_TIMEOUT") or os.environ.get("HOROVOD_START_TIMEOUT") or 60
        started: bool = store.start(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), float(limit))
        return started
    names = [name for name in (launcher.rank, launcher.size) if name]
    signs = ", ".join(f"{name}={os.environ[name]}" for name in names)
    raise UnavailableError(
        f"init(): {signs} say that this process is one of several ranks of {launcher.name}, but they have no way to "
        f"find each other; {launcher.remedy}. {ALONE}=1 makes a job of this process alone"
    )


def require_own_rank() -> None:
    """Raises UnavailableError in a process that a rank has started, and that has inherited its launcher's variables."""
    if _is_descendant():
        pid, rank, _ = os.environ[_VARIABLE].split(" ", 2)
        raise UnavailableError(
            f"init(): this process was started by rank {rank} (pid {pid}) of a job, so it is no rank itself. "
            "Communicate in that rank, start this process with a launcher of its own, such as perseusrun, or set "
            f"{ALONE}=1"
        )


# A rank sets this variable while its session runs: its pid, its rank, and the values of its launcher's variables.
_VARIABLE = "PERSEUS_STARTED_BY"


def mark_rank() -> None:
    """Lets processes that this one starts see that they are no ranks."""
    os.environ[_VARIABLE] = f"{os.getpid()} {session.core.rank()} {_identity()}"


def unmark_rank() -> None:
    os.environ.pop(_VARIABLE, None)


def _is_descendant() -> bool:
    """Returns whether a rank has started this process, without a launcher of its own."""
    pid, _, rest = os.environ.get(_VARIABLE, "").partition(" ")
    identity = rest.partition(" ")[2]
    return pid not in ("", str(os.getpid())) and identity == _identity() != "" and not _has_pmi()


def _identity() -> str:
    """Returns variables in which any two ranks differ. Empty if no launcher has started this process."""
    names = ["PERSEUS_RENDEZVOUS", "PERSEUS_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_FD", "PMI_RANK"]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        names += ["TORCHELASTIC_RUN_ID", "MASTER_PORT", "RANK"]
    return " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)


def _has_store() -> bool:
    """Returns whether ranks of a torchrun below an mpirun, or of an srun without a PMI, can meet by torch's store."""
    names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_FD", "PMIX_RANK", "MV2_COMM_WORLD_SIZE"]
    names += ["I_MPI_PMI_LIBRARY", "PERSEUS_RENDEZVOUS"]
    is_inner = "TORCHELASTIC_RUN_ID" in os.environ and "PERSEUS_RENDEZVOUS" not in os.environ
    if not is_inner and any(name in os.environ for name in names):
        return False
    is_given = all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return is_given and os.environ["WORLD_SIZE"] != "1" and not _has_pmi()


def _has_pmi() -> bool:
    """Returns whether the connection to an mpirun of PMI is open in this process, which others do not inherit."""
    try:
        return stat.S_ISSOCK(os.fstat(int(os.environ.get("PMI_FD", "-1"))).st_mode)
    except (OSError, ValueError):
        return False


def _workers_of_tensorflow(config: str) -> int:
    try:
        cluster = json.loads(config or "{}").get("cluster", {})
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        return 0


session.on_start(mark_rank)
session.on_stop(unmark_rank)
