"""Read-only tensors and modules of which each host has one copy."""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from perseus_like.docstrings import documented_as
from perseus_like.host_memory.sharing import ArrayPickler, share

T = TypeVar("T")


@documented_as(share)
def shared(make: Callable[[], T], name: str) -> T:
    """Returns the object that `make` returns on one rank of each host, in memory that its ranks share.

    The first rank of each host calls `make`. The other ranks of the host map the tensors that it returns, so that the
    host has one copy of them. The memory is read-only on all ranks, and no tensor in it requires a gradient. torch has
    no read-only tensors: a write ends the process by SIGSEGV, and `faulthandler` shows its line. The call is collective
    over all ranks of the job.

    Args:
        make: a function without arguments that returns a CPU tensor, a module, or an object that contains tensors,
            modules or NumPy arrays and can be pickled, such as a dictionary. Tensors of `torch.load(…, mmap=True)` are
            copied once, from the file to the memory.

    Examples:
        >>> base = hvd.shared(lambda: torch.nn.Linear(4, 2), "base model")
        >>> base.weight.requires_grad
        False
    """
    return share(make, name, _TensorPickler)


class _Storage:
    """A storage in the object that is pickled. Tensors over the same storage share it after loading, too."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce_ex__(self, _protocol: Any) -> Any:
        if self._storage.nbytes() == 0:
            return torch.UntypedStorage, (0,)
        memory = (ctypes.c_char * self._storage.nbytes()).from_address(self._storage.data_ptr())
        memory.storage = self._storage  # type: ignore[attr-defined]  # the memory is read after the pickler has ended
        return _storage_over, (pickle.PickleBuffer(memory),)


class _TensorPickler(ArrayPickler):
    """Pickles strided tensors without their memory. Those of other layouts consist of strided ones, or are copied."""

    def __init__(self, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, buffer_callback)
        self._storages: dict[tuple[int, int], _Storage] = {}

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return super().reducer_override(obj)
        if obj.device.type != "cpu":
            raise ValueError(f"a tensor on {obj.device} cannot be shared; return CPU tensors from make()")
        if obj.layout is not torch.strided or obj.is_quantized or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        plain = obj.detach().resolve_conj().resolve_neg()
        storage = plain.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes())
        kept = self._storages.setdefault(key, _Storage(storage))
        place = (plain.storage_offset(), tuple(plain.shape), plain.stride())
        return _tensor_over, (kept, plain.dtype, place, isinstance(obj, torch.nn.Parameter))


def _storage_over(memory: memoryview) -> torch.UntypedStorage:
    # torch.frombuffer warns of each read-only buffer. The object of ctypes is writable for it, and keeps the memory.
    view = np.frombuffer(memory, np.uint8)
    writable = (ctypes.c_char * view.nbytes).from_address(view.ctypes.data)
    writable.memory = view  # type: ignore[attr-defined]
    return torch.frombuffer(writable, dtype=torch.uint8).untyped_storage()


def _tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    place: tuple[int, tuple[int, ...], tuple[int, ...]],
    is_parameter: bool,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, *place)
    return torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
