"""Refuses to run a program of accelerate that would train on each rank by itself.

accelerate chooses a backend when its `PartialState` is made, from its arguments, its variables and the devices of the
machine. If it finds none, it sets `DistributedType.NO` and continues with one process, although torch.distributed has a
world of several. Each rank would train on all the data, and gradients would not be averaged.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch.distributed as dist

from perseus_like.errors import UnavailableError

_MODULE = "accelerate.state"


def check_accelerate() -> None:
    """Makes an accelerate state of one process in a world of several raise UnavailableError on its rank."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _check_states_of(module)
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Changes the module when the program imports it, so that a program without accelerate pays nothing."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, original: Loader) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._original.exec_module(module)
        _check_states_of(module)


def _check_states_of(module: ModuleType) -> None:
    state: Any = getattr(module, "PartialState", None)
    if state is None:
        return
    original = state.__init__

    @functools.wraps(original)
    def checked(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        size = dist.get_world_size() if dist.is_initialized() else 1
        if self.num_processes == 1 and size > 1:
            raise UnavailableError(
                f"accelerate sees 1 process ({self.distributed_type}) in a world of {size}: each rank would train by "
                "itself. If all ranks are to train on the CPU, make its state with cpu=True: `Accelerator(cpu=True)`, "
                "`PartialState(cpu=True)`, or `--use_cpu` for a Trainer; ACCELERATE_USE_CPU must not be false. If they "
                "are to train on GPUs, give each rank one"
            )

    state.__init__ = checked
