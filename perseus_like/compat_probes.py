"""Checks of the private parts of a framework that an adapter relies on: `adapters/<framework>/compat/__main__.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

# The probe of each function that relies on a private part, by `module.function`. It raises if the part has changed.
Probes = Mapping[str, Callable[[], None]]


class Changed(Exception):
    """A private part of a framework is not as expected. The text names the part."""


def expect(holds: bool, otherwise: str) -> None:
    """Raises Changed with the text `otherwise` unless `holds`."""
    if not holds:
        raise Changed(otherwise)


def changed(probes: Probes) -> dict[str, str]:
    """Runs all probes. Returns the reason of each that failed, by its name."""
    reasons = {name: _reason(probe) for name, probe in probes.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def _reason(probe: Callable[[], None]) -> str:
    """Returns why the probe fails; "" if it does not."""
    try:
        probe()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(framework: str, probes: Probes) -> None:
    """Runs all probes, prints what has changed, and exits with status 1 if something has. `framework`: with version."""
    found = changed(probes)
    for name, reason in found.items():
        print(f"{name}: {reason}")
    print(f"{framework}: {len(probes) - len(found)} of {len(probes)} private parts are as expected")
    sys.exit(1 if found else 0)
