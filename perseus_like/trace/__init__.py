"""Reads the timelines that ranks wrote: `python -m perseus_like.trace merge FILE…`, `… summary FILE…`."""
