"""`as_gloo`: programs that name gloo run over this library."""

from __future__ import annotations

import torch.distributed as dist

from perseus_like.errors import UnavailableError


def as_gloo() -> None:
    """Makes the backend `gloo` of torch.distributed mean perseus for tensors on the CPU, from this call on.

    It holds for `init_process_group` and `new_group` with `gloo`, with `cpu:gloo,cuda:nccl`, and without a backend if
    there is no GPU. Groups that exist stay as they are. The environment variable PERSEUS_AS_GLOO=1 and
    `perseusrun --as-gloo` do the same for whole programs. A second call does nothing.

    Errors: UnavailableError if the installed torch has no torch.distributed, or one that this library does not know.
    """
    if not dist.is_available():
        raise UnavailableError("as_gloo(): this torch has no torch.distributed; install another build of torch")
    from perseus_like_autoload import use_as_gloo

    try:
        use_as_gloo(dist)
    except AttributeError as error:
        raise UnavailableError(
            f"as_gloo(): this release of torch is not known ({error}); name the backend perseus instead of gloo"
        ) from error
