"""Starts a session of the ranks that a launcher has started."""

from __future__ import annotations

import importlib
import importlib.util
import os

from . import launchers
from .errors import UnavailableError
from .session import session
from .tcp_rendezvous import SECRET_FILE, TcpRendezvous


def start(holder: str) -> bool:
    """Starts a session of the ranks that the launcher has started, unless one is running, without arguments of `init`.

    Returns True if it has started one.
    """
    if not session.is_running():
        if launchers.is_alone():
            return start_alone(holder)
        launchers.require_own_rank()
        if not launchers.launched() and (launcher := launchers.foreign()):
            return start_foreign(launcher, holder)
    return session.start({}, holder=holder)


def start_alone(holder: str = "init") -> bool:
    """Starts a session of this process alone."""
    return session.start({}, rendezvous=(0, 1, lambda mine: [mine]), holder=holder)


def start_foreign(launcher: launchers.Launcher, holder: str = "init") -> bool:
    """Starts a session of the ranks of such a launcher. UnavailableError if they have no way to meet."""
    limit = float(os.environ.get("PERSEUS_START_TIMEOUT") or os.environ.get("HOROVOD_START_TIMEOUT") or 60)
    place = launchers.place_of(launcher)
    if place is None:
        signs = ", ".join(f"{name}={os.environ[name]}" for name in (launcher.rank, launcher.size) if name)
        raise UnavailableError(
            f"init(): {signs} say that this process is one of several ranks of {launcher.name.replace('`', '')}, but "
            f"they have no way to find each other; {launcher.remedy}. {launchers.ALONE}=1 makes a job of this process "
            "alone"
        )
    rank, size = launchers.number(launcher.rank), launchers.number(launcher.size)
    if rank >= size:
        raise ValueError(f"init(): {launcher.rank}={rank} contradicts {launcher.size}={size}; set both, or neither")
    if size == 1:
        return start_alone(holder)
    if launcher is launchers.TORCHRUN and importlib.util.find_spec("torch") is not None:
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


session.on_start(lambda: launchers.mark_rank(session.core.rank(), session.core.size()))
session.on_stop(launchers.unmark_rank)
session.on_stop(_disconnect)
