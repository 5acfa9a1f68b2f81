"""Private parts of torch.distributed on which the registration relies, in the form of `adapters/torch/compat/`.

They are here because `import torch` loads this package, which therefore imports nothing of perseus_like.
"""

from __future__ import annotations

from collections.abc import Callable
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
