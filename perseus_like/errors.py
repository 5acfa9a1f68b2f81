"""What goes wrong, as Python classes: one per kind of error of the core, plus Horovod's names."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

_uses_horovods_words = False


def use_horovods_words() -> None:
    """From now on, texts of errors contain Horovod's words where programs look for them. Called by `import horovod`."""
    global _uses_horovods_words
    _uses_horovods_words = True


class HorovodsWords(BaseException):
    """Base of errors whose text contains words of Horovod if this process has imported `horovod`."""

    # The beginning of our text, and what Horovod's text has in its place.
    horovods_words: ClassVar[tuple[str, str]] = ("", "")

    def __str__(self) -> str:
        text = super().__str__()
        ours, theirs = self.horovods_words
        return theirs + text.removeprefix(ours) if _uses_horovods_words else text


class HorovodInternalError(HorovodsWords, RuntimeError):
    """A collective failed, or was asked for while there is no session. Elastic training catches exactly this."""

    # Who raises an error anew with a longer text (TensorFlow, while it traces a function) looks whether it is this one.
    __init__ = Exception.__init__


class NotInitializedError(HorovodInternalError, ValueError):
    """Used before `init()` or after `shutdown()`. Horovod raises ValueError from `rank()` and the like."""

    horovods_words = ("perseus_like has not been initialized", "Horovod has not been initialized")


class DisagreementError(HorovodInternalError):
    """Ranks asked for different things under one name. The same text on all ranks; the job goes on."""


class PeerLostError(HorovodInternalError):
    """A rank died or left; the session is over."""

    horovods_words = ("", "Horovod has been shut down: ")


class TimedOutError(HorovodInternalError):
    """A rank never came within the time allowed. The text always has the words "timed out", which programs look for."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if "timed out" in text else f"timed out: {text}"


class TransportError(HorovodInternalError):
    """An engine below (MPI, oneCCL, NCCL, the system) reported a failure."""


class ShutDownError(HorovodInternalError):
    """The session was shut down while the work waited."""

    horovods_words = ("", "Horovod has been shut down: ")


class UnavailableError(RuntimeError):
    """Something that was asked for is not here: a library, memory, a device, a feature."""

    __init__ = Exception.__init__  # as above


class UnsupportedOpError(NotImplementedError, ValueError):
    """A reduction that a verb does not know. Horovod raises a RuntimeError, which NotImplementedError is."""

    __init__ = Exception.__init__  # as above


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed. `skip_sync`: they were only removed, so the state needs no new copy."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("hosts were added to or removed from the job")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework of another version than the one built for. Never raised here: the wheel fits every version."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"built for {name} {version}, but {name} {installed_version} is installed"


# By the names of perseus_like._core.ErrorKind.
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
    """Tells the core which class to raise for each of its kinds."""
    for kind in core.ErrorKind.__members__.values():
        core.set_error_class(int(kind), CLASSES[kind.name])
