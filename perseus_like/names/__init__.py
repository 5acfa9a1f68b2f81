"""Doors: the names under which other projects know this API. Filled by a later piece of work."""
