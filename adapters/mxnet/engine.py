"""Collectives as asynchronous functions of MXNet's engine, by the library in native/.

The engine starts one when what its arrays wait for is done, and lets nobody read them before it is. Many are under way
at once. One that fails raises where its result is waited for (`asnumpy`, `wait_to_read`), by the class of its error.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Hashable, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import mxnet as mx

from perseus_like.errors import CLASSES, UnavailableError
from perseus_like.session import session
from perseus_like.tensor import AS_IT_IS

from .tensors import number_of


class Verb(IntEnum):
    """PerseusVerb of csrc/capi/perseus.h."""

    allreduce = 0
    adasum = 1
    broadcast = 2
    reduce_scatter = 5


class _Push(ctypes.Structure):
    """`Push` in native/entry.cc."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("verb", ctypes.c_int32),
        ("process_set", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("average", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("wire_dtype", ctypes.c_int32),
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
    """The library, opened for this MXNet."""
    if not _LIBRARY.exists():
        raise UnavailableError(f"{_LIBRARY} is missing: this installation was built without its part for MXNet")
    library = ctypes.CDLL(str(_LIBRARY))
    kinds = sorted(session.core.ErrorKind.__members__.values())
    classes = [CLASSES[kind.name] for kind in kinds]
    names = (ctypes.c_char_p * len(classes))(*[_teach(cls).encode() for cls in classes])
    library.perseus_mxnet_allocate.restype = ctypes.c_void_p
    core, mxnet = ctypes.c_void_p(session.core.c_api()), ctypes.c_void_p(mx.base._LIB._handle)
    message = Message()
    if library.perseus_mxnet_open(core, mxnet, names, len(classes), *message.space):
        raise UnavailableError(f"MXNet {mx.__version__}: {message}")
    return library


def _teach(cls: type[BaseException]) -> str:
    """Has MXNet raise `cls` for a text that begins with the name that is given back, without that name."""
    name = f"perseus_like.{cls.__name__}"
    mx.error.register(name, lambda text: cls(text.removeprefix(f"{name}: ")))
    return name


class InTurn:
    """Arrays that stand for names: work that also writes such an array begins when all before it has ended."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}

    def of(self, name: Hashable) -> list[Any]:
        if name not in self._arrays:
            self._arrays[name] = mx.nd.zeros((1,))
        return [self._arrays[name]]


class Message:
    """Where the library puts its reasons."""

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
    op: int = 0,
    average: bool = False,
    prescale: float = 1.0,
    postscale: float = 1.0,
    wire_dtype: int = AS_IT_IS,
    root: int = 0,
    also_written: Sequence[Any] = (),
) -> None:
    """Returns at once. `outputs` may be the inputs; `also_written`: arrays that others are kept from meanwhile.

    A mistake that the core sees (a name in flight, a session that has ended) raises where the result is waited for.
    """
    session.core.rank()  # raises before init()
    shapes = [tensor.shape for tensor in inputs]
    extents = list(itertools.chain.from_iterable(shapes))
    count = len(inputs)
    asked = _Push(
        name.encode(),
        verb,
        process_set,
        op,
        average,
        prescale,
        postscale,
        wire_dtype,
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
    if native().perseus_mxnet_push(ctypes.byref(asked), *message.space):
        raise mx.base.MXNetError(f"{name}: {message}")


def _handles(tensors: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.handle for tensor in tensors])
