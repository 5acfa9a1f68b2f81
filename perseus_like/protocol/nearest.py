"""The nearest known name for an option or a variable that was typed wrongly."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .rank_variables import RANK_FACTS, TCP_RENDEZVOUS

# Variables of the launcher and of its ranks. Those of the core are in its table of settings.
LAUNCHER_VARIABLES = frozenset(
    {f"{prefix}_{fact}" for prefix in ("PERSEUS", "HOROVOD") for fact in RANK_FACTS}
    | {f"PERSEUS_{name}" for name in ("RENDEZVOUS", "LAUNCHER", "JOB", "ELASTIC", "ELASTIC_TIMEOUT", "TORCH_STORE")}
    | {TCP_RENDEZVOUS}
    | {f"HOROVOD_{name}" for name in ("HOSTNAME", "SECRET_KEY", "ELASTIC", "ELASTIC_TIMEOUT", "VERSION")}
    | {"PERSEUS_LAUNCHER_HEARTBEAT", "PERSEUS_FAILURE_RECORD", "PERSEUS_FULL_TRACEBACKS", "PERSEUS_BUILD_FOLDER"}
    | {
        "PERSEUS_ALONE",
        "PERSEUS_AS_GLOO",
        "PERSEUS_RANK_MAIN",
        "PERSEUS_WORKER",
        "PERSEUS_INTERRUPTS",
        "PERSEUS_SECRET_FILE",
    }
)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Returns the known name that resembles `name` most, or None if none does."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def core_variables(core: Any) -> frozenset[str]:
    """Returns the variables that the core (perseus_like._core) reads, and those of Horovod that it explains."""
    table = [name for row in core.settings_table() for name in row[:2] if name]
    return frozenset([*table, *(name for name, _ in core.unused_settings())])


def notes_on_variables(environment: Mapping[str, str], core: Any) -> list[str]:
    """Returns a text for each variable that nothing reads and whose name resembles that of one that is read."""
    known = core_variables(core) | LAUNCHER_VARIABLES
    typed = [name for name in environment if name.startswith(("PERSEUS_", "HOROVOD_")) and name not in known]
    found = {name: nearest(name, known, cutoff=0.85) for name in sorted(typed)}
    return [f"{name} has no effect: no such variable; did you mean {near}?" for name, near in found.items() if near]


def print_own_notes(core: Any) -> None:
    """Prints the notes on this process's variables, unless perseusrun has started it and has printed them."""
    if "PERSEUS_LAUNCHER" not in os.environ:
        for note in notes_on_variables(os.environ, core):
            print(f"perseus_like: {note}", file=sys.stderr)


def unknown_option(word: str, known: Iterable[str]) -> str:
    """Returns the error text for an option that does not exist."""
    flag = word.partition("=")[0]
    similar = _similar_options(flag.replace("_", "-"), [name for name in known if "_" not in name])
    meant = " or ".join("--" + name[2:].replace("-", "_") if "_" in flag else name for name in similar)
    return f"{flag}: no such option; " + (f"did you mean {meant}? " if meant else "") + "see perseusrun --help"


def _similar_options(flag: str, known: list[str]) -> list[str]:
    """Returns up to three options that differ in upper case only, that begin with `flag`, or that are similar to it."""
    same = [name for name in known if name.lower() == flag.lower()]
    if same or not flag.startswith("--"):
        return same
    longer = [name for name in known if name.startswith(flag)]
    near = nearest(flag, known)
    # A beginning that is typed wrongly, as in --timline.
    alike = {name: difflib.SequenceMatcher(None, flag, name[: len(flag)]).ratio() for name in known if name > "--"}
    best = max(alike.values(), default=0.0)
    begun = [name for name, ratio in alike.items() if ratio == best >= 0.8]
    return (longer or ([near] if near else begun))[:3]
