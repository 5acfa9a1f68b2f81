"""Collectives as asynchronous functions of MXNet's engine, by the library in native/.

The engine starts a collective when all earlier operations on its arrays are done. Operations that read the results wait
until the collective is done. Many collectives may be in flight. If one fails, waiting for its result (`asnumpy`,
`wait_to_read`) raises the error, by its class.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import mxnet as mx

from perseus_like.docstrings import documented
from perseus_like.errors import CLASSES, UnavailableError
from perseus_like.session import session
from perseus_like.tables import ErrorKind, Verb
from perseus_like.tensor import SUM, ReduceOptions

from .compat.library import handle_of, library_handle
from .tensors import number_of

F = TypeVar("F", bound=Callable[..., Any])

# The end of a session waits for its collectives for at most this time. Another rank may never submit one of them.
_FINISH_SECONDS = 10.0

_FAILED = "MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`."


def documented_for_engine(function: F) -> F:
    """Completes the docstring of a collective that the engine runs, so that the call does not raise its errors."""
    return documented(function, _FAILED)


class _ReduceOptions(ctypes.Structure):
    """`PerseusReduceOptions` of csrc/capi/perseus.h."""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("average", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("wire_dtype", ctypes.c_int32),
    )


class _Push(ctypes.Structure):
    """The struct `Push` in native/entry.cc."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("verb", ctypes.c_int32),
        ("process_set", ctypes.c_int32),
        ("reduce", _ReduceOptions),
        ("root", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("dtypes", ctypes.POINTER(ctypes.c_int32)),
        ("dimensions", ctypes.POINTER(ctypes.c_int32)),
        ("extents", ctypes.POINTER(ctypes.c_int64)),
        ("also_written", ctypes.POINTER(ctypes.c_void_p)),
        ("also_written_count", ctypes.c_int32),
    )


_LIBRARY = Path(__file__).with_name("_native.so")


@cache
def native() -> Any:
    """Returns the native library. Raises UnavailableError if it is missing or does not work with this MXNet."""
    if not _LIBRARY.exists():
        raise UnavailableError(
            f"perseus_like.mxnet cannot be used: {_LIBRARY} is missing; install a perseus_like that was built with it"
        )
    library = ctypes.CDLL(str(_LIBRARY))
    classes = [CLASSES[kind.name] for kind in ErrorKind]
    names = (ctypes.c_char_p * len(classes))(*[_register_error(cls).encode() for cls in classes])
    library.perseus_mxnet_allocate.restype = ctypes.c_void_p
    core, mxnet = ctypes.c_void_p(session.core.c_api()), ctypes.c_void_p(library_handle())
    message = Message()
    if library.perseus_mxnet_open(core, mxnet, names, len(classes), *message.space):
        raise UnavailableError(f"collectives cannot be used with MXNet {mx.__version__}: {message}")
    if not tells_memory_apart(library):
        raise UnavailableError(
            f"collectives cannot be used with MXNet {mx.__version__}: it stores arrays in an unknown form; install "
            "MXNet 1.9.1"
        )
    return library


def tells_memory_apart(library: Any) -> bool:
    """Returns whether the native library sees which arrays are views of the same memory (compat/layouts.h)."""
    array, other = mx.nd.zeros((2, 2)), mx.nd.zeros((2, 2))
    results = [
        library.perseus_mxnet_share_memory(handle_of(array), handle_of(each))
        for each in (array[0:1], array[1:2], other)
    ]
    return results == [1, 1, 0]


def _register_error(cls: type[BaseException]) -> str:
    """Lets MXNet raise `cls` for error texts that begin with the returned name. The name is removed from the text."""
    name = f"perseus_like.{cls.__name__}"
    mx.error.register(name, lambda text: cls(text.removeprefix(f"{name}: ")))
    return name


def _finish() -> None:
    """Waits for collectives that the program has not waited for, since the other ranks need this rank's part."""
    waiting = threading.Thread(target=_wait_for_all, daemon=True)
    waiting.start()
    waiting.join(_FINISH_SECONDS)


def _wait_for_all() -> None:
    try:
        mx.nd.waitall()
    except Exception as error:
        print(f"[perseus] warning: at the end of the session: {error}", file=sys.stderr)


session.before_stop(_finish)


class OneByOne:
    """An array for each name. Collectives that also write the array of a name run one after the other."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}

    def array_of(self, name: Hashable) -> list[Any]:
        if name not in self._arrays:
            self._arrays[name] = mx.nd.zeros((1,))
        return [self._arrays[name]]


class Message:
    """A buffer for error texts of the native library."""

    _BYTES = 2048

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(self._BYTES)
        self.space = (self._buffer, ctypes.c_size_t(self._BYTES))

    def __str__(self) -> str:
        return self._buffer.value.decode(errors="replace")


def push(
    name: str,
    verb: Verb,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    process_set: int,
    priority: int = 0,
    options: ReduceOptions = SUM,
    root: int = 0,
    also_written: Sequence[Any] = (),
) -> None:
    """Pushes a collective to MXNet's engine, and returns before it has run.

    `outputs` may be the inputs. Other operations on the arrays `also_written` wait until the collective is done. Errors
    of the core (a name in flight, a session that has ended) are raised when a program waits for the result.
    """
    session.core.rank()  # raises before init()
    shapes = [tensor.shape for tensor in inputs]
    extents = list(itertools.chain.from_iterable(shapes))
    count = len(inputs)
    request = _Push(
        name.encode(),
        verb,
        process_set,
        _ReduceOptions(*options),
        root,
        priority,
        count,
        _handles(inputs),
        _handles(outputs),
        (ctypes.c_int32 * count)(*[number_of(tensor) for tensor in inputs]),
        (ctypes.c_int32 * count)(*map(len, shapes)),
        (ctypes.c_int64 * len(extents))(*extents),
        _handles(also_written),
        len(also_written),
    )
    message = Message()
    if native().perseus_mxnet_push(ctypes.byref(request), *message.space):
        raise mx.base.MXNetError(f"{name}: {message}")


def _handles(tensors: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[handle_of(tensor).value for tensor in tensors])
