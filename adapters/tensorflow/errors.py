"""Errors of collectives. Each is of our class and of TensorFlow's, so programs may catch either.

The kernels put the kind of an error in front of its text; `translated` finds both again.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from perseus_like import errors

# The format is that of native/core.cc. TensorFlow appends the node and the operation to a text.
_OURS = re.compile(r"HorovodInternalError \((\w+)\): (.*?)(?=\n\t ?\[\[|\s*\[Op:|$)", re.DOTALL)


def _both(name: str, ours: type[BaseException], theirs: Any) -> Any:
    # With TensorFlow's signature of __init__: AutoGraph and pickle make such errors anew.
    return type(name, (ours, theirs), {"__init__": theirs.__init__, "__module__": __name__, "__doc__": ours.__doc__})


InvalidArgumentError = _both("InvalidArgumentError", ValueError, tf.errors.InvalidArgumentError)
NotInitializedError = _both("NotInitializedError", errors.NotInitializedError, tf.errors.FailedPreconditionError)
DisagreementError = _both("DisagreementError", errors.DisagreementError, tf.errors.FailedPreconditionError)
PeerLostError = _both("PeerLostError", errors.PeerLostError, tf.errors.UnknownError)
TimedOutError = _both("TimedOutError", errors.TimedOutError, tf.errors.UnknownError)
TransportError = _both("TransportError", errors.TransportError, tf.errors.UnknownError)
UnavailableError = _both("UnavailableError", errors.UnavailableError, tf.errors.UnknownError)
ShutDownError = _both("ShutDownError", errors.ShutDownError, tf.errors.UnknownError)

# The classes by the kinds of perseus_like.errors.CLASSES. The native library (native/core.cc) uses the same codes.
_CLASSES: dict[str, Any] = {
    "invalid_argument": InvalidArgumentError,
    "not_initialized": NotInitializedError,
    "disagreement": DisagreementError,
    "peer_lost": PeerLostError,
    "timed_out": TimedOutError,
    "transport": TransportError,
    "unavailable": UnavailableError,
    "shut_down": ShutDownError,
}


def invalid_argument(text: str) -> ValueError:
    """A ValueError that is also tf.errors.InvalidArgumentError, as Horovod raises for arguments of collectives."""
    error: ValueError = InvalidArgumentError(None, None, text)
    return error


def translated(error: BaseException) -> BaseException | None:
    """The error of a collective in a class of both, with our text alone. None if `error` is of no collective."""
    found = _OURS.search(str(error))
    if found is None or found[1] not in _CLASSES:
        return None
    ours: BaseException = _CLASSES[found[1]](None, None, found[2].strip())
    return ours
