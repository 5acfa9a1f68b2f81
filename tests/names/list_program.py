"""Compares the list of Horovod's names with what can be imported here. Arguments: names of modules.

Prints each difference as a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType

from perseus_like.names.listing import Module, modules


def find(module: ModuleType, name: str) -> str | None:
    """Returns the error's text if `module` lacks `name`, or None if the module has it."""
    try:
        getattr(module, name)
    except AttributeError as error:
        return str(error)
    return None


def differences(module: Module) -> list[str]:
    """Returns a sentence for each name that differs from its entry in the list."""
    try:
        imported = importlib.import_module(module.name)
    except ImportError as error:
        if module.refused is not None:
            return [] if module.refused in str(error) else [f"{module.name} is refused with another text: {error}"]
        return [f"{module.name} cannot be imported: {error}"]
    if module.refused is not None:
        return [f"{module.name} is listed as refused, but can be imported"]
    found = [
        f"{module.name}.{name} is listed, but not there"
        for name in (*module.works, *module.differs)
        if find(imported, name) is not None
    ]
    for name, reason in module.refusals.items():
        text = find(imported, name)
        if text is None:
            found.append(f"{module.name}.{name} is listed as refused, but it is there")
        elif reason not in text:
            found.append(f"{module.name}.{name} is refused with another text: {text}")
    return found


def main() -> None:
    for name in sys.argv[1:]:
        for sentence in differences(modules()[name]):
            print(json.dumps({"difference": sentence}))


if __name__ == "__main__":
    main()
