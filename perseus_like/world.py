"""Start and end of the session, this process's rank and sizes, and queries about what was built and is in use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from . import launchers
from . import process_sets as sets
from .elastic.membership import membership
from .errors import UnavailableError
from .process_set_registration import register
from .protocol.failure_record import noted_init
from .session import session
from .start import start_alone, start_foreign
from .trace import timeline_span


def init(comm: Sequence[int] | Any = None, process_sets: Sequence[sets.ProcessSet] | str | None = None) -> None:
    """Starts the session of this rank. While a session runs, a further call only registers new `process_sets`.

    Args:
        comm: the ranks that form this job, as a list or an mpi4py communicator; by default all that were started. Each
            of these ranks calls `init` with the same ranks in the same order, and its position is its rank in the
            job. Other ranks may form a job of their own.
        process_sets: sets to register, the same on all ranks. The string "dynamic" is accepted and has no effect,
            since sets can always be added later.

    Raises:
        ValueError: this rank is not in `comm`, or a rank does not exist. Also if two sets have the same ranks, or if a
            set has all ranks of the job. In this last case the session runs, as in Horovod, and only the duplicate is
            not registered.
        HorovodInternalError: the ranks did not find each other, or one of them has ended.
        UnavailableError: the library that the settings ask for, such as MPI, cannot be used.

    Examples:
        >>> hvd.init()
        >>> hvd.rank() < hvd.size()
        True
    """
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets is {process_sets!r}; it takes a list of ProcessSet, or "dynamic"')
    if not isinstance(process_sets, str | Iterable | None):
        raise ValueError(f"process_sets is {process_sets!r}; it takes a list of ProcessSet")
    given = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    for position in _start(comm, given):
        raise ValueError(
            f"init(process_sets=…): entry {position}, {given[position]}, has the ranks of another set, or of the whole "
            "job; the session runs with the other sets; leave the duplicate out"
        )


# The arguments of `init`: the communicator, and all sets so far.
_given: tuple[Any, list[Any]] = (None, [])


def _start(comm: Any, process_sets: list[Any]) -> list[int]:
    """Starts a session if none runs and registers the sets. Returns the positions of duplicates."""
    global _given
    is_new = _start_session(comm)
    try:
        if is_new:
            _check_communicator(comm)
            _given = (comm, [])
            if _is_communicator(comm):
                sets.global_process_set.mpi_comm = comm
        duplicates = register(process_sets) if process_sets else []
    except BaseException:
        if is_new:
            session.stop()
        raise
    _given[1].extend(process_sets)
    return duplicates


def _start_session(comm: Any) -> bool:

    worker = membership()
    if session.is_running():
        return session.start({}, _selection(comm))
    if worker is None:
        return _start_launched(comm)
    if comm is not None:
        raise ValueError("init(comm=…): in an elastic job the launcher decides which workers belong to it; omit comm")
    worker.join(lambda given: session.start({}, rendezvous=given.rendezvous, cancel_fd=given.cancel_fd))
    return True


def _start_launched(comm: Any) -> bool:
    """Starts a session of the ranks that the launcher of this process has started."""
    if launchers.is_alone():
        if comm is not None:
            raise ValueError(f"init(comm=…) contradicts {launchers.ALONE}=1, which makes a job of one rank; omit one")
        return start_alone()
    launchers.require_own_rank()
    launcher = None if launchers.launched() or _is_world(comm) else launchers.foreign()
    if launcher is None:
        with noted_init() if comm is None else contextlib.nullcontext():
            return session.start({}, _selection(comm))
    if comm is not None:
        raise UnavailableError(
            f"init(comm=…): ranks that {launcher.name} has started form one job; omit comm, use process_sets=, or "
            "start with perseusrun"
        )
    with noted_init():
        return start_foreign(launcher)


def restart() -> None:
    """Ends the session and starts another with the same ranks and sets. Collective over the ranks.

    In an elastic job, the launcher assigns the ranks of the new session.
    """
    comm, process_sets = _given
    shutdown()
    _start(comm, process_sets)


def _is_communicator(comm: Any) -> bool:
    return hasattr(comm, "Get_group")


def _is_world(comm: Any) -> bool:
    """Returns whether `comm` belongs to an MPI that has several ranks, whose launcher does not matter then."""
    if not _is_communicator(comm):
        return False
    from mpi4py import MPI

    return bool(MPI.COMM_WORLD.Get_size() > 1)


def _selection(comm: Any) -> list[int]:
    """Returns the ranks of `comm` among those that were started. An empty list stands for all of them."""
    if comm is None:
        return []
    if not _is_communicator(comm):
        return sets.as_ranks("init(comm=…)", comm)
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        raise ValueError("init(comm=MPI.COMM_NULL): this rank has no communicator; do not call init() on this rank")
    world = MPI.COMM_WORLD
    ranks = MPI.Group.Translate_ranks(comm.Get_group(), list(range(comm.Get_size())), world.Get_group())
    return [] if ranks == list(range(world.Get_size())) else list(ranks)


def _check_communicator(comm: Any) -> None:
    if not _is_communicator(comm):
        return
    core = session.core
    if (comm.Get_rank(), comm.Get_size()) != (core.rank(), core.size()):
        raise UnavailableError(
            f"init(comm=…): in MPI this process is rank {comm.Get_rank()} of {comm.Get_size()}, but the job was "
            f"started without MPI, as rank {core.rank()} of {core.size()}; start it with mpirun, or omit comm"
        )


def shutdown() -> None:
    """Ends the session of this rank. Collectives that are not complete fail. `init` may be called again."""
    session.stop()


def is_initialized() -> bool:
    """Returns True between `init` and `shutdown`. Never raises."""
    return session.is_running()


def rank() -> int:
    """Returns this process's rank in the job: 0, 1, … size - 1. NotInitializedError before `init`."""
    return int(session.core.rank())


