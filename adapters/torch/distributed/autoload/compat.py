"""Private parts of torch.distributed on which the registration relies, in the form of `adapters/torch/compat/`.

They are here because `import torch` loads this package, which therefore imports nothing of perseus_like.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_registered(dist: Any, name: str) -> bool:
    """Returns whether torch knows a backend of this name.

    Relies on: `torch.distributed.Backend._plugins`, a dictionary from the names of added backends in upper case.
    Tried with: all.
    Notices: the dictionary is missing.
    Lost then: the backend `perseus` is not registered, and the debug log has torch's AttributeError.
    """
    return name.upper() in dist.Backend._plugins


def replace_env_handler(dist: Any, replacement: Callable[[Any], Any]) -> None:
    """Replaces torch's handler of `env://` by `replacement(handler)`.

    Relies on: `torch.distributed.rendezvous._rendezvous_handlers`, a dictionary from URL schemes to handlers.
    Tried with: all.
    Notices: the dictionary or its entry `env` is missing; then nothing is replaced.
    Lost then: `env://` under mpirun needs MASTER_ADDR and MASTER_PORT, and under perseusrun its store is a TCPStore.
    """
    handlers = dist.rendezvous.__globals__.get("_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = replacement(handlers["env"])


def map_backends(dist: Any, mapping: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Makes torch construct the backends that `mapping` returns for the requested ones, by device type.

    torch keeps the requested names for `get_backend` and `get_backend_config`.

    Relies on: `distributed_c10d.BackendConfig.get_device_backend_map()`, from which torch takes the backends of a new
    group, and takes its name elsewhere.
    Tried with: 2.13.
    Notices: the class or the method is missing.
    Lost then: PERSEUS_AS_GLOO=1 logs torch's AttributeError as a warning, and `gloo` stays gloo.
    """
    config = dist.distributed_c10d.BackendConfig
    original = config.get_device_backend_map

    @functools.wraps(original)
    def mapped(self: Any) -> dict[str, Any]:
        return dict(mapping(original(self)))

    config.get_device_backend_map = mapped


@contextlib.contextmanager
def unmapped(dist: Any) -> Iterator[None]:
    """Undoes `map_backends` within the context, in which torch constructs the requested backends.

    Relies on: the same as map_backends().
    Tried with: 2.13.
    Notices: the class or the method is missing.
    Lost then: nothing more than without map_backends().
    """
    config = dist.distributed_c10d.BackendConfig
    mapped = config.get_device_backend_map
    config.get_device_backend_map = getattr(mapped, "__wrapped__", mapped)
    try:
        yield
    finally:
        config.get_device_backend_map = mapped
