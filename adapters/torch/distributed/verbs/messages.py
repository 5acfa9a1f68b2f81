"""send and recv between two ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...tensors import cuda
from ..layout_conversion import check, dense, for_output, host_view, own_dtype
from ..numbered_group import NumberedGroup, collective
from ..works import Finish, PerseusWork

_ANYBODY = -1


class Messages(NumberedGroup):
    """Messages of one sender and tag arrive in order. A send does not wait for its receive: the data are copied.

    CUDA tensors are copied through pinned host memory: `send` blocks until the current stream has executed the copy.
    """

    @collective()
    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> PerseusWork:
        (tensor,) = tensors
        source = dense("send", tensor)
        if not source.is_cpu:
            source = cuda.copied_to_host(source)
        handle = self._core.post(host_view(source), dst, tag, True, self._number, source, own_dtype(tensor))
        what = f"send to rank {dst} with tag {tag}"
        return self._begun(PerseusWork(what, handle, [tensor], self._timeout, margin=0.0))

    @collective()
    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> PerseusWork:
        (tensor,) = tensors
        place, finish = _pinned(tensor)
        handle = self._core.post(host_view(place), src, tag, False, self._number, place, own_dtype(tensor))
        sender = "any rank" if src == _ANYBODY else f"rank {src}"
        what = f"recv from {sender} with tag {tag}"
        return self._begun(PerseusWork(what, handle, [tensor], self._timeout, finish, margin=0.0))

    @collective()
    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> PerseusWork:
        return self.recv(tensors, _ANYBODY, tag)


def _pinned(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Returns host memory that receives a message for the tensor, and a function that copies it to the tensor."""
    check("recv", tensor)
    if tensor.is_cpu:
        flat = for_output("recv", tensor)
        return flat.tensor, None if flat.target is None else lambda _: flat.finish()
    pinned, copy = cuda.pinned_like(tensor), cuda.HostToDeviceCopy(tensor)
    return pinned, lambda _: copy(pinned)
