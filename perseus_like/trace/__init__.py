"""Tools for timelines of ranks: `python -m perseus_like.trace merge FILE…` and `… summary FILE…`."""
