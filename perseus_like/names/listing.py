"""The list of Horovod's modules and names: horovod_names.json, with what works, differs or is refused here, and why."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

_FILE = Path(__file__).with_name("horovod_names.json")


@dataclass(frozen=True)
class Module:
    """A module of Horovod. `refused` is the reason if it cannot be imported here; otherwise each name has its state."""

    name: str
    refused: str | None = None
    works: tuple[str, ...] = ()
    differs: dict[str, str] = field(default_factory=dict)  # name → how
    refusals: dict[str, str] = field(default_factory=dict)  # name → why


@functools.cache
def modules() -> dict[str, Module]:
    """Returns Horovod's modules by name, in the order of the file."""
    found: dict[str, Module] = {}
    for name, entry in json.loads(_FILE.read_text(encoding="utf-8")).items():
        if isinstance(entry.get("refused"), str):
            for each in (name, *entry.get("below", ())):
                found[each] = Module(each, refused=entry["refused"])
        else:
            differs, refusals = (
                {each: group["text"] for group in entry.get(state, ()) for each in group["names"]}
                for state in ("differs", "refused")
            )
            found[name] = Module(name, None, tuple(entry["works"]), differs, refusals)
    return found


def refused_module(name: str) -> str | None:
    """Returns why the module `name` of Horovod is refused, or None if the list does not refuse it."""
    module = modules().get(name)
    return None if module is None else module.refused


def refused_name(module: str, name: str) -> str | None:
    """Returns why `name` of a module of Horovod is refused, or None if the list does not refuse it."""
    known = modules().get(module)
    reason = None if known is None else known.refusals.get(name)
    return reason or refused_module(f"{module}.{name}")
