"""The import finder of the aliases: `import horovod.torch` returns the module perseus_like.torch itself."""

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

# For each alias: its modules and the modules of perseus_like that they stand for. Submodules follow.
ALIASES: dict[str, dict[str, str]] = {
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


class _AliasLoader(Loader):
    """Returns a module of perseus_like. The import system overwrites the module's spec, which is then restored."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        _explain_missing_names(module, spec.name, self._target)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the module's code, for `python -m horovod.runner.launch`."""
        spec = importlib.util.find_spec(self._target)
        loader = None if spec is None else spec.loader
        return loader.get_code(self._target) if isinstance(loader, InspectLoader) else None


class _NamespaceLoader(Loader):
    """Creates the empty packages on the path to an alias, such as perseus.torch.

    Their submodules are imported at the first access, since AIACC's scripts use `perseus.torch.nn.parallel` without
    importing it.
    """

    def __init__(self, below: set[str]) -> None:
        self._below = below

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        theirs = module.__name__
        _explain_missing_names(module, theirs, f"perseus_like{theirs[theirs.index('.') :]}", self._below)


class _AliasFinder(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self.prefix = f"{name}."
        self.behind = ALIASES[name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self.prefix):
            return None
        ours = self.translate(fullname)
        if ours is not None and _exists(ours):
            return ModuleSpec(fullname, _AliasLoader(ours))
        if below := self.below(fullname):
            return ModuleSpec(fullname, _NamespaceLoader(below), is_package=True)
        ours = ours or f"perseus_like.{fullname.removeprefix(self.prefix)}"
        # `importlib.util.find_spec`, by which programs look for features, calls the function that calls this one.
        if sys._getframe(2).f_globals.get("__name__") == "importlib.util":
            return None
        reason = listing.refused_module(fullname) or f"it stands for {ours!r}, which does not exist"
        raise ModuleNotFoundError(f"No module named {fullname!r}: {reason}", name=fullname)

    def below(self, fullname: str) -> set[str]:
        """Returns the next part of each alias that has `fullname` as a parent package."""
        start = f"{fullname}."
        return {name.removeprefix(start).partition(".")[0] for name in self.behind if name.startswith(start)}

    def translate(self, fullname: str) -> str | None:
        for name, ours in self.behind.items():
            if fullname == name or fullname.startswith(f"{name}."):
                return ours + fullname.removeprefix(name)
        return None


def install_alias(name: str) -> None:
    """Makes imports of `name.…` return modules of perseus_like. The package `name` calls it."""
    finder = _AliasFinder(name)
    spaces = {part for part in finder.below(name) if f"{name}.{part}" not in finder.behind}
    _explain_missing_names(sys.modules[name], name, "perseus_like", spaces)
    sys.meta_path.insert(0, finder)


def _exists(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _explain_missing_names(module: ModuleType, theirs: str, ours: str, below: Set[str] = frozenset()) -> None:
    own = vars(module).get("__getattr__")
    if getattr(own, "explains_missing_names", False):
        return  # another alias of this module has installed it

    def __getattr__(name: str) -> Any:  # noqa: N807
        if own is not None:
            with contextlib.suppress(AttributeError):
                return own(name)
        if name in below:
            return importlib.import_module(f"{theirs}.{name}")
        # `from … import name` replaces the text of an AttributeError by its own.
        caller = sys._getframe(1)
        is_import = caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
        error = ImportError if is_import else AttributeError
        is_special = name.startswith("__")  # the import system looks these up
        reason = None if is_special else listing.refused_name(ours.replace("perseus_like", "horovod", 1), name)
        raise error(f"{theirs!r} has no {name!r}: {reason or f'there is no {ours}.{name}'}")

    __getattr__.explains_missing_names = True  # type: ignore[attr-defined]
    vars(module)["__getattr__"] = __getattr__
