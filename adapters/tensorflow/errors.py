"""Errors of collectives. Each class derives from one of perseus_like and from one of TensorFlow.

The kernels put the kind of an error in front of its text. `translated` splits them again.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from perseus_like import errors

# native/core.cc writes this format. TensorFlow appends the node and the operation to a text.
_OURS = re.compile(r"HorovodInternalError \((\w+)\): (.*?)(?=\n\t ?\[\[|\s*\[Op:|$)", re.DOTALL)


def _both(name: str, ours: type[BaseException], theirs: Any) -> Any:
    # __init__ has TensorFlow's parameters, because AutoGraph and pickle call it.
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
    """Returns a ValueError that is also a tf.errors.InvalidArgumentError, which Horovod raises for wrong arguments."""
    error: ValueError = InvalidArgumentError(None, None, text)
    return error


def translated(error: BaseException) -> BaseException | None:
    """Returns the error of a collective in a class of this module, without TensorFlow's text. None for other errors."""
    return translated_text(str(error))


def translated_text(text: str) -> BaseException | None:
    """Does the same as `translated`, for the text of an error."""
    found = _OURS.search(text)
    if found is None or found[1] not in _CLASSES:
        return None
    ours: BaseException = _CLASSES[found[1]](None, None, found[2].strip())
    return ours
