"""`join`, and the functions that take a handle."""

from perseus_like.collectives import join as _join
from perseus_like.collectives.handle import handles

from .tensors.cuda import device_to_join_on

poll = handles.poll
synchronize = handles.synchronize


def join(device: int = -1) -> int:
    """Blocks until every rank has joined. Contributes zeros to the other ranks' allreduces meanwhile.

    A rank calls it when it has no more batches, so that the others can finish theirs.

    Args:
        device: the CUDA device on which this rank takes part, if it has had no tensor there. -1: the current one.

    Returns:
        The last rank that joined.

    Raises:
        HorovodInternalError: a rank has ended, or `init` was not called.

    Examples:
        >>> hvd.join()
        0
    """
    return _join(device_to_join_on(device))


__all__ = ["join", "poll", "synchronize"]
