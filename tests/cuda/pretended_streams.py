"""Simulates CUDA tensors, streams and futures without a GPU, for programs of torch.distributed.

A tensor of this module reports that it is on `cuda:0`, and its elements are in host memory. Streams are streams of the
libcuda.so.1 of tests/cpp/fake_cuda. With FAKE_CUDA_STREAMS=late, a stream executes its work only when a thread or
another stream waits for it, and no more than that wait needs. Each operation of torch on a tensor runs on the current
stream, after the earlier work of this stream. A program that forgets to wait therefore sees the old elements.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from array_interface import tensor_from  # type: ignore[import-not-found]
from torch.distributed import distributed_c10d
from torch.futures import Future
from torch.utils._pytree import tree_map

import perseus_like.torch.tensors.cuda as cuda

CUDA = torch.device("cuda", 0)
_driver = ctypes.CDLL("libcuda.so.1")
_driver.fakeMakeStream.restype = ctypes.c_size_t
_driver.fakeSynchronize.argtypes = [ctypes.c_size_t]
_driver.fakeCopy.argtypes = [ctypes.c_size_t] * 4


class Stream:
    """Has the methods of torch.cuda.Stream that the library uses. Without a number, the object is a new stream."""

    def __init__(self, number: int | None = None) -> None:
        self.cuda_stream = _driver.fakeMakeStream() if number is None else number

    def synchronize(self) -> None:
        _driver.fakeSynchronize(self.cuda_stream)

    def record_event(self) -> Stream:
        """Returns the stream itself, because waiting for later work of the stream, too, does no harm."""
        return self

    def wait_event(self, event: Stream) -> None:
        event.synchronize()


_DEFAULT = Stream(0)
_now = threading.local()


stream_objects = 0  # that torch.cuda.current_stream() has made


def current() -> Stream:
    return getattr(_now, "stream", _DEFAULT)


def _current_stream(device: Any) -> Stream:
    global stream_objects
    stream_objects += 1
    return current()


@contextmanager
def on(stream: Stream) -> Iterator[None]:
    before, _now.stream = current(), stream
    try:
        yield
    finally:
        _now.stream = before


# torch reuses a device's memory in the order of streams. This module keeps all memory, so that nothing is reused.
_memory: list[torch.Tensor] = []
# torch's allocator: "native", or "cudaMallocAsync", which refuses memory that it has not allocated.
allocator = "native"
_of_the_core: set[int] = set()  # addresses of tensors over the core's memory
tensors_over_memory = 0  # how many of these were made


class OnDevice(torch.Tensor):
    """A tensor that reports that it is on CUDA device 0 or on another device."""

    elements: torch.Tensor

    @staticmethod
    def __new__(cls, elements: torch.Tensor, device: torch.device = CUDA) -> OnDevice:
        make: Any = torch.Tensor._make_wrapper_subclass
        layout = {"strides": elements.stride(), "storage_offset": elements.storage_offset()}
        made: OnDevice = make(cls, elements.shape, dtype=elements.dtype, device=device, **layout)
        made.elements = elements
        _memory.append(elements)
        return made

    def data_ptr(self) -> int:
        return self.elements.data_ptr()

    def record_stream(self, stream: Any) -> None:
        if allocator != "native" and self.data_ptr() in _of_the_core:
            raise RuntimeError("ptr not found in ptr_info")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.__name__
        if name == "__get__" or name in _LOOKS:
            return super().__torch_function__(function, types, arguments, options)  # type: ignore[no-untyped-call]
        current().synchronize()
        return _on_elements(function, arguments, options or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _on_elements(function, args, kwargs or {})


# Methods that describe a tensor and do not read it.
_LOOKS = {"get_device", "is_contiguous", "is_conj", "is_neg", "is_complex", "numel", "dim", "size", "stride"}


def _on_elements(function: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """Calls `function` with the elements in host memory in place of tensors. The results are on the device, too."""
    owners: dict[int, OnDevice] = {}

    def inner(value: Any) -> Any:
        if not isinstance(value, OnDevice):
            return value
        owners[id(value.elements)] = value
        return value.elements

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not owners:
            return value
        owner = owners.get(id(value))
        return OnDevice(value) if owner is None else owner

    found = function(*tree_map(inner, arguments), **tree_map(inner, options))
    return tree_map(outer, found)


def to_device(elements: torch.Tensor) -> OnDevice:
    return OnDevice(elements.clone())


def fill_later(tensor: torch.Tensor, elements: torch.Tensor) -> None:
    """Copies `elements` to `tensor` on the current stream, as a kernel that runs later. `tensor` is contiguous."""
    assert tensor.is_contiguous()
    assert elements.is_contiguous()
    assert tensor.dtype == elements.dtype
    _memory.append(elements)
    _driver.fakeCopy(current().cuda_stream, tensor.data_ptr(), elements.data_ptr(), elements.nbytes)


def values(tensor: torch.Tensor) -> Any:
    """Returns the elements of `tensor` as a list, after the current stream has executed its work."""
    assert tensor.is_cuda
    current().synchronize()
    return tensor.elements.tolist()  # type: ignore[attr-defined]


class DeviceFuture:
    """Takes the place of a torch future of a device. Waiters and callbacks run after the work that completed it."""

    def __init__(self, devices: list[torch.device] | None = None, inner: Any = None) -> None:
        assert inner is not None or devices == [CUDA]
        self._inner: Any = inner or Future()
        self._completed_on: Stream | None = None  # set if the value has tensors

    def set_result(self, value: None) -> None:
        self._inner.set_result(value)

    def then(self, callback: Callable[[Any], Any]) -> DeviceFuture:
        following: DeviceFuture

        def call(_: Any) -> Any:
            with on(Stream()):
                self._arrive()
                following._completed_on = current()
                return callback(self)

        following = DeviceFuture(inner=Future())
        following._inner = self._inner.then(call)
        return following

    def wait(self) -> Any:
        value = self._inner.wait()
        self._arrive()
        return value

    def wait_on_the_host(self) -> None:
        """Blocks until it is complete. No stream waits for the work that completed it."""
        self._inner.wait()

    def _arrive(self) -> None:
        if self._completed_on is not None:
            self._completed_on.synchronize()

    def value(self) -> Any:
        return self._inner.value()


class _Torch:
    """Takes the place of the module torch in perseus_like.torch.tensors.cuda."""

    device = torch.device
    Tensor = torch.Tensor

    class cuda:  # noqa: N801
        current_stream = staticmethod(_current_stream)
        device = staticmethod(lambda number: nullcontext())
        is_initialized = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 0)
        get_allocator_backend = staticmethod(lambda: allocator)

    @staticmethod
    def as_tensor(data: Any, device: torch.device) -> torch.Tensor:
        global tensors_over_memory
        tensors_over_memory += 1
        _of_the_core.add(data.__cuda_array_interface__["data"][0])
        return OnDevice(tensor_from(data.__cuda_array_interface__, data), device)

    @staticmethod
    def empty(*arguments: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        assert pin_memory != (device is not None)
        made = torch.empty(*arguments, **options)
        return made if pin_memory else OnDevice(made, device)


def pretend() -> None:
    """Replaces torch's streams, futures and device checks with those of this module."""
    vars(cuda).update(torch=_Torch, Future=DeviceFuture)
    vars(torch._C).update(_cuda_getCurrentRawStream=lambda device: current().cuda_stream)
    # torch calls these functions when it sees a CUDA tensor.
    vars(torch.cuda).update(_lazy_init=lambda: None, get_device_capability=lambda _: (9, 0))
    vars(distributed_c10d).update(has_torch_function=lambda _: False)  # this library executes the collectives
