"""The import finder behind the doors: `horovod.torch` becomes the very module perseus_like.torch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence, Set
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from opcode import opmap
from types import CodeType, ModuleType
from typing import Any

from . import listing

# Door → the modules behind it, by what they are here. What lies below them follows.
DOORS: dict[str, dict[str, str]] = {
    "horovod": {
        name: f"perseus_like.{name.partition('.')[2]}"
        for name in (
            *("horovod.common", "horovod.runner", "horovod.data"),
            *("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.mxnet"),
        )
    },
    "perseus": {
        "perseus.torch.horovod": "perseus_like.torch",
        "perseus.torch.distributed": "perseus_like.torch.distributed",
        "perseus.torch.nn": "perseus_like.torch.nn",
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

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the module's code, for `python -m horovod.runner.launch`."""
        spec = importlib.util.find_spec(self._target)
        loader = None if spec is None else spec.loader
        return loader.get_code(self._target) if isinstance(loader, InspectLoader) else None


class _Space(Loader):
    """Makes the empty packages that a path leads through, such as perseus.torch. What is below is imported when it is
    asked for, as AIACC's scripts take `perseus.torch.nn.parallel` without an import of its own.
    """

    def __init__(self, below: set[str]) -> None:
        self._below = below

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        theirs = module.__name__
        _say_both_names(module, theirs, f"perseus_like{theirs[theirs.index('.') :]}", self._below)


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
        if below := self.below(fullname):
            return ModuleSpec(fullname, _Space(below), is_package=True)
        ours = ours or f"perseus_like.{fullname.removeprefix(self.prefix)}"
        reason = listing.refused_module(fullname) or f"it would be {ours!r}, which is not there"
        raise ModuleNotFoundError(f"No module named {fullname!r}: {reason}", name=fullname)

    def below(self, fullname: str) -> set[str]:
        """The next parts of the paths that lead through a name."""
        start = f"{fullname}."
        return {name.removeprefix(start).partition(".")[0] for name in self.behind if name.startswith(start)}

    def translate(self, fullname: str) -> str | None:
        for name, ours in self.behind.items():
            if fullname == name or fullname.startswith(f"{name}."):
                return ours + fullname.removeprefix(name)
        return None


def open_door(name: str) -> None:
    """From now on `name.…` is imported from here. Called by the package of that name."""
    door = _Door(name)
    spaces = {part for part in door.below(name) if f"{name}.{part}" not in door.behind}
    _say_both_names(sys.modules[name], name, "perseus_like", spaces)
    sys.meta_path.insert(0, door)


def _exists(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _say_both_names(module: ModuleType, theirs: str, ours: str, below: Set[str] = frozenset()) -> None:
    own = vars(module).get("__getattr__")
    if getattr(own, "says_both_names", False):
        return  # it is known by another alias, too

    def __getattr__(name: str) -> Any:  # noqa: N807
        if own is not None:
            with contextlib.suppress(AttributeError):
                return own(name)
        if name in below:
            return importlib.import_module(f"{theirs}.{name}")
        # `from … import name` puts a text of its own in the place of an AttributeError's.
        caller = sys._getframe(1)
        is_import = caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
        error = ImportError if is_import else AttributeError
        is_special = name.startswith("__")  # asked for by the import system
        reason = None if is_special else listing.refused_name(ours.replace("perseus_like", "horovod", 1), name)
        raise error(f"{theirs!r} has no {name!r}: {reason or f'there is no {ours}.{name}'}")

    __getattr__.says_both_names = True  # type: ignore[attr-defined]
    vars(module)["__getattr__"] = __getattr__
