"""The exception classes: one for each kind of error of the core, and those of Horovod."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

from .protocol.failure_record import note_lost_process
from .tables import ErrorKind

_uses_horovods_words = False


def use_horovods_words() -> None:
    """Makes texts of errors contain the words of Horovod that programs look for. `import horovod` calls it."""
    global _uses_horovods_words
    _uses_horovods_words = True


class HorovodsWords(BaseException):
    """Base of errors whose text contains words of Horovod if this process has imported `horovod`."""

    # The start of this package's text, and the text that Horovod has instead.
    horovods_words: ClassVar[tuple[str, str]] = ("", "")

    def __str__(self) -> str:
        text = super().__str__()
        ours, theirs = self.horovods_words
        return theirs + text.removeprefix(ours) if _uses_horovods_words else text


class HorovodInternalError(HorovodsWords, RuntimeError):
    """A collective failed, or was submitted without a session. Elastic training catches exactly this class."""

    # TensorFlow raises an error again with a longer text only if the class has this `__init__`.
    __init__ = Exception.__init__


class NotInitializedError(HorovodInternalError, ValueError):
    """A function was called before `init()` or after `shutdown()`. Horovod's `rank()` raises ValueError then."""

    horovods_words = ("perseus_like has not been initialized", "Horovod has not been initialized")


class DisagreementError(HorovodInternalError):
    """Ranks submitted different requests under one name. The text is the same on all ranks, and the job goes on."""


class PeerLostError(HorovodInternalError):
    """A rank died or left. The session has ended."""

    horovods_words = ("", "Horovod has been shut down: ")

    def __new__(cls, *args: Any, **kwargs: Any) -> PeerLostError:  # `__init__` must stay as above
        # A program that catches it and exits with a failure has not failed first.
        note_lost_process()
        return super().__new__(cls, *args, **kwargs)


class TimedOutError(HorovodInternalError):
    """A rank did not submit its part in time. The text has the words "timed out", which programs look for."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if "timed out" in text else f"timed out: {text}"


class TransportError(HorovodInternalError):
    """A transport (MPI, oneCCL, NCCL, sockets, shared memory) reported a failure."""


class ShutDownError(HorovodInternalError):
    """The session was shut down before the collective was complete."""

    horovods_words = ("", "Horovod has been shut down: ")


class UnavailableError(RuntimeError):
    """A library, memory, a device or a feature that was requested is not available."""

    __init__ = Exception.__init__  # as above


class UnsupportedOpError(NotImplementedError, ValueError):
    """The verb does not support this operation. NotImplementedError is a RuntimeError, which Horovod raises."""

    __init__ = Exception.__init__  # as above


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed. `skip_sync` is true if hosts were only removed: the state is not copied again."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("hosts were added to or removed from the job")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """The framework has another version than the one built for. Never raised here: the wheel fits every version."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"built for {name} {version}, but {name} {installed_version} is installed"


# The classes by the names of ErrorKind.
CLASSES: dict[str, type[BaseException]] = {
    "invalid_argument": ValueError,
    "not_initialized": NotInitializedError,
    "disagreement": DisagreementError,
    "peer_lost": PeerLostError,
    "timed_out": TimedOutError,
    "transport": TransportError,
    "unavailable": UnavailableError,
    "shut_down": ShutDownError,
}


def register(core: ModuleType) -> None:
    """Registers the class that the core raises for each kind of error."""
    for kind in ErrorKind:
        core.set_error_class(int(kind), CLASSES[kind.name])
