"""`gloo` as a name of this library's backend: what asks torch for gloo on the CPU gets a group of perseus.

It is off by default. PERSEUS_AS_GLOO=1 turns it on at `import torch`, `perseus_like.torch.as_gloo()` from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import compat

VARIABLE = "PERSEUS_AS_GLOO"
# The name under which torch makes a group of this library that was asked for as gloo. The program never sees it.
NAME = "perseus_as_gloo"
_GLOO = "gloo"


def is_asked_for() -> bool:
    """Returns whether the environment turns it on."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def is_on(dist: Any) -> bool:
    return compat.is_registered(dist, NAME)


def turn_on(dist: Any, create: Callable[[Any, Any], Any]) -> None:
    """Makes groups by `create` from now on. A second call does nothing. Errors: AttributeError if torch has changed."""
    if not is_on(dist):
        compat.map_backends(dist, _with_ours)
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def _with_ours(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the backends to make for those that a program has asked for, by device type."""
    if asked.get("cpu") != _GLOO:
        return dict(asked)
    if set(asked.values()) == {_GLOO}:  # gloo is also a backend for CUDA tensors
        import torch

        if not torch.cuda.is_available():
            return {"cpu": NAME}
    return {**asked, "cpu": NAME}
