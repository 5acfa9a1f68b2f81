"""The import finder behind the doors: `horovod.torch` becomes the very module perseus_like.torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from opcode import opmap
from types import ModuleType
from typing import Any

# Door → the modules behind it, by what they are here. What lies below them follows.
DOORS: dict[str, dict[str, str]] = {
    "horovod": {
        name: f"perseus_like.{name.partition('.')[2]}"
        for name in (
            *("horovod.common", "horovod.runner"),
            *("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.mxnet"),
        )
    },
    "perseus": {
        "perseus.torch.horovod": "perseus_like.torch",
        "perseus.tensorflow.horovod": "perseus_like.tensorflow",
        "perseus.keras.horovod": "perseus_like.keras",
        "perseus.mxnet": "perseus_like.mxnet",
    },
}


class _Behind(Loader):
    """Hands out a module of ours. The import system writes its spec into it, which is put back."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        _say_both_names(module, spec.name, self._target)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Space(Loader):
    """Makes the empty packages that a path leads through, such as perseus.torch."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        theirs = module.__name__
        _say_both_names(module, theirs, f"perseus_like{theirs[theirs.index('.') :]}")


class _Door(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self.prefix = f"{name}."
        self.behind = DOORS[name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self.prefix):
            return None
        ours = self.translate(fullname)
        if ours is not None and _exists(ours):
            return ModuleSpec(fullname, _Behind(ours))
        if any(name.startswith(f"{fullname}.") for name in self.behind):
            return ModuleSpec(fullname, _Space(), is_package=True)
        ours = ours or f"perseus_like.{fullname.removeprefix(self.prefix)}"
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: it would be {ours!r}, which is not there", name=fullname
        )

    def translate(self, fullname: str) -> str | None:
        for name, ours in self.behind.items():
            if fullname == name or fullname.startswith(f"{name}."):
                return ours + fullname.removeprefix(name)
        return None


def open_door(name: str) -> None:
    """From now on `name.…` is imported from here. Called by the package of that name."""
    _say_both_names(sys.modules[name], name, "perseus_like")
    sys.meta_path.insert(0, _Door(name))


def _exists(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _say_both_names(module: ModuleType, theirs: str, ours: str) -> None:
    def __getattr__(name: str) -> Any:  # noqa: N807
        # `from … import name` puts a text of its own in the place of an AttributeError's.
        caller = sys._getframe(1)
        is_import = caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
        error = ImportError if is_import else AttributeError
        raise error(f"{theirs!r} has no {name!r}, as there is no '{ours}.{name}'")

    vars(module).setdefault("__getattr__", __getattr__)
