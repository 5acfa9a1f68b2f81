"""Makes the name `perseus` known to torch.distributed, at the cost of a few dictionary entries.

torch loads this at the end of `import torch` by the entry point `torch.backends`, also in programs that never use it.
So it imports nothing of ours until a process group is made, and whatever goes wrong here is logged and nothing more. It
is installed as a top-level package beside `perseus_like`, whose own import would already be too much.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from . import local_store

NAME = "perseus"

logger = logging.getLogger("perseus_like")


def register(name: str = NAME) -> None:
    """Never raises; a second call does nothing. `name`: one that the backend gets beside its own."""
    try:
        import torch.distributed as dist

        if dist.is_available():
            _register(dist, name)
    except Exception as error:
        logger.debug("the torch.distributed backend %r is not registered: %s", name, error)


def _register(dist: Any, name: str) -> None:
    is_first = NAME.upper() not in dist.Backend._plugins
    for each in dict.fromkeys((NAME, name)):
        if each.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(each, partial(_create, each), extended_api=True, devices=["cpu", "cuda"])
    if not is_first:
        return
    handlers = dist.rendezvous.__globals__["_rendezvous_handlers"]
    for scheme, needs_ours in (("env", _has_no_address), ("tcp", _has_no_listener)):
        handlers[scheme] = _rendezvous(scheme, handlers[scheme], needs_ours)


def _rendezvous(scheme: str, original: Any, needs_ours: Callable[[str], bool]) -> Callable[..., Iterator[Any]]:
    """torch's own, also for programs of other backends; ours where that would only fail."""

    def meet(url: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        if scheme == "env" and local_store.is_wanted(url):
            return local_store.meet(url, *arguments, **options)
        if not needs_ours(url):
            return original(url, *arguments, **options)  # type: ignore[no-any-return]
        from perseus_like.torch.distributed import env

        return env.RENDEZVOUS[scheme](original, url, *arguments, **options)

    return meet


def _has_no_address(_: str) -> bool:
    """mpirun does not set it."""
    return "MASTER_ADDR" not in os.environ


def _has_no_listener(url: str) -> bool:
    """torchrun has told torch that its agent keeps the store, which is only so at the agent's own port."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not url.partition("?")[0].rstrip("/").endswith(
        f":{os.environ.get('MASTER_PORT')}"
    )


def _create(name: str, options: Any, backend_options: Any) -> Any:
    from perseus_like.torch.distributed.device_groups import create

    return create(options, backend_options, name.lower())
