"""Start and end of the session, the numbers of this rank, and what is there to run on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import process_sets as sets
from .errors import UnavailableError
from .session import session


def init(comm: Sequence[int] | Any = None, process_sets: Sequence[sets.ProcessSet] | str | None = None) -> None:
    """Joins the job. While the session runs, another call only registers `process_sets` that are not registered yet.

    `comm`: the ranks that form this job, in its order, among those that were started: a list, or an mpi4py
    communicator. Every one of them calls `init` with the same, and is numbered by its place; others form jobs of their
    own, or none.
    `process_sets`: sets to register, the same on all ranks; the string "dynamic" is accepted and needs nothing, since
    sets can always be added later.
    ValueError where this rank is not in `comm`, and where ranks do not exist. Also for two sets of the same ranks, or
    one of all of them: then, as in Horovod, the session runs, and the second of them alone is not registered.
    """
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets is {process_sets!r}; it takes a list of ProcessSet, or "dynamic"')
    if not isinstance(process_sets, str | Iterable | None):
        raise ValueError(f"process_sets is {process_sets!r}; it takes a list of ProcessSet")
    given = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    for place in _start(comm, given):
        raise ValueError(
            f"init(process_sets=…): entry {place}, {given[place]}, has the ranks of another set, or of the whole job; "
            "the session runs, with the other sets"
        )


# What `init` was called with: the communicator, and all the sets.
_given: tuple[Any, list[Any]] = (None, [])


def _start(comm: Any, process_sets: list[Any]) -> list[int]:
    """Gives the places of sets that are there twice."""
    global _given
    is_new = _start_session(comm)
    try:
        if is_new:
            _check_communicator(comm)
            _given = (comm, [])
            if _is_communicator(comm):
                sets.global_process_set.mpi_comm = comm
        twice = sets.register(process_sets) if process_sets else []
    except BaseException:
        if is_new:
            session.stop()
        raise
    _given[1].extend(process_sets)
    return twice


def _start_session(comm: Any) -> bool:
    # Not above: perseus_like.elastic uses this module.
    from .elastic.membership import membership

    worker = membership()
    if worker is None or session.is_running():
        return session.start({}, _selection(comm))
    if comm is not None:
        raise ValueError("init(comm=…): in an elastic job the launcher says who belongs to it; leave comm out")
    worker.join(lambda given: session.start({}, meeting=given.rendezvous, called_off=given.called_off))
    return True


def restart() -> None:
    """Ends the session and starts another of the same ranks and sets; in an elastic job, of the ranks there are then.

    Collective over them.
    """
    comm, process_sets = _given
    shutdown()
    _start(comm, process_sets)


def _is_communicator(comm: Any) -> bool:
    return hasattr(comm, "Get_group")


def _selection(comm: Any) -> list[int]:
    """The ranks of `comm` among those that were started; none for all of them."""
    if comm is None:
        return []
    if not _is_communicator(comm):
        return sets.as_ranks("init(comm=…)", comm)
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        raise ValueError("init(comm=MPI.COMM_NULL): this rank has no communicator; it must leave init() out")
    world = MPI.COMM_WORLD
    ranks = MPI.Group.Translate_ranks(comm.Get_group(), list(range(comm.Get_size())), world.Get_group())
    return [] if ranks == list(range(world.Get_size())) else list(ranks)


def _check_communicator(comm: Any) -> None:
    if not _is_communicator(comm):
        return
    core = session.core
    if (comm.Get_rank(), comm.Get_size()) != (core.rank(), core.size()):
        raise UnavailableError(
            f"init(comm=…): MPI says rank {comm.Get_rank()} of {comm.Get_size()}, but the job was started as rank "
            f"{core.rank()} of {core.size()} without MPI; start it with mpirun, or leave comm out"
        )


def shutdown() -> None:
    """Leaves the job. Work in flight fails; `init` may follow."""
    session.stop()


def is_initialized() -> bool:
    """True between `init` and `shutdown`. Never raises."""
    return session.is_running()


def rank() -> int:
    """This process's rank in the job."""
    return int(session.core.rank())


def size() -> int:
    """The number of processes in the job."""
    return int(session.core.size())


def local_rank() -> int:
    """This process's rank among those of its host."""
    return int(session.core.local_rank())


def local_size() -> int:
    """The number of processes on this host."""
    return int(session.core.local_size())


def cross_rank() -> int:
    """This process's rank among those of the same local rank on all hosts."""
    return int(session.core.cross_rank())


def cross_size() -> int:
    """The number of hosts that have a process of this local rank."""
    return int(session.core.cross_size())


def is_homogeneous() -> bool:
    """True if every host runs the same number of processes."""
    return bool(session.core.is_homogeneous())


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write a Chrome trace of this rank; `python -m perseus_like.trace` reads it, as does ui.perfetto.dev.

    Rank 0 writes to `file_path`, rank r to `NAME.rank<r>.json` for `NAME.json`. A file is complete JSON at any
    moment. `mark_cycles`: also mark the engine's cycles. A timeline that is being written goes on if the file is the
    same, else it ends.
    """
    session.core.start_timeline(str(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends what `start_timeline` began, or HOROVOD_TIMELINE; nothing happens where no timeline is being written."""
    session.core.stop_timeline()


def mpi_built() -> bool:
    """True: an MPI library is opened when the job was started by its mpirun. `mpi_enabled` tells if that is so."""
    return True


def mpi_enabled() -> bool:
    """True if this session communicates through MPI."""
    return session.is_running() and "mpi" in session.core.description().lower()


def mpi_threads_supported() -> bool:
    """Whether several threads may call MPI. ValueError without an MPI in use."""
    if not mpi_enabled():
        raise ValueError("mpi_threads_supported() needs a session that runs on MPI")
    return bool(session.core.is_mpi_multithreaded())


def gloo_built() -> bool:
    """True: jobs run without MPI, as Horovod's do if it has Gloo. Gloo itself is not used."""
    return True


def gloo_enabled() -> bool:
    """True if this session communicates without MPI. After `init`, either this or `mpi_enabled` is True."""
    return session.is_running() and not mpi_enabled()


def nccl_built() -> int:
    """NCCL's version as a number, 0 without it."""
    return 0


def ddl_built() -> bool:
    """False: IBM DDL is not used here."""
    return False


def ccl_built() -> bool:
    """True if oneCCL can be used."""
    return False


def cuda_built() -> bool:
    """True if CUDA's driver is here, so that tensors on CUDA devices can be communicated."""
    return bool(session.core.has_device_driver())


def rocm_built() -> bool:
    """True if tensors on ROCm devices can be communicated."""
    return False