def size() -> int:
    """Returns the number of processes in the job. NotInitializedError before `init`."""
    return int(session.core.size())


def local_rank() -> int:
    """Returns this process's rank on its host, which is usually its device. NotInitializedError before `init`."""
    return int(session.core.local_rank())


def local_size() -> int:
    """Returns the number of processes on this host. NotInitializedError before `init`."""
    return int(session.core.local_size())


def cross_rank() -> int:
    """Returns this process's rank among the processes of the same local rank on all hosts.

    Raises:
        NotInitializedError: `init` was not called.
    """
    return int(session.core.cross_rank())


def cross_size() -> int:
    """Returns the number of hosts that have a process of this local rank. NotInitializedError before `init`."""
    return int(session.core.cross_size())


def is_homogeneous() -> bool:
    """Returns True if every host runs the same number of processes. NotInitializedError before `init`."""
    return bool(session.core.is_homogeneous())


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts writing a Chrome trace of this rank. `python -m perseus_like.trace` and ui.perfetto.dev read it.

    The file is complete JSON at any time. A timeline that is already being written to the same file continues; one to
    another file ends.

    Args:
        file_path: the file of rank 0. For `NAME.json`, rank r writes to `NAME.rank<r>.json`.
        mark_cycles: if true, the trace also has the engine's cycles.

    Raises:
        UnavailableError: the file cannot be written.
        NotInitializedError: `init` was not called.

    Examples:
        >>> hvd.start_timeline("/tmp/timeline.json")
        >>> hvd.stop_timeline()
    """
    timeline_span.forget()
    session.core.start_timeline(str(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the timeline that `start_timeline` or HOROVOD_TIMELINE has started. Does nothing without a timeline."""
    session.core.stop_timeline()
    timeline_span.finish()


def mpi_built() -> bool:
    """Returns True: an MPI library is loaded if its mpirun has started the job. `mpi_enabled` is about this session."""
    return True


def mpi_enabled() -> bool:
    """Returns True if this session communicates through MPI."""
    return session.is_running() and "mpi" in session.core.description().lower()


def mpi_threads_supported() -> bool:
    """Returns True if several threads may call MPI. ValueError if the session does not use MPI."""
    if not mpi_enabled():
        raise ValueError("mpi_threads_supported() needs a session that runs on MPI; start the job with mpirun")
    return bool(session.core.is_mpi_multithreaded())


def gloo_built() -> bool:
    """Returns True: jobs run without MPI, as Horovod's do if it has Gloo. Gloo itself is not used."""
    return True


def gloo_enabled() -> bool:
    """Returns True if this session communicates without MPI. After `init`, either this or `mpi_enabled` is True."""
    return session.is_running() and not mpi_enabled()


def nccl_built() -> int:
    """Returns NCCL's version as a number, 0 without NCCL."""
    return 0


def ddl_built() -> bool:
    """Returns False: IBM DDL is not used here."""
    return False


def ccl_built() -> bool:
    """Returns True if oneCCL can be used."""
    return False


def cuda_built() -> bool:
    """Returns True if CUDA's driver is installed, so that tensors on CUDA devices can be communicated."""
    return bool(session.core.has_device_driver())


def rocm_built() -> bool:
    """Returns True if tensors on ROCm devices can be communicated."""
    return False
