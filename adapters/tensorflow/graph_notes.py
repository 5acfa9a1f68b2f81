"""What is remembered of a graph as long as there is that graph."""

from __future__ import annotations

from typing import Any


def notes_of(graph: Any) -> dict[str, Any]:
    """By who remembers. Nodes may be in it: they keep their graph alive, so that a table beside it would for ever."""
    notes: dict[str, Any] | None = getattr(graph, "_perseus_like", None)
    if notes is None:
        notes = graph._perseus_like = {}
    return notes
